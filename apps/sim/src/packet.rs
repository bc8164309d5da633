//! Packets on simulated links, and the network device of a simulated host.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use towpath_link::Carried;
use towpath_pool::{Batch, Checksum, LinkType, Offloads, Packet, Pool, Port};
use towpath_qdisc::{Ecn, Queueable, QueuedPacket};
use towpath_wire::MacAddr;

/// Packet on a link. The packet is boxed, so that moving it between queues copies only 40 bytes.
#[derive(Debug)]
pub struct SimPacket {
    packet: Box<QueuedPacket>,
    /// Time in ns at which the packet was passed to its current link.
    pub entered_ns: u64,
    /// Destination of the packet, parsed only once, so that switches need not read the frame.
    towards: Towards,
    len: u32,
}

/// Destination of an Ethernet frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// The interface with a unicast MAC address.
    Station(MacAddr),
    /// Host that owns the address requested by an ARP request (RFC 826).
    Asked(Ipv4Addr),
    /// All hosts (broadcast and multicast).
    All,
}

impl SimPacket {
    /// Wraps a packet that a host sends to its link at the time `now_ns`.
    pub fn new(packet: Packet, pool: &mut Pool, now_ns: u64) -> Self {
        Self::of(QueuedPacket::new(packet, LinkType::Ethernet, pool), now_ns)
    }

    /// Wraps a frame of a real device. Completes its checksum, so that links may change it, and any
    /// port may send it.
    pub fn received(mut packet: QueuedPacket, now_ns: u64) -> Self {
        if let Checksum::Partial { .. } = packet.packet().meta.checksum {
            packet.complete_checksum();
        }
        Self::of(packet, now_ns)
    }

    fn of(packet: QueuedPacket, entered_ns: u64) -> Self {
        let (towards, len) = (Towards::read(packet.packet().linear()), packet.bytes() as u32);
        Self { packet: Box::new(packet), entered_ns, towards, len }
    }

    /// Returns the bytes of the Ethernet frame.
    pub fn frame(&self) -> &[u8] {
        self.packet.packet().linear()
    }

    /// Returns the destination of the frame.
    pub fn towards(&self) -> Towards {
        self.towards
    }

    /// Returns the wrapped packet, for the receiving host or for the pool.
    pub fn into_packet(self) -> Packet {
        self.packet.into_packet()
    }
}

impl Towards {
    /// Parses the destination of an Ethernet frame.
    pub fn read(frame: &[u8]) -> Self {
        if let Some(&mac) = frame.first_chunk::<6>()
            && mac[0] & GROUP == 0
        {
            return Self::Station(MacAddr(mac));
        }
        let is_request =
            frame.get(12..14) == Some(&[0x08, 0x06]) && frame.get(20..22) == Some(&[0, 1]);
        match frame.get(38..42).and_then(<[u8]>::first_chunk::<4>).filter(|_| is_request) {
            Some(address) => Self::Asked((*address).into()),
            None => Self::All,
        }
    }
}

impl Queueable for SimPacket {
    fn bytes(&self) -> usize {
        self.len as usize
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
        Self { packet: Box::new(self.packet.duplicate()), ..*self }
    }

    fn flip_bit(&mut self, bit: u64) {
        self.packet.flip_bit(bit);
        self.towards = Towards::read(self.frame());
    }
}

/// First bytes of the MAC addresses in virtual time.
pub const VIRTUAL_MACS: [u8; 4] = [2, 0, 0, 0];

/// Returns the MAC address of a host. All hosts of a run share the bytes `macs`, which the number
/// of the host follows.
pub fn mac_of([a, b, c, d]: [u8; 4], host: usize) -> MacAddr {
    let [high, low] = (host as u16).to_be_bytes();
    MacAddr([a, b, c, d, high, low])
}

/// Returns the number of the simulated host that has a MAC address; `None` if none has it.
pub fn host_of(macs: [u8; 4], mac: MacAddr) -> Option<usize> {
    let [a, b, c, d, high, low] = mac.0;
    ([a, b, c, d] == macs).then(|| u16::from_be_bytes([high, low]).into())
}

/// Bit of the first byte of a MAC address that marks group addresses (multicast and broadcast).
const GROUP: u8 = 1;

/// Returns the sender's MAC address; `None` for a frame that is too short.
pub fn source(frame: &[u8]) -> Option<MacAddr> {
    frame.get(6..12).and_then(<[u8]>::first_chunk::<6>).map(|mac| MacAddr(*mac))
}

/// Network device of a simulated host. Packets move between its batches and the links without
/// copying.
#[derive(Debug, Default)]
pub struct SimPort {
    /// Packets that were received from the link.
    pub inbox: Batch,
    /// Packets that the stack has sent.
    pub outbox: Batch,
    /// Number of packets that the device can accept now.
    pub room: usize,
    /// Whether the stack has more packets to send than `room` allowed.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an Ethernet frame to `to`, with an ARP message with this operation for 10.0.1.7.
    fn arp(to: [u8; 6], operation: u8) -> [u8; 42] {
        let mut frame = [0; 42];
        frame[..6].copy_from_slice(&to);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame[38..].copy_from_slice(&[10, 0, 1, 7]);
        frame
    }

    #[test]
    fn a_frame_is_for_the_host_of_its_address_or_for_the_one_that_arp_asks_for() {
        let request = arp([255; 6], 1);
        let to = [2, 0, 0, 0, 1, 2];
        assert_eq!(Towards::read(&arp(to, 2)), Towards::Station(MacAddr(to)));
        assert_eq!(Towards::read(&request), Towards::Asked([10, 0, 1, 7].into()));
        assert_eq!(Towards::read(&arp([255; 6], 2)), Towards::All);
        assert_eq!(Towards::read(&arp([1, 0, 94, 0, 0, 1], 2)), Towards::All);
        for cut in 0..request.len() {
            assert_eq!(Towards::read(&request[..cut]), Towards::All);
        }
    }

    #[test]
    fn a_flipped_bit_of_the_address_leads_elsewhere() {
        let mut pool = Pool::default();
        let mut packet = pool.take(42);
        let frame = arp([2, 0, 0, 0, 0, 1], 2);
        packet.push_back(42).expect("taken with room").copy_from_slice(&frame);
        let mut packet = SimPacket::new(packet, &mut pool, 0);
        let first = Towards::Station(MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!((packet.towards(), packet.bytes()), (first, 42));
        packet.flip_bit(46);
        let other = Towards::read(packet.frame());
        assert_eq!(packet.towards(), other);
        assert_ne!(other, first);
    }
}
