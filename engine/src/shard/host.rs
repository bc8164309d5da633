//! Events and questions of the stack: its sockets are the slots of programs.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use towpath_ring::{EngineRecv, EngineSend, Payload, Windows, take_tx_wanted};
use towpath_shm::layout::{
    AcceptRecord, DatagramHeader, Kind, Plain, RawAddr, event, flags, option_bit,
};
use towpath_stack::{
    ChildElsewhere, DatagramError, DatagramMeta, EchoMeta, Elsewhere, ListenerName, ListenerNote,
    PendingId, ShardId, SocketError, SocketEvent, SocketId, Stack,
};
use towpath_tcp::Instant;

use crate::clock::Clock;
use crate::config::Buffers;
use crate::errno::{ECONNRESET, EPIPE, Errno};
use crate::ids::Family;
use crate::report::EngineCounters;
use crate::shard::channels::Channels;
use crate::shard::holds::Holds;
use crate::shard::linux::state;
use crate::shard::option_bits::has_bit;
use crate::shard::owners::Owners;
use crate::shard::place::Place;
use crate::shard::slots::{
    self, AF_INET6, Child, Holders, Rare, Slots, UNPACED, inherit, present, present_on,
};

/// Reports in one socket's error queue: each has up to 1232 bytes of a datagram.
pub(crate) const ERRORS_MAX: usize = 64;

/// When a connection that waited found no memory for its place in the accept queue.
const DEFERRAL_RETRY: Duration = Duration::from_millis(100);

/// A slot in the sweep's queue, where its transmit FIFO was when the sweep last looked, and since
/// when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub slot: u32,
    pub position: u32,
    pub since: Instant,
}

/// Everything of the engine that is not the stack.
#[derive(Debug)]
pub(crate) struct Host {
    pub place: Place,
    /// The shard's part of the region's FIFO memory, and how much of it there may be.
    pub windows: Windows,
    pub slots: Slots,
    pub channels: Channels,
    /// Processes that may get SIGURG.
    pub owners: Owners,
    /// Holds of all processes together: each socket counts as often as it has holders.
    pub holds: usize,
    pub buffers: Buffers,
    pub counters: EngineCounters,
    /// When this turn began.
    pub now: Instant,
    /// When this turn began, as Unix time in ns.
    pub unix_ns: u64,
    /// Slots whose sockets have FIFO memory, or may have: it is taken back when they are idle.
    pub to_sweep: VecDeque<Swept>,
    /// The slots in `to_sweep`, so that each stands there once, also when it is used again before
    /// its turn.
    pub in_sweep: Holds,
    /// The slots in [`Shard::to_tell`](crate::shard::Shard::to_tell).
    pub in_telling: Holds,
    /// Slots whose TCP state is to be published at the end of the turn.
    pub to_publish: Vec<u32>,
    /// Datagram sockets whose device has taken what they waited for.
    pub to_resume: Vec<u32>,
    /// Slots whose sockets are in the stack no more and held by no process: they are free after
    /// this turn.
    pub to_bury: Vec<u32>,
    /// Connections that wait for their first bytes before they come into an accept queue
    /// (TCP_DEFER_ACCEPT). The key is the time at which they come there without any, and their
    /// slot; the value is their generation. The backlog bounds their number.
    pub to_accept: BTreeMap<(Instant, u32), u32>,
    /// Connections that failed while they waited so: no program hears of them, and their places in
    /// the backlog are free.
    pub to_reset_failed: Vec<u32>,
    /// Connections that waited so for a listener of another shard, which are to be offered to it:
    /// slot, generation, and listener.
    pub to_offer: Vec<(u32, u32, ListenerName)>,
    /// Listeners, by slot and generation, for which there was no memory to queue a connection of
    /// another shard, and when they try again.
    pub to_offer_again: Vec<(u32, u32)>,
    pub offer_again_at: Option<Instant>,
    /// How many do, by the listener's slot. None that has none.
    pub deferred_for: BTreeMap<u32, u32>,
    /// Words of other shards in this turn.
    pub told: Vec<(ShardId, [u64; 3])>,
}

