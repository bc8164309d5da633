//! Creates the slots, options and buffers of connections to a listener.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use towpath_ring::{EngineRecv, EngineSend};
use towpath_shm::layout::{Kind, flags, option_bit};
use towpath_stack::{Elsewhere, IfaceId, ListenerNote, SocketId};

use crate::shard::sockets::Sockets;
use crate::shard::sockets::linux::state;
use crate::shard::sockets::option_bits::has_bit;
use crate::shard::sockets::queues::Swept;
use crate::shard::sockets::slots::{AF_INET6, Holders, Rare, SlotEntry, UNPACED, inherit, present};

/// Properties that connections inherit from their listener, besides those in the listener's slot.
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
    pub fn of_entry(slot: u32, entry: &SlotEntry) -> Self {
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

    /// Returns the properties of a listener in the form that the peer shards store.
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

    pub(super) fn of(listener: &Elsewhere) -> Self {
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

/// Returns whether the peer of a connection is on this host.
pub(super) fn is_near(local: SocketAddr, remote: SocketAddr) -> bool {
    local.ip() == remote.ip() || remote.ip().is_loopback()
}

/// Returns the initial and the maximum size of a buffer in bytes. Both are `fixed` if the program
/// has set a size.
pub(crate) fn fixed_or(fixed: u32, first: u32, max: u32) -> (u32, u32) {
    if fixed != 0 { (fixed, fixed) } else { (first, max) }
}

/// Returns whether a socket of this address family can use an address.
pub(crate) fn fits(family: u32, addr: &SocketAddr) -> bool {
    addr.is_ipv4() || family == AF_INET6
}

impl Sockets {
    /// Returns the sizes in bytes of a socket's receive and send buffers, as getsockopt(2) returns
    /// them.
    pub(crate) fn buffers_of(&self, slot: u32, entry: &SlotEntry) -> (u32, u32) {
        let (rare, sizes) = (entry.rare(), &self.buffers);
        let (recv, send) = match entry.is_datagram() {
            true => (sizes.datagram, sizes.datagram),
            false => (sizes.recv, sizes.send),
        };
        let shared = self.slots.shared(slot);
        let or = |fixed: u32, now: u32, first: u32| if fixed != 0 { fixed } else { now.max(first) };
        let in_use = (shared.rx_cap.load(Relaxed), shared.tx_limit.load(Relaxed));
        (or(rare.recv_fixed(), in_use.0, recv), or(rare.sndbuf, in_use.1, send))
    }

    /// Returns the interface to which a socket is bound (SO_BINDTODEVICE). `None`: any.
    pub(crate) fn device(&self, slot: u32) -> Option<IfaceId> {
        let index = self.slots.get(slot).map_or(0, |entry| entry.rare().device);
        u16::try_from(index).ok()?.checked_sub(1).map(IfaceId)
    }

    /// Creates the engine's side of a stream's receive and send FIFOs. If much memory is free,
    /// allocates the send buffer now, so that the first write need not request it. `near` is true
    /// if the peer is on this host.
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
            // As on Linux, a new connection over loopback can buffer twenty segments. Programs rely
            // on this, because they often write to themselves before they read.
            send.set_generous(true);
        }
        send.set_scarce(has_bit(self.slots.shared(slot), option_bit::NOTSENT_LOWAT));
        if self.windows.is_ample() {
            // Ignore a failure: if memory is short, the program requests it with its first write.
            // No thread can hold the lock of a new slot.
            send.attach();
            self.watch_memory(slot);
        }
        (recv, send)
    }

    /// Queues a slot for the sweep, which frees the buffer memory of idle sockets.
    pub fn watch_memory(&mut self, slot: u32) {
        if let Some(entry) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut entry.swept, true)
            && self.sweep.queued.insert(slot)
        {
            self.sweep.queue.push_back(Swept { slot, position: 0, since: self.now });
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

    /// Creates the slot and buffers of a connection to a listener, and publishes the slot for
    /// programs.
    pub(super) fn make_child(
        &mut self,
        parent: &Parent,
        child: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(u32, EngineRecv, EngineSend)> {
        let slot = self.new_child(parent, child, local, remote)?;
        let (recv, send) = self.stream_buffers(slot, is_near(local, remote));
        // Publish the slot before adding the connection to the accept queue, because the program
        // that accepts it uses the slot at once.
        self.slots.publish(slot);
        Some((slot, recv, send))
    }

    pub(super) fn recv_room_of(&self, rcvbuf: u32) -> u32 {
        let (first, _) = fixed_or(rcvbuf, self.buffers.recv, self.buffers.recv_max);
        first.min(u32::try_from(self.windows.receivable_first()).unwrap_or(u32::MAX))
    }
}
