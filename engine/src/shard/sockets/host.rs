//! Implements `Host`, the callbacks of the stack. Maps the stack's sockets to the slots that
//! programs see.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Release;

use towpath_ring::{Payload, SocketRecv, SocketSend, take_tx_wanted};
use towpath_shm::layout::{AcceptRecord, DatagramHeader, Plain, event, flags, option_bit};
use towpath_stack::{
    ChildElsewhere, DatagramError, DatagramMeta, EchoMeta, Elsewhere, PendingId, ShardId,
    SocketError, SocketEvent, SocketId, Stack,
};
use towpath_tcp::Instant;

use crate::errno::{ECONNRESET, EPIPE, Errno};
use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::Parent;
use crate::shard::sockets::deferred::DEFERRAL_RETRY;
use crate::shard::sockets::option_bits::has_bit;
use crate::shard::sockets::private::private_index;
use crate::shard::sockets::slots::{present, present_on};

/// Maximum number of reports in a socket's error queue. Each contains up to 1232 bytes of a
/// datagram.
pub(crate) const ERRORS_MAX: usize = 64;

/// Limits the stack's memory for an idle connection (table in `core/stack/src/socket.rs`).
const _: () =
    assert!(Stack::<Sockets>::STREAM_BYTES <= 520 && Stack::<Sockets>::SOCKET_BYTES <= 40);

impl Sockets {
    /// Sets the pending error of a socket (SO_ERROR), which the program's next call returns.
    pub fn set_error(&mut self, slot: u32, errno: Errno) {
        self.slots.shared(slot).error.store(errno.0, Release);
        self.slots.post(slot, event::ERROR);
    }

    fn on_error(&mut self, slot: u32, error: SocketError) {
        let datagram = self.slots.get(slot).is_some_and(|entry| entry.is_datagram());
        if datagram {
            self.set_error(slot, error.into());
        } else {
            let seen = self.slots.get(slot).map_or(0, |entry| entry.flags);
            let half_closed = seen & (flags::RX_EOF | flags::TX_CLOSED) == flags::RX_EOF;
            // After the peer's FIN, only a writer can see the error, so it is EPIPE (`tcp_reset` of
            // Linux).
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
            self.released.to_free.push(slot);
        } else {
            // The stack has reset the socket, but processes still have it open.
            self.slots.fail(slot, ECONNRESET);
        }
    }
}

impl towpath_stack::Host for Sockets {
    type Recv = SocketRecv;
    type Send = SocketSend;

    fn recv_room(&self, listener: u32) -> u32 {
        if let Some(index) = private_index(listener) {
            return self.private.recv_room(index);
        }
        self.recv_room_of(self.slots.get(listener).map_or(0, |entry| entry.rare().rcvbuf))
    }

    fn recv_room_for(&self, listener: &Elsewhere) -> u32 {
        if let Some(index) = private_index(listener.user) {
            return self.private.default_recv_room(index);
        }
        self.recv_room_of(Parent::of(listener).rcvbuf)
    }

