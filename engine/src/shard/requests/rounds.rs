//! Requests that are not answered yet: what they wait for.

use std::collections::{BTreeMap, VecDeque};

use towpath_shm::control::ControlReply;
use towpath_stack::ShardId;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::query::ShardJob;
use crate::shard::processes::channels::Channels;

/// The answer to a request.
pub(crate) type Answer = Result<ControlReply, Errno>;

/// For whom a round is.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A process that has a request, by its channel and the channel's
    /// serial number.
    Process(ChannelId, u64),
    /// A process with a want, likewise.
    Want(ChannelId, u64),
    /// Another thread, for which the registry asks: `towpath ss`, for one.
    Job(ShardJob),
    /// A shard, this one perhaps, and the number under which it waits for this round among those of
    /// others.
    Shard(ShardId, u64),
}

/// An entry that waits for other shards.
#[derive(Debug)]
pub(crate) struct RoundWait {
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
    /// Number of ends that have to be done before the round is answered, as counted when all rings
    /// were read up to their marks. `None`: some are not read.
    pub ends: Option<u64>,
    /// Entries that wait for other shards, by number.
    pub waiting: BTreeMap<u64, RoundWait>,
    /// Steps whose shards have all answered.
    pub ready: VecDeque<Then>,
    /// The next number.
    pub count: u64,
    /// Number of connections that each shard was told to end when [`Self::ends`] was set.
    pub awaited: BTreeMap<ShardId, u64>,
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

    /// A round begins, about all that is read from now on up to the marks.
    pub fn begin(&mut self) {
        (self.has_begun, self.ends) = (true, None);
    }

    /// Notes that a process may have asked.
    pub fn note_request(&mut self, channels: &mut Channels, id: ChannelId) {
        let Some(attached) = channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.asks.is_heard, true) {
            self.heard.push_back(id);
        }
    }
}
