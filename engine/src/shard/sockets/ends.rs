//! Queue of ends, which are dealt with in portions (`turn.rs`).

use std::collections::{BTreeMap, VecDeque};

use towpath_stack::ShardId;

use crate::ids::ChannelId;

/// Turns that a connection which is to be reset waits for its turn to send, at most, among many
/// others.
const SETTLING_TURNS: u8 = 8;

/// An end to be dealt with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PendingEnd {
    /// A process that is gone, or the hold of one that lives on sockets that it has no more.
    Holds(ChannelId),
    /// A connection that no process accepted: its slot and generation.
    Connection(u32, u32),
    /// The one before, which this shard told to end.
    Told(ShardId),
}

/// In the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    queue: VecDeque<PendingEnd>,
    /// How many were ever put into the queue.
    begun: u64,
    /// An end was begun that was not tried yet.
    pub is_new: bool,
    /// Number of connections that each shard was told to end, and that it has ended.
    pub elsewhere: BTreeMap<ShardId, (u64, u64)>,
    /// Shards whose connections have ended here, once for each: they are told when the stack has
    /// had its turn.
    acknowledged: Vec<ShardId>,
    /// Upper bound on the turns left before the ports of closed connections are free. Each close
    /// sets it to `SETTLING_TURNS`, and `settle` counts it down.
    unsettled: u8,
    /// The same for connections that were closed before the ends of the round were done, so that
    /// later ones do not prolong it. `None`: those ends are not done.
    settling: Option<u8>,
}

impl Ends {
    /// How many ends there ever were.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// How many of them are done: they are dealt with in their order.
    pub fn done(&self) -> u64 {
        self.begun - self.queue.len() as u64
    }

    /// The end to be dealt with first.
    pub fn first(&self) -> Option<PendingEnd> {
        self.queue.front().copied()
    }

    /// Removes the first end, which is done.
    pub fn end_first(&mut self) {
        self.queue.pop_front();
    }

    /// Queues the end of a process's holds, which is tried at once.
    pub fn push_holds(&mut self, id: ChannelId) {
        self.is_new = true;
        self.push(PendingEnd::Holds(id));
    }

    pub fn push(&mut self, end: PendingEnd) {
        self.queue.push_back(end);
        self.begun += 1;
    }

    /// Notes that a connection has ended which the shard told this one to end.
    pub fn acknowledge(&mut self, shard: ShardId) {
        self.acknowledged.push(shard);
    }

    /// Shards to be told that connections have ended, once for each.
    pub fn take_acknowledged(&mut self) -> Vec<ShardId> {
        std::mem::take(&mut self.acknowledged)
    }

    /// Whether the next turn has something to do.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty() || !self.acknowledged.is_empty()
    }

    /// Notes that a connection was closed: the stack has its port until it has had a turn.
    pub fn unsettle(&mut self) {
        self.unsettled = SETTLING_TURNS;
    }

    /// Notes a turn of the stack. `more`: there are connections that it has not visited.
    pub fn settle(&mut self, more: bool) {
        self.unsettled = after_turn(self.unsettled, more);
        self.settling = self.settling.map(|left| after_turn(left, more));
    }

    /// Begins to wait for the ends of a round.
    pub fn begin_round(&mut self) {
        self.settling = None;
    }

    /// Number of connections that each shard was told to end by now.
    pub fn told_elsewhere(&self) -> BTreeMap<ShardId, u64> {
        self.elsewhere.iter().map(|(shard, it)| (*shard, it.0)).collect()
    }

    /// Whether the connections that a round waits for are gone, also `awaited` in other shards. The
    /// ends of this shard are done.
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