    fn accept(
        &mut self,
        listener: u32,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, SocketRecv, SocketSend)> {
        if let Some(index) = private_index(listener) {
            return self.private.accept(index, child, local, remote);
        }
        let parent = Parent::of_entry(listener, self.slots.get(listener)?);
        let (slot, recv, send) = self.make_child(&parent, child, local, remote)?;
        let (recv, send) = (SocketRecv::Slot(recv), SocketSend::Slot(send));
        if self.defer(&parent, slot, None) {
            return Some((slot, recv, send));
        }
        let generation = self.slots.get(slot).map_or(0, |entry| entry.generation);
        let record = self.accept_record(slot, generation);
        if !self.push_accepted(listener, &record) {
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
    ) -> Option<ChildElsewhere<SocketRecv, SocketSend>> {
        if let Some(index) = private_index(listener.user) {
            return self.private.accept_elsewhere(index, child);
        }
        let parent = Parent::of(listener);
        let deferred = self.deferred.by_listener.get(&parent.slot).copied().unwrap_or(0);
        if deferred > parent.backlog {
            return None;
        }
        let (user, recv, send) = self.make_child(&parent, child, local, remote)?;
        let tag = self.slots.get(user).map_or(0, |entry| entry.generation);
        let waits = self.defer(&parent, user, Some(listener.name));
        let (recv, send) = (SocketRecv::Slot(recv), SocketSend::Slot(send));
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
        let (local, remote) = (present(entry.family, local), present(entry.family, remote));
        let generation = entry.generation;
        let (slot, of_slot) = child;
        let record = AcceptRecord { slot, generation: of_slot, remote, local, reserved: 0 };
        let is_queued = self.push_accepted(listener, &record);
        if !is_queued {
            self.deferred.to_offer_again.push((listener, generation));
            self.deferred.offer_again_at.get_or_insert(self.now + DEFERRAL_RETRY);
        }
        is_queued
    }

    fn listener_gone(&mut self, listener: &Elsewhere) {
        // A service handles connections to its listener itself, so they need no slot.
        if private_index(listener.user).is_some() {
            return;
        }
        let parent = Parent::of(listener);
        if !self.deferred.by_listener.contains_key(&parent.slot) {
            return;
        }
        self.counters.work(self.deferred.to_accept.len() / 64);
        let unclaimed = |slot: u32| self.slots.get(slot).and_then(|entry| entry.unclaimed());
        let its = (parent.slot, parent.generation);
        let deferred = self.deferred.to_accept.keys().map(|(_, slot)| *slot);
        let deferred: Vec<u32> = deferred.filter(|slot| unclaimed(*slot) == Some(its)).collect();
        for slot in deferred {
            self.end_deferral(slot);
            self.deferred.to_reset.push(slot);
        }
    }

    fn refused(&mut self, child: u32, tag: u32) {
        let Some(entry) = self.slots.find(child, tag) else { return };
        entry.closing = true;
        if entry.id.is_none() {
            self.released.to_free.push(child);
        }
    }

    fn told(&mut self, from: ShardId, words: [u64; 3]) {
        self.inbox.push((from, words));
    }

    fn syn(&mut self, _: PendingId, _: SocketAddr, _: SocketAddr) {
        self.counters.unexpected += 1;
    }

    fn datagram(&mut self, user: u32, meta: &DatagramMeta, payload: &Payload<'_>) -> bool {
        if let Some(index) = private_index(user) {
            return self.private.datagram(index, meta, payload);
        }
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
        private_index(user).is_none() && has_bit(self.slots.shared(user), option_bit::UDP_GRO)
    }

    /// Returns the account that sending for this socket is charged to. Processes share an account
    /// with the processes that they fork. Therefore a program does not get more of the engine's
    /// time by creating processes.
    fn payer(&self, user: u32) -> u64 {
        let holders = self.slots.get(user).and_then(|entry| entry.holders.first());
        holders.map_or(0, |holder| self.payers.of(holder.id))
    }

    fn filtered(&mut self, user: u32) {
        let owned = self.slots.get_mut(user).and_then(|entry| entry.owned.as_deref_mut());
        if let Some(owned) = owned {
            owned.drops += 1;
        }
    }

    // The stack does not call this in an engine, because no interface is configured to accept any
    // destination address.
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
            // EMSGSIZE does not become the pending error, because the failing call has already
            // returned it, as on Linux.
            self.slots.post(user, event::ERROR);
        } else {
            self.set_error(user, errno);
        }
    }

    fn event(&mut self, user: u32, event: SocketEvent) {
        if let Some(index) = private_index(user) {
            return self.private.event(index, event);
        }
        match event {
            SocketEvent::Readable => {
                self.watch_memory(user);
                self.arrived(user);
                self.slots.post(user, event::RX);
            }
            SocketEvent::Writable => {
                match self.slots.get(user) {
                    Some(entry) if entry.is_datagram() => self.outgoing.to_resume.push(user),
                    Some(entry) if entry.rare().stamps.is_some() => {
                        self.outgoing.progressed.push(user);
                    }
                    _ => {}
                }
                if take_tx_wanted(self.slots.shared(user)) {
                    self.slots.post(user, event::TX);
                }
            }
            SocketEvent::Urgent { is_new } => self.on_urgent(user, is_new),
            SocketEvent::Connected => {
                let under_way = flags::CONNECTING | flags::OPENING;
                self.slots.set_flags(user, flags::CONNECTED, under_way);
                // Post RX, too: while the socket was connecting, it was not readable, although
                // bytes may have arrived.
                self.slots.post(user, event::TX | event::RX);
                self.telling.to_publish.push(user);
            }
            SocketEvent::PeerClosed => {
                self.arrived(user);
                self.slots.note_flags(user, flags::RX_EOF);
                self.slots.post(user, event::RX | event::RDHUP);
                self.telling.to_publish.push(user);
            }
            // Reset the connection without notifying a program, because no program has seen it yet.
            SocketEvent::Error(_) if self.end_deferral(user) => self.deferred.to_reset.push(user),
            SocketEvent::Error(error) => self.on_error(user, error),
            SocketEvent::Closed => self.on_closed(user),
            _ => self.counters.unexpected += 1,
        }
    }
}
