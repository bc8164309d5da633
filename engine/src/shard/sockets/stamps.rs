//! Records the transmit timestamps of sockets with SO_TIMESTAMPING.

use towpath_ring::{SendBuffer, SocketSend};
use towpath_shm::control::{ControlReply, STAMP_REPORT};
use towpath_shm::layout::{event, flags, option_bit};

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::option_bits::has_bit;
use crate::shard::sockets::slots::{STAMPS_MAX, Stamp};

impl Sockets {
    /// Sets the flags of SO_TIMESTAMPING, which select the transmit timestamps to record.
    pub(crate) fn set_stamping(&mut self, net: &mut Net, slot: u32, flags: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if entry.is_datagram() {
            return entry.owned().stamping.set(flags);
        }
        let send = entry.id.and_then(|id| net.stack.send_buffer(id).and_then(SocketSend::slot));
        let (acked, len) = send.map_or((0, 0), |send| (send.position(), send.len()));
        entry.set_rare(|rare| {
            let mut stamps = rare.stamps.take().unwrap_or_default();
            stamps.set(flags, acked, acked.wrapping_add(len));
            rare.stamps = Some(stamps).filter(|stamps| !stamps.is_over());
        });
    }

    /// Records transmit timestamps for a datagram that the stack has accepted.
    pub(super) fn note_sent(&mut self, slot: u32) {
        let unix_ns = self.unix_ns;
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let owned = entry.owned();
        let Some((kinds, id)) = owned.stamping.on_sent() else { return };
        for kind in kinds {
            if owned.sent.len() >= STAMPS_MAX {
                self.counters.errors_lost += 1;
            } else {
                owned.sent.push_back(Stamp { kind, id, unix_ns });
            }
        }
        self.slots.set_flags(slot, flags::ERRORS, 0);
        self.slots.post(slot, event::ERROR);
    }

    /// Adds a send of a program on a stream, up to position `end` of the send FIFO, for which
    /// timestamps must be recorded.
    pub(crate) fn watch_sent(&mut self, net: &mut Net, slot: u32, end: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Some(id) = entry.id.filter(|_| entry.rare().stamps.is_some()) else { return };
        let mut fits = true;
        entry.set_rare(|rare| {
            fits = rare.stamps.as_mut().is_none_or(|stamps| stamps.add(end));
        });
        self.counters.errors_lost += u64::from(!fits);
        if let Some(send) = net.stack.send_buffer(id).and_then(SocketSend::slot) {
            send.set_scarce(true);
        }
        self.outgoing.progressed.push(slot);
    }

    /// Records timestamps for streams of which bytes were sent or acknowledged.
    pub(super) fn stamp_streams(&mut self, net: &mut Net) {
        while let Some(slot) = self.outgoing.progressed.pop() {
            let unix_ns = self.unix_ns;
            let Some(entry) = self.slots.get_mut(slot) else { continue };
            let Some(id) = entry.id.filter(|_| entry.rare().stamps.is_some()) else { continue };
            let Some(send) = net.stack.send_buffer(id).and_then(SocketSend::slot) else { continue };
            let (mut lost, mut is_waiting, mut unread) = (0, false, false);
            entry.set_rare(|rare| {
                if let Some(stamps) = &mut rare.stamps {
                    lost = stamps.advance(send.position(), send.sent(), unix_ns);
                    (is_waiting, unread) = (stamps.is_waiting(), !stamps.unread.is_empty());
                }
            });
            let shared = self.slots.shared(slot);
            send.set_scarce(is_waiting || has_bit(shared, option_bit::NOTSENT_LOWAT));
            self.counters.errors_lost += lost;
            if unread {
                self.slots.set_flags(slot, flags::ERRORS, 0);
                self.slots.post(slot, event::ERROR);
            }
        }
    }

    /// Removes and returns the oldest transmit timestamp of a socket, as the reply to a read of its
    /// error queue.
    pub(super) fn take_stamp(&mut self, slot: u32) -> Option<ControlReply> {
        let entry = self.slots.get_mut(slot)?;
        let mut stamp = entry.owned.as_deref_mut().and_then(|owned| owned.sent.pop_front());
        if entry.rare().stamps.is_some() {
            entry.set_rare(|rare| {
                stamp = rare.stamps.as_mut().and_then(|stamps| stamps.unread.pop_front());
                rare.stamps.take_if(|stamps| stamps.is_over());
            });
        }
        let stamp = stamp?;
        let mut reply = ControlReply {
            a: stamp.kind as u32,
            b: STAMP_REPORT,
            slot: stamp.id,
            len: 8,
            ..ControlReply::default()
        };
        reply.data[..8].copy_from_slice(&stamp.unix_ns.to_ne_bytes());
        Some(reply)
    }
}
