//! Requests that wait until earlier work is done, in this shard or in peer shards. A round is a
//! pass in which all earlier work is done.

use std::collections::{BTreeMap, VecDeque};

use towpath_shm::control::ControlReply;
use towpath_stack::ShardId;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::query::ShardJob;
use crate::shard::processes::channels::Channels;

/// The result of a request: a reply, or the errno with which it fails.
pub(crate) type Answer = Result<ControlReply, Errno>;

/// Recipient of the answer to a request that waits until earlier work is done.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A process that has written a request to its request slot in shared memory: its channel ID,
    /// and the channel's serial number.
    Process(ChannelId, u64),
    /// A process that has sent a request on its control socket: its channel ID, and the channel's
    /// serial number.
    Want(ChannelId, u64),
    /// A thread of the engine's process that has sent a query through the registry (process
    /// manager), for example for `towpath ss`.
    Job(ShardJob),
    /// A shard (event loop), possibly this one, with the key of the request in its
    /// [`Rounds::waiting`].
    Shard(ShardId, u64),
}

/// A request that waits until peer shards (event loops) have finished earlier work.
#[derive(Debug)]
pub(crate) struct RoundWait {
    /// Bit set of the shards that have not finished yet.
    pub left: u16,
    pub then: Then,
}

/// Step to execute when all shards (event loops) have finished earlier work.
#[derive(Debug)]
pub(crate) enum Then {
    /// Execute and answer the request.
    Ask(Asker),
    /// Send this answer to a process, which is given by its channel ID and the channel's serial
    /// number.
    Give(ChannelId, u64, Box<Answer>),
}

/// Requests that are not answered yet. Each is in one queue.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Processes that may have written a request to their request slot. Each is listed once.
    pub heard: VecDeque<ChannelId>,
    /// Requests that are answered at the end of the current round (pass over earlier work).
    pub now: VecDeque<Asker>,
    /// Whether the current round (pass over earlier work) has begun. Before it begins, the
    /// descriptors must be polled.
    pub has_begun: bool,
    /// Requests that are answered at the end of the next round (pass over earlier work).
    pub next: VecDeque<Asker>,
    /// Number of finished entries in the queue [`Ends`](crate::shard::sockets::ends::Ends) at which
    /// the round (pass over earlier work) ends. `None` until all command rings are read up to the
    /// positions recorded at its beginning.
    pub ends: Option<u64>,
    /// Requests that wait for peer shards (event loops), by number. The peer shards return the
    /// number in their replies.
    pub waiting: BTreeMap<u64, RoundWait>,
    /// Steps to execute now, because all shards (event loops) have finished; moved here from
    /// `waiting`.
    pub ready: VecDeque<Then>,
    /// Key for the next entry of `waiting`.
    pub count: u64,
    /// For each peer shard (event loop), the number of connections that it had been asked to close
    /// when [`Self::ends`] was set.
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

    /// Returns whether a round (pass over earlier work) must begin. Before it begins, the
    /// descriptors must be polled.
    pub fn is_due(&self) -> bool {
        let asks = !self.now.is_empty() || !self.next.is_empty();
        asks && !self.has_begun
    }

    /// Moves waiting requests to the next round, just before the descriptors are polled. The poll
    /// detects all processes that ended before these requests were written.
    pub fn gather(&mut self) {
        if !self.has_begun {
            self.now.append(&mut self.next);
        }
    }

    /// Begins a round (pass over earlier work). [`Self::ends`], with which it ends, is set later.
    pub fn begin(&mut self) {
        (self.has_begun, self.ends) = (true, None);
    }

    /// Records that a process may have written a request to its request slot, so that it is read.
    pub fn note_request(&mut self, channels: &mut Channels, id: ChannelId) {
        let Some(attached) = channels.get_mut(id) else { return };
        if !std::mem::replace(&mut attached.asks.is_heard, true) {
            self.heard.push_back(id);
        }
    }
}
