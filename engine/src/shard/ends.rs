//! Queue of ends, which are dealt with in portions (`ending.rs`).

use std::collections::VecDeque;

use towpath_stack::ShardId;

use crate::ids::ChannelId;

/// An end to be dealt with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// A process that is gone, or the hold of one that lives on sockets that it has no more.
    Holds(ChannelId),
    /// A connection that nobody accepted, and the generation of its slot.
    Connection(u32, u32),
    /// The one before, which this shard told to end.
    Told(ShardId),
}

/// In the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    queue: VecDeque<End>,
    /// How many were ever put into the queue.
    begun: u64,
    /// [Going on](crate::shard::Shard::go_on_ending) runs: a command among those that it takes may
    /// end something, too.
    pub is_busy: bool,
}

impl Ends {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many ends there ever were.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// How many of them are done: they are dealt with in their order.
    pub fn done(&self) -> u64 {
        self.begun - self.queue.len() as u64
    }

    /// The end to be dealt with first.
    pub fn first(&self) -> Option<End> {
        self.queue.front().copied()
    }

    /// Removes the first end, which is done.
    pub fn end_first(&mut self) {
        self.queue.pop_front();
    }

    pub fn push(&mut self, end: End) {
        self.queue.push_back(end);
        self.begun += 1;
    }
}
