//! Queue of processes and connections to be ended, a few per iteration of the event loop
//! (`turn.rs`).

use std::collections::{BTreeMap, VecDeque};

use towpath_stack::ShardId;

use crate::ids::ChannelId;

/// Maximum number of iterations of the event loop until a closed connection has sent its reset, if
/// many connections have data to send.
const SETTLING_TURNS: u8 = 8;

/// An entry of the queue [`Ends`]: a process or connection to be ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PendingEnd {
    /// The sockets of an ended process, or sockets that a running process has released.
    Holds(ChannelId),
    /// A connection that no process has accepted, given by slot and generation.
    Connection(u32, u32),
    /// A peer shard (event loop) that has requested the close of the connection in the previous
    /// entry. The shard is notified when the connection has ended.
    Told(ShardId),
}

/// Processes and connections to be ended, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    queue: VecDeque<PendingEnd>,
    /// Total number of entries ever added to the queue.
    begun: u64,
    /// Whether an entry was added since the last iteration of the event loop.
    pub is_new: bool,
    /// For each peer shard (event loop), the number of connections that it was asked to close, and
    /// the number that it has reported as closed.
    pub elsewhere: BTreeMap<ShardId, (u64, u64)>,
    /// Shards to notify after the next iteration of the stack, because connections that they asked
    /// to close have ended. Each is listed once.
    acknowledged: Vec<ShardId>,
    /// Maximum number of iterations until the ports of closed connections are free. A close sets it
    /// to `SETTLING_TURNS`, and each iteration of the stack decrements it (`settle`).
    unsettled: u8,
    /// Number of iterations until the connections closed for the current round of requests have
    /// ended. Later closes do not change it. `None` while the queue contains entries from before
    /// the round.
    settling: Option<u8>,
}

impl Ends {
    /// Returns the total number of entries added to the queue so far.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the number of finished entries. Entries are handled in the order in which they were
    /// added.
    pub fn done(&self) -> u64 {
        self.begun - self.queue.len() as u64
    }

    /// Returns the first entry of the queue, which is handled next.
    pub fn first(&self) -> Option<PendingEnd> {
        self.queue.front().copied()
    }

    /// Removes the first entry of the queue, because it is finished.
    pub fn end_first(&mut self) {
        self.queue.pop_front();
    }

    /// Adds the release of a process's sockets to the queue. The release begins in the current
    /// turn.
    pub fn push_holds(&mut self, id: ChannelId) {
        self.is_new = true;
        self.push(PendingEnd::Holds(id));
    }

    pub fn push(&mut self, end: PendingEnd) {
        self.queue.push_back(end);
        self.begun += 1;
    }

    /// Records that connections have ended whose close a peer shard (event loop) has requested.
    pub fn acknowledge(&mut self, shard: ShardId) {
        self.acknowledged.push(shard);
    }

    /// Returns the peer shards (event loops) to notify that connections have ended whose close they
    /// have requested. Each is returned once.
    pub fn take_acknowledged(&mut self) -> Vec<ShardId> {
        std::mem::take(&mut self.acknowledged)
    }

    /// Returns whether the next turn of the event loop has entries to handle.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty() || !self.acknowledged.is_empty()
    }

    /// Records that a connection was closed. The stack needs its port until the stack has run
    /// again.
    pub fn unsettle(&mut self) {
        self.unsettled = SETTLING_TURNS;
    }

    /// Records that the stack has run an iteration. `more` is true if it did not handle all
    /// connections.
    pub fn settle(&mut self, more: bool) {
        self.unsettled = after_turn(self.unsettled, more);
        self.settling = self.settling.map(|left| after_turn(left, more));
    }

    /// Begins a round (pass over earlier work). The round ends when all entries that are in the
    /// queue now are finished.
    pub fn begin_round(&mut self) {
        self.settling = None;
    }

    /// Returns the number of connections that each peer shard (event loop) was asked to close so
    /// far.
    pub fn told_elsewhere(&self) -> BTreeMap<ShardId, u64> {
        self.elsewhere.iter().map(|(shard, it)| (*shard, it.0)).collect()
    }

    /// Returns whether the connections of a round have ended: those of this shard (event loop), and
    /// in each peer shard as many as `awaited` contains. All entries of this shard must have been
    /// handled before.
    pub fn is_settled(&mut self, awaited: &BTreeMap<ShardId, u64>) -> bool {
        let is_done = |(shard, told): (&ShardId, &u64)| {
            self.elsewhere.get(shard).is_none_or(|(_, done)| done >= told)
        };
        *self.settling.get_or_insert(self.unsettled) == 0 && awaited.iter().all(is_done)
    }
}

fn after_turn(left: u8, more: bool) -> u8 {
    if more { left.saturating_sub(1) } else { 0 }
}
