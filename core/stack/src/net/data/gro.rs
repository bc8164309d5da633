//! Generic receive offload (GRO): merges received TCP segments, for devices that do not merge them,
//! such as XDP sockets. The layers above then process one large packet instead of many small ones.
//!
//! Only consecutive segments of one flow are merged, from which [`offload::cut`](super::offload)
//! would create the same segments again. Their headers may differ only in length, identification,
//! sequence number, checksum and PSH, so that segments with and without a CE mark stay apart. Their
//! checksums must be valid, so that the merged packet need not be verified again.

use core::net::IpAddr;

use towpath_pool::{Batch, Checksum, LinkType, Packet, Pool, Protocol, Segmentation};
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::tcp::Flags;
use towpath_wire::{IpProtocol, checksum, ipv4, ipv6, tcp};

use super::offload::{pseudo_sum, refresh_ipv4_checksum};

/// Maximum number of flows whose segments are merged at a time. A batch of packets rarely has more
/// busy flows.
const FLOWS_MAX: usize = 8;
/// Maximum length in bytes of an IPv4 packet, and of an IPv6 payload.
const IP_LEN_MAX: usize = 65535;

/// Merges the TCP segments of `batch`, which was received from a device with link type `link`.
/// Packets of one flow keep their order. Returns the number of packets that were merged into
/// others.
pub fn coalesce(link: LinkType, batch: &mut Batch, pool: &mut Pool) -> usize {
    let mut open: Vec<Merging> = Vec::with_capacity(FLOWS_MAX);
    let mut kept = Batch::with_capacity(batch.len());
    let mut merged = 0;
    for packet in batch.drain(..) {
        let Some(segment) = Parts::read(link, &packet) else {
            // A later segment may be merged into a packet before this one, and so overtake it.
            // Reordering is harmless: the packets are of different flows, or TCP reorders them by
            // sequence number.
            kept.push_back(packet);
            continue;
        };
        let known = open.iter().position(|flow| flow.first.is_same_flow(&segment));
        if let Some(at) = known {
            let flow = &mut open[at];
            if flow.accepts(&segment, &kept[flow.at], &packet) {
                flow.merge(&segment, &mut kept[flow.at], &packet, pool);
                pool.give(packet);
                merged += 1;
                if flow.closed {
                    open.remove(at);
                }
                continue;
            }
            open.remove(at);
        }
        if segment.may_start(&packet) {
            if open.len() == FLOWS_MAX {
                open.remove(0);
            }
            open.push(Merging {
                at: kept.len(),
                first: segment,
                len: segment.len(),
                closed: false,
            });
        }
        kept.push_back(packet);
    }
    *batch = kept;
    merged
}

/// A packet into which the following segments of its flow are merged.
struct Merging {
    /// Index of the packet in the batch `kept`.
    at: usize,
    first: Parts,
    /// Length of the merged payload so far, in bytes.
    len: usize,
    /// Whether no further segments may be merged into this packet.
    closed: bool,
}

impl Merging {
    fn accepts(&self, next: &Parts, into: &Packet, packet: &Packet) -> bool {
        let first = &self.first;
        let fits = next.end - next.payload + self.len + (first.payload - first.ip) <= IP_LEN_MAX;
        let follows = next.seq == first.seq.wrapping_add(self.len as u32);
        let flags = next.flags.without(Flags::PSH) == first.flags;
        let size_ok = (1..=first.len()).contains(&next.len());
        fits && follows
            && flags
            && size_ok
            && same_headers(first, into, packet)
            && next.is_good(packet)
    }

