//! Connections in TIME-WAIT: a table of small entries, all waiting equally long. `late_segments`
//! processes their segments.

use towpath_tcp::{Instant, TimeWait};

use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::socket::FlowSettings;
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
#[derive(Debug, Default)]
pub(crate) struct TimeWaits {
    queue: Queue<TimeWaitFlow>,
    line: List,
}

impl TimeWaits {
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
