//! Sockets of programs: their slots in shared memory, and the corresponding sockets of the stack.

mod accept_queue;
pub(crate) mod awaiting_memory;
pub(crate) mod children;
mod closing;
pub(crate) mod connecting;
pub(crate) mod datagrams;
mod deferred;
mod disconnect;
pub(crate) mod ends;
mod events;
mod feeding;
pub(crate) mod host;
mod in_flight;
mod lifecycle;
mod lingering;
pub(crate) mod linux;
pub(crate) mod option_bits;
pub(crate) mod options;
mod packets;
pub(crate) mod payers;
pub(crate) mod private;
pub(crate) mod queues;
mod reuse;
pub(crate) mod slot_set;
pub(crate) mod slots;
mod stamps;
pub(crate) mod sweep;
pub(crate) mod tcp_info;
mod transfer;
mod urgent;

use towpath_ring::Windows;
use towpath_stack::ShardId;
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::Buffers;
use crate::report::EngineCounters;
use crate::shard::peers::place::ShardPlace;
use crate::shard::sockets::awaiting_memory::AwaitingMemory;
use crate::shard::sockets::ends::Ends;
use crate::shard::sockets::options::filter_room::Filters;
use crate::shard::sockets::payers::Payers;
use crate::shard::sockets::private::PrivateTables;
use crate::shard::sockets::queues::{Deferred, Released, SendQueues, Sweep, Tellings};
use crate::shard::sockets::slots::Slots;

/// The sockets of a shard. Implements `Host`, the trait with which the stack calls back.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub place: ShardPlace,
    /// Allocator of the memory for socket buffers (FIFOs), with this shard's limit.
    pub windows: Windows,
    pub slots: Slots,
    pub buffers: Buffers,
    pub counters: EngineCounters,
    /// Time at which the current iteration of the event loop began.
    pub now: Instant,
    /// Time at which the current turn of the event loop began, as Unix time in nanoseconds.
    pub unix_ns: u64,
    pub deferred: Deferred,
    pub sweep: Sweep,
    /// Sockets whose programs wait for send buffer memory.
    pub starved: AwaitingMemory,
    pub telling: Tellings,
    pub outgoing: SendQueues,
    pub released: Released,
    pub filters: Filters,
    pub ends: Ends,
    /// Messages of peer shards (event loops) that arrived in the current iteration of the event
    /// loop.
    pub inbox: Vec<(ShardId, [u64; 3])>,
    /// Slots of sockets that have received urgent data, so that their owners must get SIGURG.
    pub to_signal: Vec<u32>,
    pub payers: Payers,
    pub private: PrivateTables,
}

impl Sockets {
    /// Creates an empty table of sockets, with the current time of the clock.
    pub fn new(
        place: ShardPlace,
        windows: Windows,
        slots: Slots,
        buffers: Buffers,
        clock: &Clock,
    ) -> Self {
        let now = clock.now();
        Self {
            place,
            windows,
            slots,
            buffers,
            counters: EngineCounters::default(),
            now,
            unix_ns: clock.unix_ns(),
            deferred: Deferred::default(),
            sweep: Sweep::new(now),
            starved: AwaitingMemory::new(now),
            telling: Tellings::default(),
            outgoing: SendQueues::default(),
            released: Released::default(),
            filters: Filters::default(),
            ends: Ends::default(),
            inbox: Vec::new(),
            to_signal: Vec::new(),
            payers: Payers::default(),
            private: PrivateTables::default(),
        }
    }

    /// Reads the clock at the start of a turn of the event loop. Returns the time.
    pub fn read_clocks(&mut self, clock: &Clock) -> Instant {
        self.now = clock.now();
        self.unix_ns = clock.unix_ns();
        self.windows.set_time(self.unix_ns);
        self.now
    }

    /// Returns whether the next turn of the event loop has work for sockets.
    pub fn has_more(&self) -> bool {
        let waits = self.deferred.has_more() || self.telling.has_more() || self.ends.has_more();
        let released = !self.released.to_free.is_empty() || !self.to_signal.is_empty();
        let events = self.slots.has_events() || self.private.has_events();
        waits || released || events || !self.inbox.is_empty()
    }

    /// Returns the time of the earliest deadline of a socket. `None`: there is none.
    pub fn next_timeout(&self) -> Option<Instant> {
        let own = [
            self.starved.next(),
            self.telling.lingering_at,
            self.deferred.next_timeout(),
            self.sweep.next_timeout(),
            self.released.next_timeout(),
            self.private.next_timeout(),
            (!self.outgoing.to_send.is_empty()).then_some(self.now),
        ];
        own.into_iter().flatten().min()
    }
}
