//! Software segmentation: divides a large packet into segments, so that a queue counts, delays and
//! drops each segment separately.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use towpath_pool::{Checksum, LinkType, Packet, Pool, Protocol, Segmentation};
use towpath_wire::{IpProtocol, checksum};

use crate::QueuedPacket;
use crate::packet::{IPV4_LEN, IPV6_LEN, UDP_CHECKSUM, ip_of_frame, put16, refresh_ipv4_checksum};

/// Offsets in a TCP header of the checksum, the sequence number and the flags.
const TCP_CHECKSUM: usize = 16;
const TCP_SEQ: Range<usize> = 4..8;
const TCP_FLAGS: usize = 13;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;
/// Offset of the length field in a UDP header.
const UDP_LEN: usize = 4;

impl QueuedPacket {
    /// Calls `out` for the packet, or for each of its segments in order if it is to be segmented.
    /// Each segment gets its own headers.
    pub fn each(
        packet: Packet,
        link_type: LinkType,
        pool: &mut Pool,
        mut out: impl FnMut(Self, &mut Pool),
    ) {
        let cut = packet.meta.segmentation.and_then(|how| SegmentCut::of(&packet, how, link_type));
        let Some(cut) = cut else {
            return out(Self::new(packet, link_type, pool), pool);
        };
        for n in 0..cut.how.pieces(cut.end) {
            let segment = cut.segment(&packet, n, pool);
            out(Self::new(segment, link_type, pool), pool);
        }
        pool.give(packet);
    }
}

/// Offsets of the headers in a packet that is to be segmented.
struct SegmentCut {
    how: Segmentation,
    ip: usize,
    ip_len: usize,
    transport: usize,
    /// Offset of the end of the IP packet. Bytes after it are padding of the frame.
    end: usize,
    is_v6: bool,
}

impl SegmentCut {
    /// Validates the headers of a packet. Returns `None` if they contradict the segmentation
    /// metadata, or if the packet has too many segments. The packet is then not segmented.
    fn of(packet: &Packet, how: Segmentation, link_type: LinkType) -> Option<Self> {
        let bytes = packet.linear().get(..how.header_len.into())?;
        let ip = match link_type {
            LinkType::Ip => 0,
            LinkType::Ethernet => ip_of_frame(bytes)?,
        };
        let half =
            |at: usize| Some(u16::from_be_bytes([*bytes.get(ip + at)?, *bytes.get(ip + at + 1)?]));
        let (is_v6, ip_len, len) = match bytes.get(ip)? {
            byte if byte >> 4 == 6 => (true, IPV6_LEN, IPV6_LEN + usize::from(half(4)?)),
            byte => (false, usize::from(byte & 15) * 4, usize::from(half(2)?)),
        };
        let end = ip + len;
        let transport = match packet.meta.checksum {
            Checksum::Partial { start, .. } => start.into(),
            _ => ip + ip_len,
        };
        let least = if how.protocol == Protocol::Udp { 8 } else { 20 };
        let is_sound = ip_len >= IPV4_LEN
            && transport >= ip + ip_len
            && bytes.len() >= transport + least
            && (bytes.len() + 1..=packet.len()).contains(&end)
            && how.pieces(end) <= Segmentation::PIECES_MAX;
        is_sound.then_some(Self { how, ip, ip_len, transport, end, is_v6 })
    }

    fn segment(&self, packet: &Packet, n: usize, pool: &mut Pool) -> Packet {
        let header_len = usize::from(self.how.header_len);
        let size = usize::from(self.how.size.max(1));
        let payload = self.end - header_len;
        let (from, to) = (n * size, payload.min((n + 1) * size));
        let len = header_len + to - from;
        let mut segment = pool.take(len);
        let bytes = segment.push_back(len).expect("taken with room");
        packet.copy_to(0, &mut bytes[..header_len]);
        packet.copy_to(header_len + from, &mut bytes[header_len..]);
        self.patch_ip(&mut bytes[self.ip..], n);
        let at = self.patch_transport(bytes, from as u32, n == 0, to == payload);
        let start = self.transport as u16;
        segment.meta = packet.meta;
        segment.meta.segmentation = None;
        segment.meta.checksum = Checksum::Partial { start, offset: at as u16 };
        segment
    }

    /// Updates the length, the identification and the checksum in the IP header of segment number
    /// `n`.
    fn patch_ip(&self, ip: &mut [u8], n: usize) {
        if self.is_v6 {
            return put16(ip, 4, (ip.len() - IPV6_LEN) as u16);
        }
        put16(ip, 2, ip.len() as u16);
        let ident = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(n as u16);
        put16(ip, 4, ident);
        refresh_ipv4_checksum(&mut ip[..self.ip_len]);
    }

