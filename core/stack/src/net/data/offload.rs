//! Checksums and segmentation in software, for devices without these offloads.
//!
//! The packets here begin with their IP header. The link header is prepended later.

use core::net::IpAddr;

use towpath_pool::{Checksum, Packet, Pool, Protocol, Segmentation};
use towpath_wire::tcp::{
    CHECKSUM_OFFSET as TCP_CHECKSUM_OFFSET, Flags, HEADER_LEN_MIN as TCP_HEADER_LEN_MIN,
};
use towpath_wire::udp::CHECKSUM_OFFSET as UDP_CHECKSUM_OFFSET;
use towpath_wire::{IpProtocol, checksum, ipv4, ipv6, udp};

use crate::net::received::Local;

/// Offset of the data-offset field in a TCP header.
const TCP_DATA_OFFSET: usize = 12;

/// Returns whether the transport checksum of a received packet is valid or was already verified.
/// Returns true for protocols other than TCP and UDP.
pub fn verify_transport(local: &Local) -> bool {
    match local.packet.meta.checksum {
        Checksum::Verified | Checksum::Partial { .. } => return true,
        Checksum::Unknown => {}
    }
    let linear = local.packet.linear();
    let Some(data) = linear.get(local.offset..local.offset + local.len) else { return false };
    let sum = |len: usize| pseudo_sum(local.src, local.dst, local.protocol, len);
    match IpProtocol(local.protocol) {
        IpProtocol::TCP => checksum::finish(checksum::sum(data, sum(data.len()))) == 0,
        IpProtocol::UDP => {
            let Ok((header, _)) = udp::Header::parse(data) else { return false };
            let datagram = &data[..usize::from(header.length)];
            let pseudo = sum(datagram.len());
            if local.src.is_ipv4() {
                udp::checksum_ok_v4(datagram, pseudo)
            } else {
                udp::checksum_ok_v6(datagram, pseudo)
            }
        }
        _ => true,
    }
}

/// Returns the unfolded checksum of the pseudo-header for `len` bytes of transport header and
/// payload. Returns 0 for ICMPv4, which has no pseudo-header, and for addresses of different IP
/// versions.
pub(super) fn pseudo_sum(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u64 {
    let protocol = IpProtocol(protocol);
    match (src, dst) {
        (IpAddr::V4(_), _) if protocol == IpProtocol::ICMP => 0,
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, protocol, len as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, protocol, len as u32),
        _ => 0,
    }
}

