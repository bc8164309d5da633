//! Requests that are not answered yet: what they wait for.

use std::collections::{BTreeMap, VecDeque};

use towpath_shm::control::Reply;
use towpath_stack::ShardId;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::mail::Query;

/// The answer to a request.
pub(crate) type Answer = Result<Reply, Errno>;

/// For whom a round is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A process that has a [request](crate::shard::channels::Attached::request), by its channel
    /// and that one's [serial number](crate::shard::channels::Attached::serial).
    Process(ChannelId, u64),
    /// The same for what it [wants](crate::shard::channels::Attached::want).
    Want(ChannelId, u64),
    /// Another thread, for which the registry asks: `towpath ss`, for one. With the query's number.
    Query(u64, Query),
    /// A shard, this one perhaps, and the number under which it waits for this round among those of
    /// others.
    Shard(ShardId, u64),
}

/// An entry that waits for other shards.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// From these it has not heard yet, a bit each.
    pub left: u16,
    pub then: Then,
}

/// Step that follows once the shards have answered.
#[derive(Debug)]
pub(crate) enum Then {
    /// The request is answered.
    Ask(Asker),
    /// A process, by channel and serial number, gets this answer.
    Give(ChannelId, u64, Box<Answer>),
}

/// Turns that a connection which is to be reset waits for its turn to send, at most, among many
/// others.
const SETTLING_TURNS: u8 = 8;

/// Sources of requests that have not been answered, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have asked, each of them once.
    pub heard: VecDeque<ChannelId>,
    /// Processes of this round.
    pub now: VecDeque<Asker>,
    /// The round has begun, which it does not before the descriptors were looked at.
    pub has_begun: bool,
    /// Processes that asked later.
    pub next: VecDeque<Asker>,
    /// Value of [`Ends::begun`](crate::shard::ends::Ends::begun) when everything was read that this
    /// round is about: the number of ends that have to be done before it is answered. None: not all
    /// is read.
    pub ends: Option<u64>,
    /// Turns of the stack that what was closed may need before its port is free.
    unsettled: u8,
    /// The same for what was closed before all ends were done that the round is about: what is
    /// closed later does not prolong it. None: they are not done.
    settling: Option<u8>,
    /// Entries that wait for other shards, by number.
    pub waiting: BTreeMap<u64, Waiting>,
    /// Steps whose shards have all answered.
    pub ready: VecDeque<Then>,
    /// The next number.
    pub count: u64,
    /// For each shard: how many connections it was told to end, and of how many it has said that it
    /// did.
    pub elsewhere: BTreeMap<ShardId, (u64, u64)>,
    /// Value of [`Self::elsewhere`] when [`Self::ends`] was set.
    pub awaited: BTreeMap<ShardId, u64>,
    /// Shards that are told next, when the stack has had its turn, that connections have ended, as
    /// often as they are named.
    pub acknowledged: Vec<ShardId>,
}

impl Rounds {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let queues = self.heard.is_empty() && self.now.is_empty() && self.next.is_empty();
        queues && self.waiting.is_empty() && self.ready.is_empty()
    }

    /// There is something to do for it here, other shards apart.
    pub fn has_work(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks || !self.heard.is_empty() || !self.ready.is_empty()
    }

    /// A round is to begin, before which the descriptors have to be looked at.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// The descriptors are about to be looked at: a round of all processes that have asked by now
    /// may begin afterwards. The look finds every process that ended before they asked.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }

    /// Something was closed: the stack has its port until it has had a turn.
    pub fn unsettle(&mut self) {
        self.unsettled = SETTLING_TURNS;
    }

    /// The stack has had one; `more`: there are connections that it has not visited.
    pub fn settle(&mut self, more: bool) {
        self.unsettled = after_turn(self.unsettled, more);
        self.settling = self.settling.map(|left| after_turn(left, more));
    }

    /// A round begins, about all that is read from now on up to the marks.
    pub fn begin(&mut self) {
        (self.has_begun, self.ends, self.settling) = (true, None, None);
    }

    /// The ends that the round is about are done. Whether what was closed is gone, in other shards,
    /// too.
    pub fn is_settled(&mut self) -> bool {
        let is_done = |(shard, told): (&ShardId, &u64)| {
            self.elsewhere.get(shard).is_none_or(|(_, done)| done >= told)
        };
        *self.settling.get_or_insert(self.unsettled) == 0 && self.awaited.iter().all(is_done)
    }
}

fn after_turn(left: u8, more: bool) -> u8 {
    if more { left.saturating_sub(1) } else { 0 }
}
