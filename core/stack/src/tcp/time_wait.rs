//! Connections in TIME-WAIT: a table of small entries, which all have the same waiting time. The
//! module `late_segments` processes their segments.

use std::time::Duration;

use towpath_tcp::{Instant, TimeWait};

use crate::limits::TIME_WAIT_REUSE_AFTER;
use crate::net::IfaceId;
use crate::ports::bind_addr::Sharing;
use crate::settings::FlowSettings;
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};

/// A connection in TIME-WAIT, with the state that is needed to answer late segments.
#[derive(Debug)]
pub(crate) struct TimeWaitFlow {
    pub flow: Flow,
    pub state: TimeWait,
    /// Settings such as TTL for the segments that are sent in TIME-WAIT, copied from the
    /// connection.
    pub packet: FlowSettings,
    pub iface: Option<IfaceId>,
    /// Sharing options with which the connection is registered as a user of its local port. `None`
    /// if it is not registered.
    pub uses_port: Option<Sharing>,
}

/// Table of connections in TIME-WAIT. If the waiting time of an entry begins again, the entry is
/// moved to the end of the list. The first entry therefore expires first.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    /// Time for which a connection stays in TIME-WAIT.
    time: Duration,
    queue: Queue<TimeWaitFlow>,
    line: List,
}

impl TimeWaits {
    /// Creates a table for connections that stay in TIME-WAIT for `time`.
    pub fn new(time: Duration) -> Self {
        Self { time, queue: Queue::default(), line: List::default() }
    }

    /// Returns the number of connections in TIME-WAIT.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds a connection in TIME-WAIT, and returns its index.
    pub fn insert(&mut self, entry: TimeWaitFlow) -> u32 {
        self.queue.push(&mut self.line, entry)
    }

    /// Removes the connection in TIME-WAIT at `index`.
    pub fn remove(&mut self, index: u32) -> Option<TimeWaitFlow> {
        self.queue.remove(&mut self.line, index)
    }

    /// Returns whether a new connection may replace a connection in TIME-WAIT, as with Linux's
    /// `tcp_tw_reuse`. After a second, timestamps distinguish new segments from late ones, and so
    /// does an initial sequence number beyond the old window (RFC 6191). Without timestamps, late
    /// segments of the peer cannot be distinguished from new ones.
    pub fn is_reusable(&self, now: Instant, index: u32) -> bool {
        self.get(index).is_some_and(|entry| {
            let left = entry.state.expires().since(now);
            entry.state.has_timestamps() && left + TIME_WAIT_REUSE_AFTER <= self.time
        })
    }

    /// Returns the connection in TIME-WAIT at `index`; `None` if there is none.
    pub fn get(&self, index: u32) -> Option<&TimeWaitFlow> {
        self.queue.get(index)
    }

    /// Returns the connection in TIME-WAIT at `index`. If the caller restarts the waiting time of
    /// the connection, it must call [`TimeWaits::renew`].
    pub fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitFlow> {
        self.queue.get_mut(index)
    }

    /// Moves the entry at `index` to the end of the list, because its waiting time begins again.
    pub fn renew(&mut self, index: u32) {
        self.queue.renew(&mut self.line, index);
    }

    /// Iterates over all connections in TIME-WAIT.
    pub fn iter(&self) -> impl Iterator<Item = &TimeWaitFlow> {
        self.queue.iter()
    }

    /// Returns the index of the entry that expires first.
    pub fn oldest(&self) -> Option<u32> {
        self.line.front()
    }

    /// Returns the time at which the first entry expires; `None` if the table is empty.
    pub fn next_timeout(&self) -> Option<Instant> {
        Some(self.get(self.oldest()?)?.state.expires())
    }
}