/// Computes the transport checksum of `transport`, and writes it at offset `at`, where the bytes
/// must be 0. `pseudo` is the unfolded checksum of the pseudo-header.
pub(super) fn fill_checksum(transport: &mut [u8], at: usize, pseudo: u64, protocol: u8) {
    let mut sum = checksum::finish(checksum::sum(transport, pseudo));
    if sum == 0 && protocol == IpProtocol::UDP.0 {
        sum = 0xffff;
    }
    transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the length in bytes of the transport header at the start of `bytes`; `None` if the
/// header is truncated.
pub(super) fn transport_len(protocol: Protocol, bytes: &[u8]) -> Option<usize> {
    let len = match protocol {
        Protocol::Udp => udp::HEADER_LEN,
        Protocol::Tcp4 | Protocol::Tcp6 => {
            let words = bytes.first_chunk::<TCP_HEADER_LEN_MIN>()?[TCP_DATA_OFFSET] >> 4;
            Some(usize::from(words) * 4).filter(|len| *len >= TCP_HEADER_LEN_MIN)?
        }
    };
    (len <= bytes.len()).then_some(len)
}

/// Offsets and lengths that all segments of a packet have in common.
#[derive(Debug, Clone, Copy)]
struct CutPlan {
    src: IpAddr,
    dst: IpAddr,
    ip_len: usize,
    /// Offset of the transport header in the packet.
    transport: usize,
    how: Segmentation,
    /// Whether the device computes the transport checksums of the segments.
    partial: bool,
}

impl CutPlan {
    /// Computes the plan to segment a packet. Returns `None` if its headers are truncated, or
    /// longer than `how` states.
    fn of(packet: &Packet, how: Segmentation, partial: bool) -> Option<Self> {
        let bytes = packet.linear().get(..how.header_len.into())?;
        let (src, dst, ip_len) = if let Ok((header, ip_len)) = ipv6::Header::parse_quoted(bytes) {
            (header.src.into(), header.dst.into(), ip_len)
        } else {
            let (header, ip_len) = ipv4::Header::parse_quoted(bytes).ok()?;
            (header.src.into(), header.dst.into(), ip_len)
        };
        // If there are extension headers, only the checksum metadata contain the offset of the
        // transport header.
        let transport = match packet.meta.checksum {
            Checksum::Partial { start, .. } => start.into(),
            Checksum::Unknown | Checksum::Verified => ip_len,
        };
        let transport_bytes = bytes.get(transport.max(ip_len)..)?;
        transport_len(how.protocol, transport_bytes)?;
        (transport >= ip_len).then_some(Self { src, dst, ip_len, transport, how, partial })
    }

    fn protocol(&self) -> u8 {
        match self.how.protocol {
            Protocol::Tcp4 | Protocol::Tcp6 => IpProtocol::TCP.0,
            Protocol::Udp => IpProtocol::UDP.0,
        }
    }

    fn checksum_at(&self) -> usize {
        if self.protocol() == IpProtocol::UDP.0 { UDP_CHECKSUM_OFFSET } else { TCP_CHECKSUM_OFFSET }
    }
}

/// Divides a packet, which begins with its IP header, into segments, and passes each one to `out`.
/// With `partial`, the segments get partial checksums, which the device completes.
///
/// # Errors
///
/// Returns the packet if its headers do not have the length that `how` states.
pub(super) fn cut(
    packet: Packet,
    how: Segmentation,
    partial: bool,
    pool: &mut Pool,
    mut out: impl FnMut(Packet, &mut Pool),
) -> Result<(), Packet> {
    let Some(plan) = CutPlan::of(&packet, how, partial) else { return Err(packet) };
    let header_len = usize::from(how.header_len);
    let size = usize::from(how.size.max(1));
    let payload_len = packet.len() - header_len;
    let count = how.pieces(packet.len());
    for n in 0..count {
        let (from, to) = (n * size, payload_len.min((n + 1) * size));
        let mut segment = pool.take(header_len + to - from);
        let bytes = segment.push_back(header_len + to - from).expect("taken with room");
        packet.copy_to(0, &mut bytes[..header_len]);
        packet.copy_to(header_len + from, &mut bytes[header_len..]);
        patch_ip(bytes, plan.ip_len, n);
        patch_transport(&mut bytes[plan.transport..], &plan, from as u32, n == 0, n + 1 == count);
        segment.meta = packet.meta;
        segment.meta.segmentation = None;
        segment.meta.checksum = if partial {
            let (start, offset) = (plan.transport as u16, plan.checksum_at() as u16);
            Checksum::Partial { start, offset }
        } else {
            Checksum::Unknown
        };
        out(segment, pool);
    }
    pool.give(packet);
    Ok(())
}

/// Sets the length, the identification and the checksum in the IP header of segment number `n`.
fn patch_ip(bytes: &mut [u8], ip_len: usize, n: usize) {
    if bytes[0] >> 4 == 6 {
        let payload_len = (bytes.len() - ipv6::HEADER_LEN) as u16;
        bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
        return;
    }
    let total_len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
    let ident = u16::from_be_bytes([bytes[4], bytes[5]]).wrapping_add(n as u16);
    bytes[4..6].copy_from_slice(&ident.to_be_bytes());
    refresh_ipv4_checksum(&mut bytes[..ip_len]);
}

/// Computes the checksum of an IPv4 header, and writes it into the header.
pub(super) fn refresh_ipv4_checksum(header: &mut [u8]) {
    debug_assert!(header.len() >= ipv4::HEADER_LEN);
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header, 0));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the sequence number, flags, length and checksum of a segment. `offset` is the offset of the
/// segment's payload in the payload of the original packet.
fn patch_transport(bytes: &mut [u8], how: &CutPlan, offset: u32, first: bool, last: bool) {
    let len = bytes.len();
    if how.protocol() == IpProtocol::UDP.0 {
        bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        let seq = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        bytes[4..8].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        let mut flags = Flags(u16::from(bytes[13]));
        if !last {
            flags = flags.without(Flags::FIN | Flags::PSH);
        }
        if !first {
            // Only the first segment has CWR, which confirms a congestion signal once (RFC 3168
            // §6.1.2).
            flags = flags.without(Flags::CWR);
        }
        bytes[13] = flags.0 as u8;
    }
    let at = how.checksum_at();
    let pseudo = pseudo_sum(how.src, how.dst, how.protocol(), len);
    bytes[at..at + 2].fill(0);
    if how.partial {
        bytes[at..at + 2].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
    } else {
        fill_checksum(bytes, at, pseudo, how.protocol());
    }
}