/// The stack's share of an idle connection's memory (`core/stack/src/socket.rs` has the table).
const _: () = assert!(Stack::<Host>::STREAM_BYTES <= 520 && Stack::<Host>::SOCKET_BYTES <= 40);

impl Host {
    /// A host without sockets, at the clock's time.
    pub fn new(
        place: Place,
        windows: Windows,
        slots: Slots,
        buffers: Buffers,
        clock: &Clock,
    ) -> Self {
        Self {
            place,
            windows,
            slots,
            channels: Channels::default(),
            owners: Owners::default(),
            holds: 0,
            buffers,
            counters: EngineCounters::default(),
            now: clock.now(),
            unix_ns: clock.unix_ns(),
            to_sweep: VecDeque::new(),
            in_sweep: Holds::default(),
            in_telling: Holds::default(),
            to_publish: Vec::new(),
            to_resume: Vec::new(),
            to_bury: Vec::new(),
            to_accept: BTreeMap::new(),
            to_reset_failed: Vec::new(),
            to_offer: Vec::new(),
            to_offer_again: Vec::new(),
            offer_again_at: None,
            deferred_for: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// A turn of the stack alone, between two turns of the shard, has left something to be done.
    pub fn has_more(&self) -> bool {
        let sockets = [&self.to_bury, &self.to_publish, &self.to_reset_failed];
        let more = sockets.iter().any(|list| !list.is_empty());
        more || !self.told.is_empty() || !self.to_offer.is_empty()
    }

    /// Both ends of a stream's FIFOs. Transmit memory is given at once when there is plenty, which
    /// spares the program a round trip with its first write. `near`: the peer is this host itself
    /// (loopback).
    pub fn stream_buffers(&mut self, slot: u32, near: bool) -> (EngineRecv, EngineSend) {
        let (rcvbuf, sndbuf) = self
            .slots
            .get(slot)
            .map_or((0, 0), |entry| (entry.rare().recv_fixed(), entry.rare().sndbuf));
        let buffers = &self.buffers;
        let (rx, rx_max) = fixed_or(rcvbuf, buffers.recv, buffers.recv_max);
        let (tx, tx_max) = fixed_or(sndbuf, buffers.send, buffers.send_max);
        let recv = EngineRecv::new(&self.windows, slot, rx, rx_max);
        let mut send = EngineSend::new(&self.windows, slot, tx, tx_max);
        if near {
            // Linux makes room for twenty segments, as large as loopback's, when a connection
            // begins: programs write to themselves before they read.
            send.set_generous(true);
        }
        send.set_scarce(has_bit(self.slots.shared(slot), option_bit::NOTSENT_LOWAT));
        if self.windows.is_ample() {
            // A fresh slot: nobody holds its lock. If not, the program asks.
            send.attach();
            self.watch_memory(slot);
        }
        (recv, send)
    }

    /// Lets the sweep look at the slot.
    pub fn watch_memory(&mut self, slot: u32) {
        if let Some(entry) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut entry.swept, true)
            && self.in_sweep.insert(slot)
        {
            self.to_sweep.push_back(Swept { slot, position: 0, since: self.now });
        }
    }

    /// A socket's error, which its next call gives.
    pub fn set_error(&mut self, slot: u32, errno: Errno) {
        self.slots.shared(slot).error.store(errno.0, Release);
        self.slots.post(slot, event::ERROR);
    }

    fn on_error(&mut self, slot: u32, error: SocketError) {
        let datagram = self.slots.get(slot).is_some_and(crate::shard::slots::Entry::is_datagram);
        if datagram {
            self.set_error(slot, error.into());
        } else {
            let seen = self.slots.get(slot).map_or(0, |entry| entry.flags);
            let half_closed = seen & (flags::RX_EOF | flags::TX_CLOSED) == flags::RX_EOF;
            // As Linux (tcp_reset): in CLOSE-WAIT nothing more can be read, so the error is the
            // writer's, EPIPE.
            let errno = match error {
                SocketError::Reset if half_closed => EPIPE,
                error => Errno::from(error).0,
            };
            self.slots.fail(slot, errno);
        }
    }

    fn on_closed(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else {
            return;
        };
        if entry.former > 0 {
            entry.former -= 1;
            return;
        }
        entry.id = None;
        if entry.closing || entry.holders.is_empty() {
            self.to_bury.push(slot);
        } else {
            // The socket broke the rules and was reset, but the program still has its descriptor.
            self.slots.fail(slot, ECONNRESET);
        }
    }

    fn new_child(
        &mut self,
        parent: &Parent,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<u32> {
        let Parent { family, rcvbuf, sndbuf, window_clamp, device, max_pacing_rate, .. } = *parent;
        let slot = self.slots.allocate(Kind::Stream, family, 6)?;
        inherit(self.slots.shared(slot), self.slots.shared(parent.slot));
        let shared = self.slots.shared(slot);
        shared.local.store(&present(family, local));
        shared.remote.store(&present(family, remote));
        shared.state.store(state::ESTABLISHED, Relaxed);
        let entry = self.slots.get_mut(slot)?;
        entry.id = Some(child);
        entry.holders = Holders::Unclaimed(parent.slot, parent.generation);
        let set = (rcvbuf, sndbuf, window_clamp, device) != (0, 0, 0, 0);
        if set || max_pacing_rate != UNPACED {
            entry.set_rare(|rare| {
                (rare.rcvbuf, rare.sndbuf, rare.device) = (rcvbuf, sndbuf, device);
                (rare.window_clamp, rare.max_pacing_rate) = (window_clamp, max_pacing_rate);
            });
        }
        let near = if is_near(local, remote) { flags::NEAR } else { 0 };
        self.slots.set_flags(slot, flags::CONNECTED | flags::BOUND | near, 0);
        Some(slot)
    }

    /// A connection with its buffers.
    fn make_child(
        &mut self,
        parent: &Parent,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, EngineRecv, EngineSend)> {
        let slot = self.new_child(parent, child, local, remote)?;
        let (recv, send) = self.stream_buffers(slot, is_near(local, remote));
        // Before the record: the program that pops it uses the slot at once.
        self.slots.publish(slot);
        Some((slot, recv, send))
    }

    /// Lets a fresh connection wait for its first bytes if the listener wants that. False: it is to
    /// be accepted at once.
    fn defer(&mut self, parent: &Parent, slot: u32, elsewhere: Option<ListenerName>) -> bool {
        let seconds = parent.defer_accept_s;
        let until = self.now + Duration::from_secs(seconds.into());
        let Some(entry) = self.slots.get_mut(slot).filter(|_| seconds > 0) else { return false };
        entry.set_rare(|rare| (rare.deferred, rare.to_offer) = (Some(until), elsewhere));
        self.to_accept.insert((until, slot), entry.generation);
        if elsewhere.is_some() {
            *self.deferred_for.entry(parent.slot).or_default() += 1;
        }
        true
    }

    /// The connection does not wait for its first bytes any more. False: it did not.
    pub fn end_deferral(&mut self, slot: u32) -> bool {
        let Some(entry) = self.slots.get_mut(slot) else { return false };
        let Some(until) = entry.rare().deferred else { return false };
        let is_elsewhere = entry.rare().to_offer.is_some();
        entry.set_rare(|rare| (rare.deferred, rare.to_offer) = (None, None));
        if let Some((listener, _)) = entry.unclaimed().filter(|_| is_elsewhere)
            && let Entry::Occupied(mut count) = self.deferred_for.entry(listener)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.to_accept.remove(&(until, slot)).is_some()
    }

    /// Something came on a connection: if it waited for that it is to be accepted now.
    fn arrived(&mut self, slot: u32) {
        if self.slots.get(slot).is_some_and(|entry| entry.rare().deferred.is_some()) {
            self.accept_deferred(slot);
        }
    }

    /// Puts a connection that waited into the accept queue.
    fn accept_deferred(&mut self, slot: u32) {
        let to_offer = self.slots.get(slot).and_then(|entry| entry.rare().to_offer);
        if !self.end_deferral(slot) {
            return;
        }
        let Some(entry) = self.slots.get(slot) else { return };
        let (generation, parent) = (entry.generation, entry.unclaimed());
        if let Some(listener) = to_offer {
            return self.to_offer.push((slot, generation, listener));
        }
        let Some((listener, _)) =
            parent.filter(|&(slot, generation)| self.slots.find(slot, generation).is_some())
        else {
            return;
        };
        let shared = self.slots.shared(slot);
        let ends = (shared.local.load(), shared.remote.load());
        if !self.enqueue(listener, (slot, generation), ends)
            && let Some(entry) = self.slots.get_mut(slot)
        {
            // There is a place for it in the backlog, but no memory at the moment.
            let again = self.now + DEFERRAL_RETRY;
            entry.set_rare(|rare| rare.deferred = Some(again));
            self.to_accept.insert((again, slot), generation);
        }
    }

    /// Accepts connections without bytes that have waited long enough.
    pub fn accept_long_deferred(&mut self) {
        while let Some(entry) = self.to_accept.first_entry()
            && entry.key().0 <= self.now
        {
            let slot = entry.key().1;
            self.accept_deferred(slot);
        }
    }

    /// Puts a connection, by slot and generation, into the accept queue, with its ends.
    fn enqueue(
        &mut self,
        listener: u32,
        (slot, generation): (u32, u32),
        (local, remote): (RawAddr, RawAddr),
    ) -> bool {
        let record = AcceptRecord { slot, generation, remote, local, reserved: 0 };
        let nothing = Payload::new(&[], towpath_shm::Fragments::empty());
        let Some(owned) = self.slots.get_mut(listener).and_then(|entry| entry.owned.as_deref_mut())
        else {
            return false;
        };
        let Some(rx) = &mut owned.rx else {
            return false;
        };
        if !rx.push_record(record.as_bytes(), &nothing) {
            return false;
        }
        let end = rx.tail();
        owned.children.push_back(Child { slot, generation, end, orphaned: false });
        self.watch_memory(listener);
        self.slots.post(listener, event::RX);
        true
    }

    fn recv_room_of(&self, rcvbuf: u32) -> u32 {
        let (first, _) = fixed_or(rcvbuf, self.buffers.recv, self.buffers.recv_max);
        first.min(u32::try_from(self.windows.receivable_first()).unwrap_or(u32::MAX))
    }
}

/// Properties that a listener passes on to its connections, apart from those in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent {
    pub slot: u32,
    pub generation: u32,
    pub family: u32,
    pub backlog: u32,
    pub rcvbuf: u32,
    pub sndbuf: u32,
    pub window_clamp: u32,
    pub device: u32,
    pub defer_accept_s: u32,
    pub max_pacing_rate: u64,
}

impl Parent {
    pub fn of_entry(slot: u32, entry: &slots::Entry) -> Self {
        let Rare { rcvbuf, sndbuf, window_clamp, device, defer_accept_s, .. } = *entry.rare();
        let max_pacing_rate = entry.rare().max_pacing_rate;
        let backlog = entry.owned.as_deref().map_or(0, |owned| owned.backlog);
        let (generation, family) = (entry.generation, entry.family);
        Self {
            slot,
            generation,
            family,
            backlog,
            rcvbuf,
            sndbuf,
            window_clamp,
            device,
            defer_accept_s,
            max_pacing_rate,
        }
    }

