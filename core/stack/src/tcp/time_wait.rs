//! Connections in TIME-WAIT: a table of small entries, all waiting equally long. `late_segments`
//! processes their segments.

use std::time::Duration;

use towpath_tcp::{Instant, TimeWait};

use crate::limits::TIME_WAIT_REUSE_AFTER;
use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::settings::FlowSettings;
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};

/// A connection in TIME-WAIT, with the state that its late segments need.
#[derive(Debug)]
pub(crate) struct TimeWaitFlow {
    pub flow: Flow,
    pub state: TimeWait,
    /// How the connection's segments left, and so do the answers in its name.
    pub packet: FlowSettings,
    pub iface: Option<IfaceId>,
    /// Sharing by which the connection counts as a user of its port.
    pub uses_port: Option<Sharing>,
}

/// The table. An entry whose time is restarted moves to the back, so that the front expires first.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    /// Length of the state.
    time: Duration,
    queue: Queue<TimeWaitFlow>,
    line: List,
}

impl TimeWaits {
    /// A table of entries that wait for `time`.
    pub fn new(time: Duration) -> Self {
        Self { time, queue: Queue::default(), line: List::default() }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds one.
    pub fn insert(&mut self, entry: TimeWaitFlow) -> u32 {
        self.queue.push(&mut self.line, entry)
    }

    /// Takes one out.
    pub fn remove(&mut self, index: u32) -> Option<TimeWaitFlow> {
        self.queue.remove(&mut self.line, index)
    }

    /// Whether a TIME-WAIT may be replaced, as with Linux's `tcp_tw_reuse`. After a second,
    /// timestamps and an initial sequence number beyond the old window tell new segments from late
    /// ones (RFC 6191). Without timestamps the peer's late segments look like its new ones.
    pub fn is_reusable(&self, now: Instant, index: u32) -> bool {
        self.get(index).is_some_and(|entry| {
            let left = entry.state.expires().since(now);
            entry.state.has_timestamps() && left + TIME_WAIT_REUSE_AFTER <= self.time
        })
    }

    /// The entry at `index`.
    pub fn get(&self, index: u32) -> Option<&TimeWaitFlow> {
        self.queue.get(index)
    }

    /// The entry at `index`, to be changed; then call [`TimeWaits::renew`] if its time was
    /// restarted.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitFlow> {
        self.queue.get_mut(index)
    }

    /// Its time was restarted.
    pub fn renew(&mut self, index: u32) {
        self.queue.renew(&mut self.line, index);
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = &TimeWaitFlow> {
        self.queue.iter()
    }

    /// The one that expires first.
    pub fn oldest(&self) -> Option<u32> {
        self.line.front()
    }

    /// When the first one expires.
    pub fn next_timeout(&self) -> Option<Instant> {
        Some(self.get(self.oldest()?)?.state.expires())
    }
}
