//! Queues of sockets with deferred work. "Turn" means one iteration of the shard's event loop.
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
    /// Sockets with more datagrams to send than one iteration of the event loop allows.
    pub to_send: VecDeque<u32>,
    /// Datagram sockets that have sent packets directly from their send buffers. The bytes are
    /// freed when the packets are sent.
    pub to_return: Vec<u32>,
    /// Sockets that can send again, because the transmit queue of their network device has space.
    pub to_resume: Vec<u32>,
    /// Streams with SO_TIMESTAMPING of which bytes were sent or acknowledged.
    pub progressed: Vec<u32>,
}

/// Sockets that no process has open any more, and slots that cannot be reused yet.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Slots of sockets that neither the stack nor a process uses any more. The slots are freed in
    /// the current iteration of the event loop.
    pub to_free: Vec<u32>,
    /// Connections that were removed from an accept queue, but that no process has opened: reset
    /// time, slot and generation.
    pub to_reset_unclaimed: VecDeque<(Instant, u32, u32)>,
    /// Sockets in flight (SCM_RIGHTS), by the time at which they are closed, and slot. The value is
    /// the last process that had the socket open. `None` after that process has ended, because
    /// channel IDs are reused.
    pub to_close_in_flight: BTreeMap<(Instant, u32), Option<ChannelId>>,
    /// Freed slots whose lock a program's thread still holds, with the channel of its process. The
    /// slot is reused when the thread releases the lock.
    pub to_reuse: BTreeMap<u32, ChannelId>,
}

/// Connections that can be accepted only when their first bytes have arrived (TCP_DEFER_ACCEPT).
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Connections whose accept is deferred. The key is the time at which the accept happens even
    /// if no bytes have arrived, and the slot. The value is the slot's generation.
    pub to_accept: BTreeMap<(Instant, u32), u32>,
    /// Slots of connections that failed while their accept was deferred. The connections are reset
    /// without notifying programs, and no longer count towards the backlog.
    pub to_reset: Vec<u32>,
    /// Deferred connections to be offered to a listener in another shard: slot, generation and
    /// listener.
    pub to_offer: Vec<(u32, u32, ListenerName)>,
    /// Listeners, by slot and generation, whose accept queue had no memory for a connection that
    /// another shard has offered.
    pub to_offer_again: Vec<(u32, u32)>,
    /// Time at which other shards are asked to offer these connections again. `None` if no listener
    /// lacks memory.
    pub offer_again_at: Option<Instant>,
    /// For each slot of a listener in another shard, the number of its connections in `to_accept`.
    /// A missing entry means zero.
    pub by_listener: BTreeMap<u32, u32>,
}

/// State of the check that frees memory of an idle socket. Contains the socket's slot, the last
/// observed position of its send FIFO, and the time when this position last changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub slot: u32,
    pub position: u32,
    pub since: Instant,
}

/// Sockets that have buffer memory, and are checked periodically to free the memory of idle sockets
/// (the sweep).
#[derive(Debug)]
pub(crate) struct Sweep {
    pub queue: VecDeque<Swept>,
    /// Slots that are in `queue`, so that no slot is queued twice.
    pub queued: SlotSet,
    /// Time at which `queue` must be checked next.
    pub at: Instant,
}

/// Sockets of which programs must be notified.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    /// Sockets with further processes to notify of an event.
    pub to_tell: VecDeque<Telling>,
    /// Slots in the queue of sockets about which processes must be notified.
    pub queued: SlotSet,
    /// Slots of sockets with a new TCP state. The state is written to shared memory at the end of
    /// the current iteration of the event loop.
    pub to_publish: Vec<u32>,
    /// Closed sockets with SO_LINGER: close(2) waits until the peer has acknowledged all data.
    pub lingering: VecDeque<u32>,
    /// Time of the next check of `lingering`, if the previous one was stopped early to not delay
    /// packets.
    pub lingering_at: Option<Instant>,
}

/// A socket for which some processes have not been notified of an event yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    pub slot: u32,
    pub generation: u32,
    pub bits: u8,
    /// Number of processes still to be notified: the first `left` ones in the socket's `holders`
    /// list. Notification proceeds from the end of the list, where new processes are added, which
    /// read the state themselves. If a process is removed, the ones still to be notified stay among
    /// the first `left`.
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
