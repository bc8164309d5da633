//! Packets as items of a queueing discipline.

use towpath_pool::{Checksum, LinkType, Packet, Pool};
use towpath_wire::checksum;

use crate::{Ecn, Queueable};
use towpath_dice::mix;

/// A packet and those of its header fields that queueing disciplines and links use. The fields are
/// parsed once.
///
/// The packet owns its bytes, because it may stay in a queue for long, and because marking or
/// corrupting it changes the bytes.
#[derive(Debug)]
pub struct QueuedPacket {
    packet: Packet,
    /// Offset of the IP header in the packet; `None` if the packet is not IP, such as ARP.
    ip: Option<u16>,
    ecn: Ecn,
    priority: u8,
    flow_hash: u32,
}

/// Lengths in bytes of an Ethernet header, an 802.1Q tag, and IP headers without options.
const ETHERNET_LEN: usize = 14;
const TAG_LEN: usize = 4;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
/// Offset of the checksum field in a UDP header.
pub(crate) const UDP_CHECKSUM: usize = 6;

/// Priority for bits 1 to 4 of the TOS field: Linux's `ip_tos2prio` (net/ipv4/route.c). Linux's
/// priority "filler" is replaced by 0 (best effort).
const PRIORITY_OF_TOS: [u8; 16] = [0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4];

impl QueuedPacket {
    /// Parses the headers of a packet; `link_type` determines its first header. If the payload is
    /// outside the packet's own buffer, it is copied. Otherwise a program could change or reuse
    /// that memory while the packet is queued.
    pub fn new(mut packet: Packet, link_type: LinkType, pool: &mut Pool) -> Self {
        packet.linearize(pool);
        let bytes = packet.linear();
        let ip = match link_type {
            LinkType::Ip => Some(0),
            LinkType::Ethernet => ip_of_frame(bytes),
        };
        let mut queued = Self { packet, ip: None, ecn: Ecn::NotEct, priority: 0, flow_hash: 0 };
        if let Some(at) = ip {
            queued.read_ip(at);
        }
        queued
    }

    /// Returns the queued packet.
    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// Returns the packet, so that the caller can send it or free its memory.
    pub fn into_packet(self) -> Packet {
        self.packet
    }

    /// Returns a copy of the packet with its own memory.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let bytes = self.packet.linear();
        let mut packet = Pool::default().take(bytes.len());
        packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(bytes);
        packet.meta = self.packet.meta;
        Self { packet, ..*self }
    }

    /// Flips a bit of the packet. Completes a partial checksum first, so that the receiver can
    /// detect the error.
    pub fn flip_bit(&mut self, bit: u64) {
        self.complete_checksum();
        let bytes = self.packet.linear_mut();
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Completes a partial checksum, for a device that does not offload checksums.
    pub fn complete_checksum(&mut self) {
        if let Checksum::Partial { start, offset } = self.packet.meta.checksum {
            complete(self.packet.linear_mut(), start.into(), offset.into());
        }
        self.packet.meta.checksum = Checksum::Unknown;
    }

    fn read_ip(&mut self, at: usize) {
        let bytes = &self.packet.linear()[at..];
        let (tos, addresses, protocol, transport) = match bytes.first().map(|byte| byte >> 4) {
            Some(4) if bytes.len() >= IPV4_LEN => {
                let header_len = usize::from(bytes[0] & 15) * 4;
                // Only the first fragment has ports, so the flow hash of fragments uses addresses
                // and protocol alone.
                let whole = bytes[6] & 0x3f == 0 && bytes[7] == 0;
                (bytes[1], &bytes[12..20], bytes[9], whole.then_some(header_len))
            }
            Some(6) if bytes.len() >= IPV6_LEN => {
                (bytes[0] << 4 | bytes[1] >> 4, &bytes[8..40], bytes[6], Some(IPV6_LEN))
            }
            _ => return,
        };
        let ports = transport.filter(|_| matches!(protocol, 6 | 17));
        let ports = ports.and_then(|at| bytes.get(at..at + 4)).unwrap_or_default();
        let hash = hash(addresses, hash(ports, protocol.into()));
        self.ip = Some(at as u16);
        self.ecn = Ecn::from_tos(tos);
        self.priority = PRIORITY_OF_TOS[usize::from(tos >> 1 & 15)];
        self.flow_hash = (hash >> 32) as u32;
    }

    /// Sets both bits of the ECN field (CE), and updates the checksum of an IPv4 header (RFC 1624
    /// equation 3).
    fn write_ce(&mut self, at: usize) {
        let Some(header) = self.packet.linear_mut().get_mut(at..) else { return };
        if header[0] >> 4 == 6 {
            header[1] |= 0x30;
            return;
        }
        let before = u16::from_be_bytes([header[0], header[1]]);
        header[1] |= 3;
        let after = u16::from_be_bytes([header[0], header[1]]);
        let old = u16::from_be_bytes([header[10], header[11]]);
        let sum = u32::from(!old) + u32::from(!before) + u32::from(after);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

impl Queueable for QueuedPacket {
    /// Returns the length of the packet in bytes. As in Linux (`qdisc_pkt_len_init`), each segment
    /// of a packet to be segmented counts with its own headers.
    fn bytes(&self) -> usize {
        let len = self.packet.len();
        let more = self.packet.meta.segmentation.map_or(0, |segmentation| {
            (segmentation.pieces(len) - 1) * usize::from(segmentation.header_len)
        });
        len + more
    }

    /// Returns a hash of addresses, ports and protocol. The hash has no secret key, so a sender can
    /// choose flows whose hashes collide.
    fn flow_hash(&self) -> u32 {
        self.flow_hash
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) -> bool {
        match (self.ecn, self.ip) {
            (Ecn::NotEct, _) | (_, None) => false,
            (Ecn::Ce, _) => true,
            (_, Some(at)) => {
                self.write_ce(at.into());
                self.ecn = Ecn::Ce;
                true
            }
        }
    }

    fn priority(&self) -> u8 {
        self.priority
    }
}

/// Returns the offset of the IP header in an Ethernet frame with at most one VLAN tag; `None` if
/// the frame has no IP header.
pub(crate) fn ip_of_frame(frame: &[u8]) -> Option<usize> {
    let ethertype = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let (ethertype, at) = match ethertype(12)? {
        0x8100 => (ethertype(12 + TAG_LEN)?, ETHERNET_LEN + TAG_LEN),
        other => (other, ETHERNET_LEN),
    };
    (matches!(ethertype, 0x0800 | 0x86dd) && frame.len() > at).then_some(at)
}

/// Completes the checksum of the transport header at `start`. The checksum field at `offset`
/// contains the sum of the pseudo-header.
fn complete(packet: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = packet.get(start..) else { return };
    // Send a UDP checksum of 0 as 0xffff, because 0 means that there is no checksum (RFC 768).
    let sum = match checksum::finish(checksum::sum(covered, 0)) {
        0 if offset == UDP_CHECKSUM => 0xffff,
        sum => sum,
    };
    if let Some(field) = packet.get_mut(start + offset..start + offset + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

fn hash(bytes: &[u8], seed: u64) -> u64 {
    let word = |chunk: &[u8]| chunk.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).fold(mix(seed), |hash, chunk| mix(hash ^ word(chunk)))
}

/// Recomputes the checksum of an IPv4 header.
pub(crate) fn refresh_ipv4_checksum(header: &mut [u8]) {
    put16(header, 10, 0);
    let sum = checksum::finish(checksum::sum(header, 0));
    put16(header, 10, sum);
}

/// Writes a 16-bit number at offset `at` in network byte order.
pub(crate) fn put16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}
