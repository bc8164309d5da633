//! Connections in TIME-WAIT: a table of small entries with equal waiting times. `late_segments`
//! processes their segments.

use std::time::Duration;

use towpath_tcp::{Instant, TimeWait};

use crate::limits::TIME_WAIT_REUSE_AFTER;
use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::settings::FlowSettings;
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};

/// A connection in TIME-WAIT, with the state needed for late segments.
#[derive(Debug)]
pub(crate) struct TimeWaitFlow {
    pub flow: Flow,
    pub state: TimeWait,
    /// Settings for outgoing segments, copied from the connection.
    pub packet: FlowSettings,
    pub iface: Option<IfaceId>,
    /// Sharing options with which the connection is counted as a user of its port; `None` if it is
    /// not counted.
    pub uses_port: Option<Sharing>,
}

/// Table of TIME-WAITs. An entry whose time is restarted moves to the back, so the front expires
/// first.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    /// Duration of TIME-WAIT.
    time: Duration,
    queue: Queue<TimeWaitFlow>,
    line: List,
}

impl TimeWaits {
    /// Creates a table whose entries wait for `time`.
    pub fn new(time: Duration) -> Self {
        Self { time, queue: Queue::default(), line: List::default() }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds an entry.
    pub fn insert(&mut self, entry: TimeWaitFlow) -> u32 {
        self.queue.push(&mut self.line, entry)
    }

    /// Removes an entry.
    pub fn remove(&mut self, index: u32) -> Option<TimeWaitFlow> {
        self.queue.remove(&mut self.line, index)
    }

    /// Returns whether a new connection may replace a TIME-WAIT, as with Linux's `tcp_tw_reuse`.
    /// After a second, timestamps and an initial sequence number beyond the old window distinguish
    /// new segments from late ones (RFC 6191). Without timestamps the peer's late segments cannot
    /// be distinguished from new ones.
    pub fn is_reusable(&self, now: Instant, index: u32) -> bool {
        self.get(index).is_some_and(|entry| {
            let left = entry.state.expires().since(now);
            entry.state.has_timestamps() && left + TIME_WAIT_REUSE_AFTER <= self.time
        })
    }

    /// Returns the entry at `index`.
    pub fn get(&self, index: u32) -> Option<&TimeWaitFlow> {
        self.queue.get(index)
    }

    /// Returns the entry at `index` for modification. If the caller restarts the entry's time, it
    /// must call [`TimeWaits::renew`].
    pub fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitFlow> {
        self.queue.get_mut(index)
    }

    /// Moves an entry to the back after its time was restarted.
    pub fn renew(&mut self, index: u32) {
        self.queue.renew(&mut self.line, index);
    }

    /// Iterates over all entries.
    pub fn iter(&self) -> impl Iterator<Item = &TimeWaitFlow> {
        self.queue.iter()
    }

    /// Returns the entry that expires first.
    pub fn oldest(&self) -> Option<u32> {
        self.line.front()
    }

    /// Returns when the first entry expires.
    pub fn next_timeout(&self) -> Option<Instant> {
        Some(self.get(self.oldest()?)?.state.expires())
    }
}
