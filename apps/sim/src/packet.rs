//! Packets on links, and the port of a host.

use std::os::fd::BorrowedFd;

use towpath_link::Carried;
use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port};
use towpath_qdisc::{Ecn, Queueable, QueuedPacket};

/// A packet on a link.
#[derive(Debug)]
pub struct SimPacket {
    packet: QueuedPacket,
    /// Time at which the packet was given to the link that it is on.
    pub entered_ns: u64,
}

impl SimPacket {
    /// A packet that a host gives to its link.
    pub fn new(packet: Packet, pool: &mut Pool, now_ns: u64) -> Self {
        Self { packet: QueuedPacket::new(packet, LinkType::Ethernet, pool), entered_ns: now_ns }
    }

    /// The bytes of the frame.
    pub fn bytes(&self) -> &[u8] {
        self.packet.packet().linear()
    }

    /// The packet, for the host at the end of the link, or for the pool.
    pub fn into_packet(self) -> Packet {
        self.packet.into_packet()
    }
}

impl Queueable for SimPacket {
    fn bytes(&self) -> usize {
        self.packet.bytes()
    }

    fn flow_hash(&self) -> u32 {
        self.packet.flow_hash()
    }

    fn ecn(&self) -> Ecn {
        self.packet.ecn()
    }

    fn mark_ce(&mut self) -> bool {
        self.packet.mark_ce()
    }

    fn priority(&self) -> u8 {
        self.packet.priority()
    }
}

impl Carried for SimPacket {
    fn duplicate(&self) -> Self {
        Self { packet: self.packet.duplicate(), entered_ns: self.entered_ns }
    }

    fn flip_bit(&mut self, bit: u64) {
        self.packet.flip_bit(bit);
    }
}

/// The device of a host. Packets move between its batches and the links, in the same memory.
#[derive(Debug, Default)]
pub struct SimPort {
    /// Packets that arrived.
    pub inbox: Batch,
    /// Packets that the stack has sent.
    pub outbox: Batch,
    /// Packets that the device takes now.
    pub room: usize,
    /// The stack has more to send than there was room for.
    pub is_blocked: bool,
}

impl Port for SimPort {
    fn poll(&mut self, now_ns: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let n = self.inbox.len().min(max);
        out.extend(self.inbox.drain(..n).map(|mut packet| {
            packet.meta.arrival_ns = now_ns;
            packet
        }));
        n
    }

    fn submit(&mut self, _: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.room);
        self.room -= n;
        for mut packet in batch.drain(..n) {
            packet.linearize(pool);
            self.outbox.push_back(packet);
        }
        self.is_blocked = !batch.is_empty();
        n
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The host that a frame is addressed to; none for a group.
pub fn host_of(frame: &[u8]) -> Option<usize> {
    match frame.get(..6)? {
        [2, 0, 0, 0, high, low] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
        _ => None,
    }
}
