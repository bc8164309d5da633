//! Work for later: queues of sockets, named by the step that their entries wait for.
//!
//! | queue | what is in it | who does it, when |
//! |---|---|---|
//! | `to_send` | datagram sockets with more to send than a turn allows | `datagrams`, some a turn |
//! | `to_return` | datagram sockets whose FIFO lent bytes | `datagrams`, after the stack's turn |
//! | `to_resume` | datagram sockets whose device has room | `datagrams`, in the same turn |
//! | `to_accept` | connections without bytes | `deferred`, with bytes or in time |
//! | `to_offer` | those with bytes, of another shard's listener | `accept_queue`, in this turn |
//! | `to_offer_again` | listeners without memory for one of these | `accept_queue`, 0.1 s later |
//! | `to_reset` | those of them that failed meanwhile | `lifecycle`, in the same turn |
//! | `to_reset_unclaimed` | taken connections whose listener was let go | `lifecycle`, 1 s later |
//! | `to_close_in_flight` | sockets in flight without a receiver | `lifecycle`, 30 s later |
//! | `lingering` | closed sockets whose close(2) waits | `lingering`, some in each turn |
//! | `to_free` | sockets that stack and processes let go of | `lifecycle`, in the same turn |
//! | `to_reuse` | slots of buried sockets with a thread inside | `reuse`, when it leaves or dies |
//! | `to_publish` | sockets whose TCP state programs do not know yet | `events`, in the same turn |
//! | `to_tell` | sockets of whose news some holders do not know | `events`, some in each turn |
//! | `sweep` | sockets with memory, or that may have some | `sweep`, some at a time |

use std::collections::{BTreeMap, VecDeque};

use towpath_stack::ListenerName;
use towpath_tcp::Instant;

use crate::ids::ChannelId;
use crate::shard::sockets::slot_set::SlotSet;

/// Datagram sockets that send, or whose packets are on their way.
#[derive(Debug, Default)]
pub(crate) struct SendQueues {
    /// Sockets with more to send than one turn may.
    pub to_send: VecDeque<u32>,
    /// Sockets whose FIFO lends bytes to packets of this turn.
    pub to_return: Vec<u32>,
    /// Sockets whose device has room again.
    pub to_resume: Vec<u32>,
}

/// Sockets that no process holds, and slots that are not free yet.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Slots whose sockets are in the stack no more and held by no process: they are free after
    /// this turn.
    pub to_free: Vec<u32>,
    /// Connections taken off an accept queue and not claimed: the time at which they are reset,
    /// their slots and generations.
    pub to_reset_unclaimed: VecDeque<(Instant, u32, u32)>,
    /// Sockets in flight (SCM_RIGHTS), by the time at which they are closed and their slots. The
    /// channel held the socket last; `None` once that is gone, because its id is reused.
    pub to_close_in_flight: BTreeMap<(Instant, u32), Option<ChannelId>>,
    /// Slots of sockets that are gone and that a thread is in still, and the channel of the
    /// thread's process.
    pub to_reuse: BTreeMap<u32, ChannelId>,
}

/// Connections that wait for their first bytes before they come into an accept queue
/// (TCP_DEFER_ACCEPT).
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The key is the time at which a connection is accepted without bytes, and its slot; the value
    /// is its generation. The backlog bounds their number.
    pub to_accept: BTreeMap<(Instant, u32), u32>,
    /// Connections that failed while they waited: no program hears of them, and their places in the
    /// backlog are free.
    pub to_reset: Vec<u32>,
    /// Connections that waited for a listener of another shard, which are to be offered to it:
    /// slot, generation, and listener.
    pub to_offer: Vec<(u32, u32, ListenerName)>,
    /// Listeners, by slot and generation, for which there was no memory to queue a connection of
    /// another shard.
    pub to_offer_again: Vec<(u32, u32)>,
    /// Time at which they try again.
    pub offer_again_at: Option<Instant>,
    /// Connections in `to_accept`, by listener slot of another shard; absent means zero.
    pub by_listener: BTreeMap<u32, u32>,
}

/// A slot in the sweep's queue, where its transmit FIFO was when the sweep last looked, and since
/// when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub slot: u32,
    pub position: u32,
    pub since: Instant,
}

/// Slots whose sockets have FIFO memory, or may have: it is taken back when they are idle.
#[derive(Debug)]
pub(crate) struct Sweep {
    pub queue: VecDeque<Swept>,
    /// Slots in `queue`, so that each is there once, even if it is reused before its turn.
    pub queued: SlotSet,
    /// Time of the next sweep.
    pub at: Instant,
}

/// Sockets whose programs have not been told yet what happened.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    /// Sockets of which some holders have not been told.
    pub to_tell: VecDeque<Telling>,
    /// Slots in `to_tell`.
    pub queued: SlotSet,
    /// Slots whose TCP state is to be published at the end of the turn.
    pub to_publish: Vec<u32>,
    /// Closed sockets whose close(2) waits for the peer (SO_LINGER).
    pub lingering: VecDeque<u32>,
    /// Time of the next look at `lingering`, if there were too many for one turn.
    pub lingering_at: Option<Instant>,
}

/// A socket of which some holders have not been told yet what happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    pub slot: u32,
    pub generation: u32,
    pub bits: u8,
    /// Number of holders that have not been told: the first ones. The last are told first, because
    /// new holders are added at the end and look for themselves. A holder that leaves moves no
    /// other one past `left`.
    pub left: usize,
}

impl Deferred {
    /// Whether the next turn has something to do.
    pub fn has_more(&self) -> bool {
        !self.to_reset.is_empty() || !self.to_offer.is_empty()
    }

    /// Time of the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        let accept = self.to_accept.first_key_value().map(|(&(until, _), _)| until);
        accept.into_iter().chain(self.offer_again_at).min()
    }
}

impl Sweep {
    pub fn new(now: Instant) -> Self {
        Self { queue: VecDeque::new(), queued: SlotSet::default(), at: now }
    }

    /// Time of the next sweep, if there is something to look at.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.at)
    }
}

impl Tellings {
    /// Whether the next turn has something to do.
    pub fn has_more(&self) -> bool {
        !self.to_publish.is_empty() || !self.to_tell.is_empty()
    }
}

impl Released {
    /// Time of the earliest deadline.
    pub fn next_timeout(&self) -> Option<Instant> {
        let unclaimed = self.to_reset_unclaimed.front().map(|orphan| orphan.0);
        let parked = self.to_close_in_flight.first_key_value().map(|(&(until, _), _)| until);
        unclaimed.into_iter().chain(parked).min()
    }
}