    /// The listener as the other shards know it.
    pub fn note(&self) -> ListenerNote {
        let Self { slot: _, generation, family, backlog, .. } = *self;
        let Self { rcvbuf, sndbuf, window_clamp, device, defer_accept_s, .. } = *self;
        let (rate, rate_high) = (self.max_pacing_rate as u32, (self.max_pacing_rate >> 32) as u32);
        [
            generation,
            family,
            backlog,
            rcvbuf,
            sndbuf,
            window_clamp,
            device,
            defer_accept_s,
            rate,
            rate_high,
        ]
    }

    fn of(listener: &Elsewhere) -> Self {
        let [
            generation,
            family,
            backlog,
            rcvbuf,
            sndbuf,
            window_clamp,
            device,
            defer_accept_s,
            rate,
            rate_high,
        ] = listener.note;
        Self {
            slot: listener.user,
            generation,
            family,
            backlog,
            rcvbuf,
            sndbuf,
            window_clamp,
            device,
            defer_accept_s,
            max_pacing_rate: u64::from(rate_high) << 32 | u64::from(rate),
        }
    }
}

impl towpath_stack::Host for Host {
    type Recv = EngineRecv;
    type Send = EngineSend;

    fn recv_room(&self, listener: u32) -> u32 {
        self.recv_room_of(self.slots.get(listener).map_or(0, |entry| entry.rare().rcvbuf))
    }