    fn merge(&mut self, next: &Parts, into: &mut Packet, packet: &Packet, pool: &mut Pool) {
        let first = &self.first;
        into.truncate(first.payload + self.len);
        if into.tailroom() < next.len() {
            let mut bigger = pool.take(Pool::LARGE);
            let linear = into.linear();
            bigger.push_back(linear.len()).expect("large").copy_from_slice(linear);
            bigger.meta = into.meta;
            pool.give(core::mem::replace(into, bigger));
        }
        let from = &packet.linear()[next.payload..next.end];
        into.push_back(from.len()).expect("fits a large buffer").copy_from_slice(from);
        self.len += next.len();
        // A segment that is shorter or has PSH was the last one of the sender's burst, so merge no
        // further segments.
        self.closed = next.len() < first.len() || next.flags.contains(Flags::PSH);
        let bytes = into.linear_mut();
        let ip_len = bytes.len() - first.ip;
        if first.protocol == Protocol::Tcp4 {
            bytes[first.ip + 2..first.ip + 4].copy_from_slice(&(ip_len as u16).to_be_bytes());
            refresh_ipv4_checksum(&mut bytes[first.ip..first.tcp]);
        } else {
            let payload_len = (ip_len - ipv6::HEADER_LEN) as u16;
            bytes[first.ip + 4..first.ip + 6].copy_from_slice(&payload_len.to_be_bytes());
        }
        bytes[first.tcp + 13] |= (next.flags.0 & Flags::PSH.0) as u8;
        into.meta.checksum = Checksum::Verified;
        into.meta.segmentation = Some(Segmentation {
            protocol: first.protocol,
            size: first.len() as u16,
            header_len: first.payload as u16,
        });
    }
}

/// Offsets and lengths of the headers and the payload of a TCP segment.
#[derive(Debug, Clone, Copy)]
struct Parts {
    src: IpAddr,
    dst: IpAddr,
    ports: [u8; 4],
    protocol: Protocol,
    ip: usize,
    tcp: usize,
    payload: usize,
    end: usize,
    seq: u32,
    flags: Flags,
}

impl Parts {
    /// Parses a TCP segment. Returns `None` for packets with IP options, fragmentation or a VLAN
    /// tag, and for other packets.
    fn read(link: LinkType, packet: &Packet) -> Option<Self> {
        let bytes = packet.linear();
        let merged_already = packet.meta.segmentation.is_some() || !packet.tail.is_empty();
        if merged_already || packet.meta.vlan.is_some() {
            return None;
        }
        let ip = match link {
            LinkType::Ip => 0,
            LinkType::Ethernet => {
                let (header, at) = ethernet::Header::parse(bytes).ok()?;
                let known = matches!(header.ethertype, EtherType::IPV4 | EtherType::IPV6);
                (known && at == ethernet::HEADER_LEN).then_some(at)?
            }
        };
        let rest = bytes.get(ip..)?;
        let (src, dst, protocol, tcp, end) = if rest.first()? >> 4 == 4 {
            let (header, range) = ipv4::Header::parse(rest).ok()?;
            let plain = header.protocol == IpProtocol::TCP
                && !header.is_fragment()
                && header.options.is_empty()
                && ipv4::checksum_ok(&rest[..range.start]);
            plain.then_some(())?;
            (header.src.into(), header.dst.into(), Protocol::Tcp4, ip + range.start, ip + range.end)
        } else {
            let (header, range) = ipv6::Header::parse(rest).ok()?;
            (header.next_header == IpProtocol::TCP).then_some(())?;
            (header.src.into(), header.dst.into(), Protocol::Tcp6, ip + range.start, ip + range.end)
        };
        let header = bytes.get(tcp..end)?.first_chunk::<{ tcp::HEADER_LEN_MIN }>()?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let payload = tcp + header_len;
        if header_len < tcp::HEADER_LEN_MIN || payload > end {
            return None;
        }
        Some(Self {
            src,
            dst,
            ports: [header[0], header[1], header[2], header[3]],
            protocol,
            ip,
            tcp,
            payload,
            end,
            seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            flags: Flags(u16::from(header[13])),
        })
    }

    fn len(&self) -> usize {
        self.end - self.payload
    }

    fn is_same_flow(&self, other: &Self) -> bool {
        (self.src, self.dst, self.ports) == (other.src, other.dst, other.ports)
    }

    /// Returns whether later segments may be merged into this one. The segment must have data, and
    /// no flags except ACK, ECE and AE. CWR belongs to a single segment (RFC 3168 §6.1.2).
    fn may_start(&self, packet: &Packet) -> bool {
        self.flags.without(Flags::ECE) == Flags::ACK && self.len() > 0 && self.is_good(packet)
    }

