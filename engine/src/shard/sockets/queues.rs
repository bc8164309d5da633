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

/// Datagram sockets with datagrams to send, or with datagrams in the stack.
#[derive(Debug, Default)]
pub(crate) struct SendQueues {
    /// Sockets with more datagrams to send than one turn of the event loop allows.
    pub to_send: VecDeque<u32>,
    /// Sockets whose send buffers contain bytes to which packets of the current turn refer.
    pub to_return: Vec<u32>,
    /// Sockets that can send again, because the queue of their device has space.
    pub to_resume: Vec<u32>,
    /// Streams with SO_TIMESTAMPING of which bytes were sent or acknowledged.
    pub progressed: Vec<u32>,
}

/// Sockets that no process has, and slots that are not free yet.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Slots of sockets that neither the stack nor a process uses any more. The slots are freed
    /// after the current turn.
    pub to_free: Vec<u32>,
    /// Connections that were removed from an accept queue and not claimed by a process. Contains
    /// the time at which to reset each, its slot and its generation.
    pub to_reset_unclaimed: VecDeque<(Instant, u32, u32)>,
    /// Sockets in flight (SCM_RIGHTS), by the time at which they are closed, and slot. The value is
    /// the last process that had the socket. `None` after that process has ended, because channel
    /// IDs are reused.
    pub to_close_in_flight: BTreeMap<(Instant, u32), Option<ChannelId>>,
    /// Freed slots whose lock a thread still holds, with the channel of the thread's process. A
    /// slot can be reused when the lock is released.
    pub to_reuse: BTreeMap<u32, ChannelId>,
}

/// Connections that can be accepted only when their first bytes have arrived (TCP_DEFER_ACCEPT).
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Generations of deferred connections, by slot and the time at which they can be accepted even
    /// without bytes. The backlog limits their number.
    pub to_accept: BTreeMap<(Instant, u32), u32>,
    /// Slots of connections that failed while their accept was deferred. The connections are reset
    /// without notifying programs, and their places in the backlog are freed.
    pub to_reset: Vec<u32>,
    /// Deferred connections to be offered to a listener in a peer shard: slot and generation of
    /// each, and its listener.
    pub to_offer: Vec<(u32, u32, ListenerName)>,
    /// Listeners, by slot and generation, for which a connection of another shard could not be
    /// queued for lack of memory.
    pub to_offer_again: Vec<(u32, u32)>,
    /// Time at which peer shards are asked to offer their connections again. `None`: no listener
    /// lacks memory.
    pub offer_again_at: Option<Instant>,
    /// Number of connections in `to_accept`, by the slot of their listener, for listeners in other
    /// shards. A missing entry means zero.
    pub by_listener: BTreeMap<u32, u32>,
}

/// An entry of the sweep's queue: a slot, the position of its send FIFO when that last changed, and
/// the time of the change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub slot: u32,
    pub position: u32,
    pub since: Instant,
}

/// Sockets that may have buffer memory, which is freed when they are idle (the sweep).
#[derive(Debug)]
pub(crate) struct Sweep {
    pub queue: VecDeque<Swept>,
    /// Slots that are in `queue`. So each slot is queued only once, even if it is reused meanwhile.
    pub queued: SlotSet,
    /// Time at which `queue` must be checked next.
    pub at: Instant,
}

/// Sockets of which programs must be notified.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    /// Sockets with further processes to notify of an event.
    pub to_tell: VecDeque<Telling>,
    /// Slots that are in the queue `to_tell`.
    pub queued: SlotSet,
    /// Slots of sockets whose TCP state must be published at the end of the current turn of the
    /// event loop.
    pub to_publish: Vec<u32>,
    /// Closed sockets for which close(2) waits until the peer has acknowledged all data
    /// (SO_LINGER).
    pub lingering: VecDeque<u32>,
    /// Time of the next check of `lingering`, if there were too many sockets for one turn of the
    /// event loop.
    pub lingering_at: Option<Instant>,
}

/// A socket for which some processes have not been notified of an event yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    pub slot: u32,
    pub generation: u32,
    pub bits: u8,
    /// Number of processes still to be notified, the first ones in the socket's `holders` list.
    /// Processes at the end of the list are notified first, because new ones are appended there,
    /// and read the state themselves. A removal never moves a process that was not notified beyond
    /// this number.
    pub left: usize,
}

impl Deferred {
    /// Returns whether the next turn of the event loop has deferred connections to handle.
    pub fn has_more(&self) -> bool {
        !self.to_reset.is_empty() || !self.to_offer.is_empty()
    }

    /// Returns the time of the earliest deadline of a deferred connection. `None`: there is none.
    pub fn next_timeout(&self) -> Option<Instant> {
        let accept = self.to_accept.first_key_value().map(|(&(until, _), _)| until);
        accept.into_iter().chain(self.offer_again_at).min()
    }
}

impl Sweep {
    pub fn new(now: Instant) -> Self {
        Self { queue: VecDeque::new(), queued: SlotSet::default(), at: now }
    }

    /// Returns the time at which the queued sockets must be checked next. `None`: no socket is
    /// queued.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.at)
    }
}

impl Tellings {
    /// Returns whether the next turn of the event loop has programs to notify.
    pub fn has_more(&self) -> bool {
        !self.to_publish.is_empty() || !self.to_tell.is_empty()
    }
}

impl Released {
    /// Returns the time of the earliest deadline of a released socket. `None`: there is none.
    pub fn next_timeout(&self) -> Option<Instant> {
        let unclaimed = self.to_reset_unclaimed.front().map(|orphan| orphan.0);
        let parked = self.to_close_in_flight.first_key_value().map(|(&(until, _), _)| until);
        unclaimed.into_iter().chain(parked).min()
    }
}