    fn recv_room_for(&self, listener: &Elsewhere) -> u32 {
        self.recv_room_of(Parent::of(listener).rcvbuf)
    }

    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, EngineRecv, EngineSend)> {
        let parent = Parent::of_entry(listener, self.slots.get(listener)?);
        let (slot, recv, send) = self.make_child(&parent, child, local, remote)?;
        if self.defer(&parent, slot, None) {
            return Some((slot, recv, send));
        }
        let shared = self.slots.shared(slot);
        let ends = (shared.local.load(), shared.remote.load());
        let generation = self.slots.get(slot).map_or(0, |entry| entry.generation);
        if !self.enqueue(listener, (slot, generation), ends) {
            drop((recv, send));
            self.slots.release(slot);
            return None;
        }
        Some((slot, recv, send))
    }

    fn accept_for(
        &mut self,
        listener: &Elsewhere,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ChildElsewhere<EngineRecv, EngineSend>> {
        let parent = Parent::of(listener);
        let deferred = self.deferred_for.get(&parent.slot).copied().unwrap_or(0);
        if deferred > parent.backlog {
            return None;
        }
        let (user, recv, send) = self.make_child(&parent, child, local, remote)?;
        let tag = self.slots.get(user).map_or(0, |entry| entry.generation);
        let waits = self.defer(&parent, user, Some(listener.name));
        Some(ChildElsewhere { user, tag, recv, send, waits })
    }

    fn enqueue(
        &mut self,
        listener: u32,
        child: (u32, u32),
        local: SocketAddr,
        remote: SocketAddr,
    ) -> bool {
        let Some(entry) = self.slots.get(listener) else { return false };
        let ends = (present(entry.family, local), present(entry.family, remote));
        let generation = entry.generation;
        let is_queued = self.enqueue(listener, child, ends);
        if !is_queued {
            self.to_offer_again.push((listener, generation));
            self.offer_again_at.get_or_insert(self.now + DEFERRAL_RETRY);
        }
        is_queued
    }

    fn listener_gone(&mut self, listener: &Elsewhere) {
        let parent = Parent::of(listener);
        if !self.deferred_for.contains_key(&parent.slot) {
            return;
        }
        self.counters.work(self.to_accept.len() / 64);
        let unclaimed = |slot: u32| self.slots.get(slot).and_then(|entry| entry.unclaimed());
        let its = (parent.slot, parent.generation);
        let deferred = self.to_accept.keys().map(|(_, slot)| *slot);
        let deferred: Vec<u32> = deferred.filter(|slot| unclaimed(*slot) == Some(its)).collect();
        for slot in deferred {
            self.end_deferral(slot);
            self.to_reset_failed.push(slot);
        }
    }

    fn refused(&mut self, child: u32, tag: u32) {
        let Some(entry) = self.slots.find(child, tag) else { return };
        entry.closing = true;
        if entry.id.is_none() {
            self.to_bury.push(child);
        }
    }

    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        self.told.push((from, words));
    }