    fn is_good(&self, packet: &Packet) -> bool {
        if packet.meta.checksum != Checksum::Unknown {
            return true;
        }
        let bytes = &packet.linear()[self.tcp..self.end];
        let pseudo = pseudo_sum(self.src, self.dst, IpProtocol::TCP.0, bytes.len());
        checksum::finish(checksum::sum(bytes, pseudo)) == 0
    }
}

/// Returns whether all header fields are equal that must be equal for merging. The compared fields
/// are the link header, traffic class, TTL, flow label, DF, acknowledgement, window, urgent pointer
/// and TCP options.
fn same_headers(first: &Parts, into: &Packet, packet: &Packet) -> bool {
    let (a, b) = (into.linear(), packet.linear());
    let same = |from: usize, to: usize| a.get(from..to).is_some_and(|a| b.get(from..to) == Some(a));
    let ip_same = if first.protocol == Protocol::Tcp4 {
        same(0, first.ip + 2) && same(first.ip + 6, first.ip + 10)
    } else {
        same(0, first.ip + 4) && same(first.ip + 6, first.ip + 8)
    };
    let tcp = first.tcp;
    ip_same && same(tcp + 8, tcp + 13) && same(tcp + 14, tcp + 16) && same(tcp + 18, first.payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::data::offload::cut;

    /// Returns the segments of a stream of `len` bytes, created by software segmentation on an IP
    /// link.
    fn segments(src: [u8; 4], len: usize, size: u16, pool: &mut Pool) -> Batch {
        let mut packet = pool.take(40 + len);
        let bytes = packet.push_back(40 + len).unwrap();
        bytes.fill(0);
        let header = ipv4::Header {
            tos: 0,
            total_len: (40 + len) as u16,
            ident: 7,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: IpProtocol::TCP,
            src: src.into(),
            dst: [10, 0, 0, 1].into(),
            options: ipv4::Options::EMPTY,
        };
        header.emit(bytes);
        bytes[20..24].copy_from_slice(&[1, 2, 3, 4]);
        bytes[24..28].copy_from_slice(&0xffff_f000u32.to_be_bytes());
        bytes[32] = 0x50;
        bytes[33] = (Flags::ACK | Flags::PSH).0 as u8;
        for (n, byte) in bytes[40..].iter_mut().enumerate() {
            *byte = (n * 13 + n / 256) as u8;
        }
        let how = Segmentation { protocol: Protocol::Tcp4, size, header_len: 40 };
        let mut batch = Batch::new();
        cut(packet, how, false, pool, |piece, _| batch.push_back(piece)).unwrap();
        batch
    }

    fn run(mut batch: Batch, pool: &mut Pool) -> (usize, Batch) {
        let merged = coalesce(LinkType::Ip, &mut batch, pool);
        (merged, batch)
    }

    #[test]
    fn what_was_cut_is_whole_again() {
        let mut pool = Pool::default();
        let whole = segments([10, 0, 0, 2], 9500, 9500, &mut pool).pop_front().unwrap();
        let (merged, batch) = run(segments([10, 0, 0, 2], 9500, 1000, &mut pool), &mut pool);
        assert_eq!((merged, batch.len()), (9, 1));
        let packet = &batch[0];
        assert_eq!(packet.meta.checksum, Checksum::Verified);
        assert_eq!(
            packet.meta.segmentation.map(|how| (how.size, how.header_len)),
            Some((1000, 40))
        );
        let (got, expected) = (packet.linear(), whole.linear());
        // Compare all bytes except the transport checksum, which the test does not compute.
        assert_eq!(got[..36], expected[..36]);
        assert_eq!(got[38..], expected[38..]);
    }

    #[test]
    fn flows_are_merged_apart_and_nothing_longer_than_ip_allows() {
        let mut pool = Pool::default();
        let one = segments([10, 0, 0, 2], 50_000, 1000, &mut pool);
        let two = segments([10, 0, 0, 3], 50_000, 1000, &mut pool);
        let mixed = one.into_iter().zip(two).flat_map(|(a, b)| [a, b]).collect();
        let (merged, batch) = run(mixed, &mut pool);
        assert_eq!((merged, batch.len()), (98, 2));
        assert!(batch.iter().all(|packet| packet.len() == 50_040));

        // Create two consecutive bursts of segments, which together do not fit in one packet.
        let mut long = segments([10, 0, 0, 2], 60_000, 1000, &mut pool);
        for packet in long.iter_mut() {
            packet.meta.checksum = Checksum::Verified;
            packet.linear_mut()[33] = Flags::ACK.0 as u8;
        }
        let mut more = segments([10, 0, 0, 2], 60_000, 1000, &mut pool);
        for packet in more.iter_mut() {
            packet.meta.checksum = Checksum::Verified;
            let at = packet.linear_mut();
            let seq = u32::from_be_bytes([at[24], at[25], at[26], at[27]]).wrapping_add(60_000);
            at[24..28].copy_from_slice(&seq.to_be_bytes());
        }
        long.append(&mut more);
        let (_, batch) = run(long, &mut pool);
        assert_eq!(batch.len(), 2);
        assert!(batch.iter().all(|packet| packet.len() <= IP_LEN_MAX));
    }

    #[test]
    fn segments_with_other_marks_or_with_cwr_stay_apart() {
        let mut pool = Pool::default();
        let lens = |batch: &Batch| batch.iter().map(|p| p.len() - 40).collect::<Vec<_>>();
        let changed = |at: usize, byte: usize, value: u8, pool: &mut Pool| {
            let mut batch = segments([10, 0, 0, 2], 5000, 1000, pool);
            batch[at].meta.checksum = Checksum::Verified;
            batch[at].linear_mut()[byte] = value;
            refresh_ipv4_checksum(&mut batch[at].linear_mut()[..20]);
            batch
        };
        // A segment has a CE mark in its IP header, and is not merged.
        let marked = changed(2, 1, 3, &mut pool);
        assert_eq!(lens(&run(marked, &mut pool).1), [2000, 1000, 2000]);
        for flags in [Flags::ACK | Flags::CWR, Flags::ACK | Flags::ECE] {
            let other = changed(2, 33, flags.0 as u8, &mut pool);
            assert_eq!(lens(&run(other, &mut pool).1), [2000, 1000, 2000], "{flags:?}");
        }
        // A segment has a different AE flag, which belongs to the counter of accurate ECN, and is
        // not merged.
        let other = changed(2, 32, 0x51, &mut pool);
        assert_eq!(lens(&run(other, &mut pool).1), [2000, 1000, 2000]);
    }

    #[test]
    fn segments_with_equal_feedback_are_merged() {
        let mut pool = Pool::default();
        let mut batch = segments([10, 0, 0, 2], 5000, 1000, &mut pool);
        for packet in batch.iter_mut() {
            packet.meta.checksum = Checksum::Verified;
            packet.linear_mut()[32] |= 1;
            packet.linear_mut()[33] |= Flags::ECE.0 as u8;
        }
        let (merged, batch) = run(batch, &mut pool);
        assert_eq!((merged, batch.len()), (4, 1));
    }

    #[test]
    fn a_gap_a_bad_checksum_or_another_header_stays_apart() {
        let mut pool = Pool::default();
        let lens = |batch: &Batch| batch.iter().map(|p| p.len() - 40).collect::<Vec<_>>();
        let mut gap = segments([10, 0, 0, 2], 5000, 1000, &mut pool);
        gap.remove(2);
        assert_eq!(lens(&run(gap, &mut pool).1), [2000, 2000]);
        let mut bad = segments([10, 0, 0, 2], 5000, 1000, &mut pool);
        bad[2].linear_mut()[500] ^= 1;
        assert_eq!(lens(&run(bad, &mut pool).1), [2000, 1000, 2000]);
        let mut window = segments([10, 0, 0, 2], 3000, 1000, &mut pool);
        window[1].meta.checksum = Checksum::Verified;
        window[1].linear_mut()[35] = 9;
        assert_eq!(lens(&run(window, &mut pool).1), [1000, 1000, 1000]);
    }
}
