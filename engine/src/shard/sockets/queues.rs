//! Queues of sockets with deferred work, named after the step that handles the entries.
//!
//! | queue | entries | handled by, when |
//! |---|---|---|
//! | `to_send` | datagram sockets with more to send than a turn allows | `datagrams`, some a turn |
//! | `to_return` | datagram sockets whose FIFO lent bytes | `datagrams`, after the stack's turn |
//! | `to_resume` | datagram sockets whose device has room | `datagrams`, in the same turn |
//! | `to_accept` | deferred connections | `deferred`, on the first bytes or a timeout |
//! | `to_offer` | connections for a peer shard's listener | `accept_queue`, in this turn |
//! | `to_offer_again` | listeners that had no memory for one | `accept_queue`, 0.1 s later |
//! | `to_reset` | deferred connections that failed | `lifecycle`, in the same turn |
//! | `to_reset_unclaimed` | popped connections that are not claimed | `lifecycle`, 1 s later |
//! | `to_close_in_flight` | sockets in flight without a receiver | `lifecycle`, 30 s later |
//! | `lingering` | closed sockets whose close(2) waits | `lingering`, some in each turn |
//! | `to_free` | sockets that stack and processes released | `lifecycle`, in the same turn |
//! | `to_reuse` | freed slots whose lock a thread still holds | `reuse`, when it unlocks or dies |
//! | `to_publish` | sockets with a new TCP state | `events`, in the same turn |
//! | `to_tell` | sockets with holders to be notified | `events`, some in each turn |
//! | `sweep` | sockets with FIFO memory | `sweep`, some at a time |

use std::collections::{BTreeMap, VecDeque};

use towpath_stack::ListenerName;
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::shard::sockets::slot_set::SlotSet;

/// Datagram sockets that send, or whose packets are in the stack's turn.
#[derive(Debug, Default)]
pub(crate) struct SendQueues {
    /// Sockets with more to send than one turn allows.
    pub to_send: VecDeque<u32>,
    /// Sockets whose FIFO lends bytes to packets of this turn.
    pub to_return: Vec<u32>,
    /// Sockets whose device has room again.
    pub to_resume: Vec<u32>,
    /// Streams with SO_TIMESTAMPING that sent bytes, or whose bytes were acknowledged.
    pub progressed: Vec<u32>,
}

/// Sockets that no process holds, and slots that are not free yet.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Slots of sockets that neither the stack nor a process has any more, to be freed after this
    /// turn.
    pub to_free: Vec<u32>,
    /// Connections popped from an accept queue and not claimed: time of their reset, slot and
    /// generation.
    pub to_reset_unclaimed: VecDeque<(Instant, u32, u32)>,
    /// Sockets in flight (SCM_RIGHTS), by the time at which they are closed and their slot. The
    /// value is their last holder; `None` after it has ended, because channel ids are reused.
    pub to_close_in_flight: BTreeMap<(Instant, u32), Option<ChannelId>>,
    /// Freed slots whose lock a thread still holds, with the channel of the thread's process.
    pub to_reuse: BTreeMap<u32, ChannelId>,
}

/// Connections whose accept is deferred until their first bytes arrive (TCP_DEFER_ACCEPT).
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Generations of deferred connections, by the time at which they are accepted without bytes
    /// and their slot. The backlog bounds their number.
    pub to_accept: BTreeMap<(Instant, u32), u32>,
    /// Connections that failed while deferred. We reset them and free their places in the backlog
    /// without notifying programs.
    pub to_reset: Vec<u32>,
    /// Deferred connections to be offered to a peer shard's listener: slot, generation, and
    /// listener.
    pub to_offer: Vec<(u32, u32, ListenerName)>,
    /// Listeners, by slot and generation, for which there was no memory to queue a connection of
    /// another shard.
    pub to_offer_again: Vec<(u32, u32)>,
    /// Time at which peer shards are requested to offer connections again.
    pub offer_again_at: Option<Instant>,
    /// Connections in `to_accept`, by listener slot of another shard; absent means zero.
    pub by_listener: BTreeMap<u32, u32>,
}

/// A slot in the sweep's queue, the position of its transmit FIFO at the last change, and that
/// time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub slot: u32,
    pub position: u32,
    pub since: Instant,
}

/// Slots whose sockets may have FIFO memory, which is taken back when they are idle.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub queue: VecDeque<Swept>,
    /// Slots in `queue`, so that each is there once, even if it is reused before its turn.
    pub queued: SlotSet,
    /// Time of the next sweep.
    pub at: Instant,
}

/// Sockets whose programs have to be notified.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    /// Sockets with more holders to notify.
    pub to_tell: VecDeque<Telling>,
    /// Slots in `to_tell`.
    pub queued: SlotSet,
    /// Slots whose TCP state is to be published at the end of the turn.
    pub to_publish: Vec<u32>,
    /// Closed sockets whose close(2) waits for the peer (SO_LINGER).
    pub lingering: VecDeque<u32>,
    /// Time of the next check of `lingering`, if there were too many for one turn.
    pub lingering_at: Option<Instant>,
}

/// A socket with holders that have not been notified of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    pub slot: u32,
    pub generation: u32,
    pub bits: u8,
    /// Number of holders still to be notified: the first `left` ones. Later ones are notified
    /// first, because new holders are appended and read the state themselves. Removing a holder
    /// never moves an unnotified one past `left`.
    pub left: usize,
}

impl Deferred {
    /// Returns whether the next turn has work.
    pub fn has_more(&self) -> bool {
        !self.to_reset.is_empty() || !self.to_offer.is_empty()
    }

    /// Returns the time of the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        let accept = self.to_accept.first_key_value().map(|(&(until, _), _)| until);
        accept.into_iter().chain(self.offer_again_at).min()
    }
}

impl Sweep {
    pub fn new(now: Instant) -> Self {
        Self { queue: VecDeque::new(), queued: SlotSet::default(), at: now }
    }

    /// Returns the time of the next sweep, if sockets are queued.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.at)
    }
}

impl Tellings {
    /// Returns whether the next turn has work.
    pub fn has_more(&self) -> bool {
        !self.to_publish.is_empty() || !self.to_tell.is_empty()
    }
}

impl Released {
    /// Returns the time of the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        let unclaimed = self.to_reset_unclaimed.front().map(|orphan| orphan.0);
        let parked = self.to_close_in_flight.first_key_value().map(|(&(until, _), _)| until);
        unclaimed.into_iter().chain(parked).min()
    }
}