    fn syn(&mut self, _: PendingId, _: SocketAddr, _: SocketAddr) {
        self.counters.unexpected += 1;
    }

    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        let arrived_ago = self.now.since(meta.arrival).as_nanos() as u64;
        let known = meta.arrival != Instant::ZERO;
        let unix_ns = self.unix_ns.saturating_sub(if known { arrived_ago } else { 0 });
        let Some(entry) = self.slots.get_mut(user) else {
            return false;
        };
        let (family, owned) = (entry.family, entry.owned.as_deref_mut());
        let Some((rx, drops)) =
            owned.and_then(|owned| owned.rx.as_mut().zip(Some(&mut owned.drops)))
        else {
            return false;
        };
        let header = DatagramHeader {
            len: payload.len(),
            ifindex: u32::from(meta.iface.0) + 1,
            remote: present_on(family, meta.remote, Some(meta.iface)),
            local: present(family, meta.local),
            time_ns: unix_ns,
            tos: u16::from(meta.tos),
            ttl: u16::from(meta.ttl),
            segment_size: meta.segment_size,
            reserved: 0,
            drops: *drops,
        };
        if !rx.push_record(header.as_bytes(), payload) {
            *drops += 1;
            return false;
        }
        self.watch_memory(user);
        self.slots.post(user, event::RX);
        true
    }

    fn takes_merged(&self, user: u32) -> bool {
        has_bit(self.slots.shared(user), option_bit::UDP_GRO)
    }

    /// The family of a process that holds the socket, or the process itself if it was not cloned.
    /// A program does not get more of the engine by making more processes.
    fn payer(&self, user: u32) -> u64 {
        let holders = self.slots.get(user).and_then(|entry| entry.holders.first());
        let Some(id) = holders.map(|holder| holder.id) else { return 0 };
        match self.channels.get(id).and_then(|attached| attached.family) {
            Some(Family(number)) => number << 1 | 1,
            None => u64::from(id.number()) << 1,
        }
    }

    fn filtered(&mut self, user: u32) {
        let owned = self.slots.get_mut(user).and_then(|entry| entry.owned.as_deref_mut());
        if let Some(owned) = owned {
            owned.drops += 1;
        }
    }

    // Interfaces of an engine are never any-address: configuration refuses that.
    fn stray_datagram(&mut self, _: &DatagramMeta, _: &Payload<'_>) {
        self.counters.unexpected += 1;
    }

    fn stray_echo(&mut self, _: &EchoMeta, _: &Payload<'_>) {
        self.counters.unexpected += 1;
    }

    fn datagram_error(&mut self, user: u32, error: DatagramError) {
        let Some(entry) = self.slots.get_mut(user) else { return };
        let (errno, told) = (Errno::from(error.reason), error.message.is_none());
        let errors = &mut entry.owned().errors;
        if errors.len() >= ERRORS_MAX {
            self.counters.errors_lost += 1;
        } else {
            errors.push_back(error);
            self.slots.set_flags(user, flags::ERRORS, 0);
        }
        if told {
            // By the call that met it (EMSGSIZE): no later one fails for it, as on Linux.
            self.slots.post(user, event::ERROR);
        } else {
            self.set_error(user, errno);
        }
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        match event {
            SocketEvent::Readable => {
                self.watch_memory(user);
                self.arrived(user);
                self.slots.post(user, event::RX);
            }
            SocketEvent::Writable => {
                if self.slots.get(user).is_some_and(|entry| entry.is_datagram()) {
                    self.to_resume.push(user);
                }
                if take_tx_wanted(self.slots.shared(user)) {
                    self.slots.post(user, event::TX);
                }
            }
            SocketEvent::Urgent { is_new } => self.on_urgent(user, is_new),
            SocketEvent::Connected => {
                let under_way = flags::CONNECTING | flags::OPENING;
                self.slots.set_flags(user, flags::CONNECTED, under_way);
                self.slots.post(user, event::TX);
                self.to_publish.push(user);
            }
            SocketEvent::PeerClosed => {
                self.arrived(user);
                self.slots.note_flags(user, flags::RX_EOF);
                self.slots.post(user, event::RX | event::RDHUP);
                self.to_publish.push(user);
            }
            // No program has seen the connection yet, and none is shown one that has failed.
            SocketEvent::Error(_) if self.end_deferral(user) => self.to_reset_failed.push(user),
            SocketEvent::Error(error) => self.on_error(user, error),
            SocketEvent::Closed => self.on_closed(user),
            _ => self.counters.unexpected += 1,
        }
    }
}

/// Whether the client of a connection is a program of the run.
fn is_near(local: SocketAddr, remote: SocketAddr) -> bool {
    local.ip() == remote.ip() || remote.ip().is_loopback()
}

/// A size that a program set, or the range that autotuning works in.
pub(crate) fn fixed_or(fixed: u32, first: u32, max: u32) -> (u32, u32) {
    if fixed != 0 { (fixed, fixed) } else { (first, max) }
}

/// Whether an address may be used with a socket of this family.
pub(crate) fn fits(family: u32, addr: &SocketAddr) -> bool {
    addr.is_ipv4() || family == AF_INET6
}
