//! Queue of processes and connections that end. A few are handled in each turn (`turn.rs`).

use std::collections::{BTreeMap, VecDeque};

use towpath_stack::ShardId;

use crate::ids::ChannelId;

/// Maximum number of turns until a closed connection has sent its reset, when many connections have
/// data to send.
const SETTLING_TURNS: u8 = 8;

/// An entry of the queue [`Ends`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum PendingEnd {
    /// A process that has ended, or a live process that has released sockets.
    Holds(ChannelId),
    /// A connection that no process accepted, by slot and generation.
    Connection(u32, u32),
    /// A shard that requested the end of the connection queued before this entry, and is notified
    /// when that connection has ended.
    Told(ShardId),
}

/// Processes and connections to be ended, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    queue: VecDeque<PendingEnd>,
    /// Total number of entries queued so far.
    begun: u64,
    /// Whether an entry was queued that no turn has handled yet.
    pub is_new: bool,
    /// Number of connections that each peer shard was requested to end, and of those it reported as
    /// ended.
    pub elsewhere: BTreeMap<ShardId, (u64, u64)>,
    /// Shards to notify after the stack's next turn, each once, because their requested connections
    /// have ended here.
    acknowledged: Vec<ShardId>,
    /// Maximum number of turns until the ports of closed connections are free. Each close sets it
    /// to `SETTLING_TURNS`, and `settle` counts it down.
    unsettled: u8,
    /// Turns left until the connections that were closed for this round's entries have ended. Later
    /// closes do not extend it. `None` while entries of the round are pending.
    settling: Option<u8>,
}

impl Ends {
    /// Returns the total number of entries ever queued.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the number of finished entries. Entries are handled in order.
    pub fn done(&self) -> u64 {
        self.begun - self.queue.len() as u64
    }

    /// Returns the first entry, which is handled next.
    pub fn first(&self) -> Option<PendingEnd> {
        self.queue.front().copied()
    }

    /// Removes the first entry, because it is done.
    pub fn end_first(&mut self) {
        self.queue.pop_front();
    }

    /// Queues the release of a process's sockets, to be tried in this turn.
    pub fn push_holds(&mut self, id: ChannelId) {
        self.is_new = true;
        self.push(PendingEnd::Holds(id));
    }

    pub fn push(&mut self, end: PendingEnd) {
        self.queue.push_back(end);
        self.begun += 1;
    }

    /// Records that the connections which a shard requested to end have ended.
    pub fn acknowledge(&mut self, shard: ShardId) {
        self.acknowledged.push(shard);
    }

    /// Takes the shards to be notified that their connections have ended, each once.
    pub fn take_acknowledged(&mut self) -> Vec<ShardId> {
        std::mem::take(&mut self.acknowledged)
    }

    /// Returns whether the next turn has work.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty() || !self.acknowledged.is_empty()
    }

    /// Notes that a connection was closed. The stack keeps its port until its next turn.
    pub fn unsettle(&mut self) {
        self.unsettled = SETTLING_TURNS;
    }

    /// Records a turn of the stack. `more` says that the turn did not reach all connections.
    pub fn settle(&mut self, more: bool) {
        self.unsettled = after_turn(self.unsettled, more);
        self.settling = self.settling.map(|left| after_turn(left, more));
    }

    /// Begins a round, which is over when all entries queued before it have ended.
    pub fn begin_round(&mut self) {
        self.settling = None;
    }

    /// Returns the number of connections that each peer shard was requested to end so far.
    pub fn told_elsewhere(&self) -> BTreeMap<ShardId, u64> {
        self.elsewhere.iter().map(|(shard, it)| (*shard, it.0)).collect()
    }

    /// Returns whether the connections of a round have ended: in this shard, and in peer shards as
    /// many as `awaited` says. All entries of this shard must have been handled.
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
