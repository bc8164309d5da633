//! Requests that wait for a round in this shard or in peer shards. A round is one pass in which all
//! earlier work is done.

use std::collections::{BTreeMap, VecDeque};

use towpath_shm::control::ControlReply;
use towpath_stack::ShardId;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::query::ShardJob;
use crate::shard::processes::channels::Channels;

/// The result of a request: a reply, or the errno with which it fails.
pub(crate) type Answer = Result<ControlReply, Errno>;

/// Recipient of the answer to a request that waits for a round.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A process that wrote a request to its request slot in shared memory. Contains its channel,
    /// and the channel's serial number.
    Process(ChannelId, u64),
    /// A process that sent a request on its control socket. Contains its channel, and the channel's
    /// serial number.
    Want(ChannelId, u64),
    /// Another thread that sent a query through the registry, for example for `towpath ss`.
    Job(ShardJob),
    /// A shard, possibly this one. Contains the key of the request in that shard's
    /// [`Rounds::waiting`].
    Shard(ShardId, u64),
}

/// A request that waits until peer shards have finished a round.
#[derive(Debug)]
pub(crate) struct RoundWait {
    /// Bit set of the shards that have not finished yet.
    pub left: u16,
    pub then: Then,
}

/// Step to do when all shards have finished their round.
#[derive(Debug)]
pub(crate) enum Then {
    /// Answer the request.
    Ask(Asker),
    /// Send this answer to a process, which is identified by its channel and the channel's serial
    /// number.
    Give(ChannelId, u64, Box<Answer>),
}

/// Requests that have not been answered yet. Each is queued once.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have written a request to their request slots. Each is listed once.
    pub heard: VecDeque<ChannelId>,
    /// Requests that are answered at the end of the current round.
    pub now: VecDeque<Asker>,
    /// Whether the current round has begun. The descriptors must be polled before it begins.
    pub has_begun: bool,
    /// Requests that are answered at the end of the next round.
    pub next: VecDeque<Asker>,
    /// Number of finished entries in the queue [`Ends`](crate::shard::sockets::ends::Ends) with
    /// which the round ends. Set after all command rings were read up to their marks. `None`: some
    /// rings were not read that far yet.
    pub ends: Option<u64>,
    /// Requests that wait for peer shards, by number. The peers return the number with their
    /// answers.
    pub waiting: BTreeMap<u64, RoundWait>,
    /// Steps to do now, because all shards have finished; moved here from `waiting`.
    pub ready: VecDeque<Then>,
    /// Key of the next entry that is added to `waiting`.
    pub count: u64,
    /// For each peer shard, the number of connections that it had been asked to end when
    /// [`Self::ends`] was set.
    pub awaited: BTreeMap<ShardId, u64>,
}

impl Rounds {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let queues = self.heard.is_empty() && self.now.is_empty() && self.next.is_empty();
        queues && self.waiting.is_empty() && self.ready.is_empty()
    }

    /// Returns whether this shard has requests to work on. Waits for peer shards do not count.
    pub fn has_work(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks || !self.heard.is_empty() || !self.ready.is_empty()
    }

    /// Returns whether a round must begin. The descriptors must be polled before it begins.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// Moves waiting requests to the round that begins next, just before the descriptors are
    /// polled. The poll finds every process that ended before these requests were written.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }

    /// Begins a round. Its number of finished entries, [`Self::ends`], is set later.
    pub fn begin(&mut self) {
        (self.has_begun, self.ends) = (true, None);
    }

    /// Records that a process may have written a request to its request slot.
    pub fn note_request(&mut self, channels: &mut Channels, id: ChannelId) {
        let Some(attached) = channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.asks.is_heard, true) {
            self.heard.push_back(id);
        }
    }
}
