//! Requests that wait for a round, in this shard or in peer shards.

use std::collections::{BTreeMap, VecDeque};

use towpath_shm::control::ControlReply;
use towpath_stack::ShardId;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::query::ShardJob;
use crate::shard::processes::channels::Channels;

/// The result of a request.
pub(crate) type Answer = Result<ControlReply, Errno>;

/// Sender of a request that waits for a round.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A process that wrote a request to its request slot, by channel and the channel's serial
    /// number.
    Process(ChannelId, u64),
    /// A process that sent a request on its control socket, by channel and the channel's serial
    /// number.
    Want(ChannelId, u64),
    /// Another thread, through the registry; for example for `towpath ss`.
    Job(ShardJob),
    /// A shard, possibly this one, and the key of the request in that shard's `waiting`.
    Shard(ShardId, u64),
}

/// A request that waits for peer shards.
#[derive(Debug)]
pub(crate) struct RoundWait {
    /// Bit set of shards that have not answered yet.
    pub left: u16,
    pub then: Then,
}

/// Step that follows when all shards have answered.
#[derive(Debug)]
pub(crate) enum Then {
    /// Answer the request.
    Ask(Asker),
    /// Send this reply to a process, given by channel and serial number.
    Give(ChannelId, u64, Box<Answer>),
}

/// Requests that have not been answered, each queued once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have written a request, each listed once.
    pub heard: VecDeque<ChannelId>,
    /// Requests of the current round.
    pub now: VecDeque<Asker>,
    /// Whether the current round has begun. The descriptors must be polled before.
    pub has_begun: bool,
    /// Requests for the next round.
    pub next: VecDeque<Asker>,
    /// Number of ended entries (see `Ends`) that must be reached before the round is answered.
    /// Counted after all rings were read up to their marks. `None`: some rings are not read yet.
    pub ends: Option<u64>,
    /// Requests that wait for peer shards, by the number that is returned with each answer.
    pub waiting: BTreeMap<u64, RoundWait>,
    /// Steps to execute now: those of waits that all shards have answered, moved here from
    /// `waiting`.
    pub ready: VecDeque<Then>,
    /// Key of the next entry in `waiting`.
    pub count: u64,
    /// For each shard, the number of connections that it had been requested to end when
    /// [`Self::ends`] was set.
    pub awaited: BTreeMap<ShardId, u64>,
}

impl Rounds {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let queues = self.heard.is_empty() && self.now.is_empty() && self.next.is_empty();
        queues && self.waiting.is_empty() && self.ready.is_empty()
    }

    /// Returns whether this shard has work for requests, apart from waits for peer shards.
    pub fn has_work(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks || !self.heard.is_empty() || !self.ready.is_empty()
    }

    /// Returns whether a round has to begin. The descriptors must be polled before.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// Moves waiting requests to the next round, right before the descriptors are polled. The poll
    /// finds every process that ended before these requests were written.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }

    /// Begins a round, whose ends are counted later.
    pub fn begin(&mut self) {
        (self.has_begun, self.ends) = (true, None);
    }

    /// Notes that a process may have written a request.
    pub fn note_request(&mut self, channels: &mut Channels, id: ChannelId) {
        let Some(attached) = channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.asks.is_heard, true) {
            self.heard.push_back(id);
        }
    }
}