    /// Updates the sequence number and flags (TCP) or the length (UDP), and stores the sum of the
    /// pseudo-header in the checksum field. Returns the offset of the checksum field in the
    /// transport header.
    fn patch_transport(&self, bytes: &mut [u8], from: u32, is_first: bool, is_last: bool) -> usize {
        let len = bytes.len() - self.transport;
        let (ip, transport) = bytes[self.ip..].split_at_mut(self.transport - self.ip);
        let (protocol, at) = if self.how.protocol == Protocol::Udp {
            put16(transport, UDP_LEN, len as u16);
            (IpProtocol::UDP, UDP_CHECKSUM)
        } else {
            let seq = transport[TCP_SEQ].iter().fold(0u32, |seq, byte| seq << 8 | u32::from(*byte));
            transport[TCP_SEQ].copy_from_slice(&seq.wrapping_add(from).to_be_bytes());
            transport[TCP_FLAGS] &= if is_last { 0xff } else { !FIN_PSH };
            transport[TCP_FLAGS] &= if is_first { 0xff } else { !CWR };
            (IpProtocol::TCP, TCP_CHECKSUM)
        };
        let sum = if self.is_v6 {
            let addr = |at: usize| {
                Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default())
            };
            checksum::pseudo_v6(addr(8), addr(24), protocol, len as u32)
        } else {
            let addr = |at: usize| {
                Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default())
            };
            checksum::pseudo_v4(addr(12), addr(16), protocol, len as u16)
        };
        put16(transport, at, checksum::fold(sum));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ecn, Queueable};

    /// Creates an IPv4 TCP packet with an Ethernet header and a partial checksum.
    fn tcp(payload: &[u8], tos: u8, size: u16, pool: &mut Pool) -> Packet {
        let mut packet = pool.take(54 + payload.len());
        let bytes = packet.push_back(54 + payload.len()).unwrap();
        bytes[..54].fill(0);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..16].copy_from_slice(&[0x45, tos]);
        put16(bytes, 16, 40 + payload.len() as u16);
        put16(bytes, 18, 0xffff);
        bytes[23] = 6;
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        refresh_ipv4_checksum(&mut bytes[14..34]);
        bytes[38..42].copy_from_slice(&[0xff, 0xff, 0xff, 0xf0]);
        bytes[46..48].copy_from_slice(&[0x50, 0x99]);
        bytes[54..].copy_from_slice(payload);
        let addr = |last| Ipv4Addr::new(10, 0, 0, last);
        let sum = checksum::pseudo_v4(addr(1), addr(2), IpProtocol::TCP, 20 + payload.len() as u16);
        put16(bytes, 50, checksum::fold(sum));
        packet.meta.checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.meta.segmentation =
            Some(Segmentation { protocol: Protocol::Tcp4, size, header_len: 54 });
        packet
    }

    fn pieces(packet: Packet, pool: &mut Pool) -> Vec<QueuedPacket> {
        let mut all = Vec::new();
        QueuedPacket::each(packet, LinkType::Ethernet, pool, |queued, _| all.push(queued));
        all
    }

    /// Returns whether the IP and the TCP checksum of the packet are correct. If the TCP checksum
    /// is partial, it is completed first.
    fn is_right(queued: &mut QueuedPacket) -> bool {
        // Flip the same bit twice. The packet is unchanged, except that its partial checksum is
        // completed.
        queued.flip_bit(0);
        queued.flip_bit(0);
        let bytes = queued.packet().linear();
        let addr = |last| Ipv4Addr::new(10, 0, 0, last);
        let len = (bytes.len() - 34) as u16;
        let sum = checksum::pseudo_v4(addr(1), addr(2), IpProtocol::TCP, len);
        checksum::finish(checksum::sum(&bytes[14..34], 0)) == 0
            && checksum::finish(checksum::sum(&bytes[34..], sum)) == 0
    }

    #[test]
    fn a_packet_is_cut_into_segments_that_are_right_and_have_its_bytes() {
        let mut pool = Pool::default();
        let payload: Vec<u8> = (0..250).collect();
        let packet = tcp(&payload, 2, 100, &mut pool);
        let mut all = pieces(packet, &mut pool);
        assert_eq!(all.iter().map(Queueable::bytes).collect::<Vec<_>>(), [154, 154, 104]);
        let seq = |queued: &QueuedPacket| queued.packet().linear()[38..42].to_vec();
        let flags = |queued: &QueuedPacket| queued.packet().linear()[47];
        assert_eq!(seq(&all[1]), (0xffff_fff0u32.wrapping_add(100)).to_be_bytes());
        // Only the first segment has the flag CWR, and only the last one has FIN and PSH. All have
        // ACK.
        assert_eq!([0, 1, 2].map(|at| flags(&all[at])), [0x90, 0x10, 0x19]);
        let joined: Vec<u8> =
            all.iter().flat_map(|queued| queued.packet().linear()[54..].to_vec()).collect();
        assert_eq!(joined, payload);
        assert_eq!([0, 1].map(|at| all[at].packet().linear()[19]), [0xff, 0]);
        assert!(all.iter().all(|queued| queued.flow_hash() == all[0].flow_hash()));
        assert!(all.iter_mut().all(is_right));
    }

    #[test]
    fn a_packet_whose_headers_are_not_what_it_says_stays_whole() {
        let mut pool = Pool::default();
        for header_len in [0, 13, 30, 53, 400] {
            let mut packet = tcp(&[7; 300], 0, 100, &mut pool);
            packet.meta.segmentation =
                Some(Segmentation { protocol: Protocol::Tcp4, size: 100, header_len });
            assert_eq!(pieces(packet, &mut pool).len(), 1, "{header_len}");
        }
    }

    /// Otherwise the segment size that a sender has chosen would cause work without a limit.
    #[test]
    fn a_packet_of_too_many_segments_stays_whole() {
        let mut pool = Pool::default();
        let most = Segmentation::PIECES_MAX;
        for (len, wanted) in [(most, most), (most + 1, 1), (60_000, 1)] {
            let packet = tcp(&vec![7; len], 0, 1, &mut pool);
            assert_eq!(pieces(packet, &mut pool).len(), wanted, "{len}");
        }
    }

    #[test]
    fn padding_of_a_frame_is_no_segment() {
        let mut pool = Pool::default();
        let mut packet = tcp(&[7; 300], 0, 100, &mut pool);
        packet.push_back(50).unwrap().fill(9);
        let all = pieces(packet, &mut pool);
        assert_eq!(all.iter().map(Queueable::bytes).collect::<Vec<_>>(), [154, 154, 154]);
        // Test values of the IP length field that end within the headers, or beyond the frame.
        for len in [0, 20, 39, 341] {
            let mut packet = tcp(&[7; 300], 0, 100, &mut pool);
            put16(packet.linear_mut(), 16, len);
            assert_eq!(pieces(packet, &mut pool).len(), 1, "{len}");
        }
    }

    #[test]
    fn a_mark_keeps_the_checksum_of_the_header_right() {
        let mut pool = Pool::default();
        for tos in 0..=255 {
            let mut queued = pieces(tcp(&[9; 10], tos, 100, &mut pool), &mut pool).remove(0);
            let before = queued.ecn();
            assert_eq!(queued.mark_ce(), before != Ecn::NotEct);
            let after = queued.packet().linear()[15];
            assert_eq!(after, if before == Ecn::NotEct { tos } else { tos | 3 });
            assert!(is_right(&mut queued), "{tos}");
        }
    }

    #[test]
    fn a_flipped_bit_is_one_that_the_receiver_notices() {
        let mut pool = Pool::default();
        let mut queued = pieces(tcp(&[9; 10], 0, 100, &mut pool), &mut pool).remove(0);
        queued.flip_bit(56 * 8 + 3);
        assert_eq!(queued.packet().linear()[56], 9 ^ 8);
        assert_eq!(queued.packet().meta.checksum, Checksum::Unknown);
        assert!(!is_right(&mut queued));
    }

    #[test]
    fn flows_are_told_apart_by_addresses_and_ports_and_priorities_by_tos() {
        let mut pool = Pool::default();
        let packet = tcp(&[1], 0x10, 100, &mut pool);
        let mut other = tcp(&[2], 0, 100, &mut pool);
        other.linear_mut()[34] = 1;
        let (one, other) = (pieces(packet, &mut pool), pieces(other, &mut pool));
        assert_ne!(one[0].flow_hash(), other[0].flow_hash());
        assert_eq!([one[0].priority(), other[0].priority()], [6, 0]);
        let copy = one[0].duplicate();
        assert_eq!(copy.packet().linear(), one[0].packet().linear());
        assert_eq!(copy.flow_hash(), one[0].flow_hash());
    }
}
