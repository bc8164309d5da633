//! Validates the offload metadata of received packets. The sender of a packet may have written
//! arbitrary metadata.

use towpath_pool::{Checksum, Packet, Protocol, Segmentation};
use towpath_wire::ipv6_ext::UpperLayer;
use towpath_wire::tcp::CHECKSUM_OFFSET as TCP_CHECKSUM_OFFSET;
use towpath_wire::udp::CHECKSUM_OFFSET as UDP_CHECKSUM_OFFSET;
use towpath_wire::{IpProtocol, icmpv4, ipv4};

use super::ip_packet::IpPacket;
use super::offload::transport_len;

/// Returns whether the offload metadata of a received packet are consistent with its headers. The
/// device has only checked that they lie within the frame.
///
/// The checksum to be completed must be that of the transport header, or of a packet in a tunnel.
/// Otherwise completing it could change header fields after packet filter rules have accepted the
/// packet.
pub(super) fn is_consistent(packet: &Packet, ip: &IpPacket) -> bool {
    let Some(upper) = ip.upper(packet) else { return false };
    if upper.fragment_offset > 0 || upper.more_fragments {
        return false;
    }
    let is_sum_sound = match packet.meta.checksum {
        Checksum::Partial { start, offset } => {
            let start = usize::from(start);
            let is_own = start == upper.at && own_offset(upper.protocol) == Some(offset);
            let is_within = start + usize::from(offset) + 2 <= ip.end && start <= HEADERS_MAX;
            is_within && (is_own || is_of_tunnel(packet, &upper, start, offset))
        }
        Checksum::Unknown | Checksum::Verified => true,
    };
    is_sum_sound
        && packet.meta.segmentation.is_none_or(|how| segments_are_sound(packet, ip, &upper, how))
}

/// Returns whether the checksum to be completed belongs to a packet in a tunnel. Some devices
/// cannot complete such a checksum: the drivers of DPDK would use the outer header.
pub(super) fn leaves_inner_checksum(packet: &Packet, ip: &IpPacket) -> bool {
    let Checksum::Partial { start, .. } = packet.meta.checksum else { return false };
    ip.upper(packet).is_none_or(|upper| upper.at != usize::from(start))
}

/// Maximum length in bytes of the headers of a packet with offload metadata, including the link
/// header. If another link header is prepended, the sum still fits in 16 bits.
const HEADERS_MAX: usize = 65_000;
/// Minimum distance in bytes between the transport header of a tunnel and that of the packet in the
/// tunnel: the length of an IP header.
const TUNNEL_MIN: usize = ipv4::HEADER_LEN;

/// Returns the offset of the checksum field in the transport header of a protocol; `None` if the
/// protocol has none.
fn own_offset(protocol: IpProtocol) -> Option<u16> {
    match protocol {
        IpProtocol::TCP => Some(TCP_CHECKSUM_OFFSET as u16),
        IpProtocol::UDP => Some(UDP_CHECKSUM_OFFSET as u16),
        // Our own stack leaves ICMP checksums uncomputed on a link between two stacks in memory.
        IpProtocol::ICMP | IpProtocol::ICMPV6 => Some(icmpv4::CHECKSUM_OFFSET as u16),
        _ => None,
    }
}

/// Returns whether the checksum to be completed is that of a TCP or UDP packet in a tunnel. Linux
/// leaves it uncomputed over a veth. Packet filter rules read only the first [`TUNNEL_MIN`] bytes
/// of a transport header, so they have not read this field.
fn is_of_tunnel(packet: &Packet, upper: &UpperLayer, start: usize, offset: u16) -> bool {
    let is_checksum = [TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET].contains(&usize::from(offset));
    upper.protocol != IpProtocol::TCP
        && packet.meta.segmentation.is_none()
        && is_checksum
        && start >= upper.at + TUNNEL_MIN
}

fn segments_are_sound(
    packet: &Packet,
    ip: &IpPacket,
    upper: &UpperLayer,
    how: Segmentation,
) -> bool {
    let (is_v4, protocol) = (ip.src.is_ipv4(), upper.protocol);
    let is_protocol = match how.protocol {
        Protocol::Tcp4 => is_v4 && protocol == IpProtocol::TCP,
        Protocol::Tcp6 => !is_v4 && protocol == IpProtocol::TCP,
        Protocol::Udp => protocol == IpProtocol::UDP,
    };
    let transport = packet.linear().get(upper.at..ip.end.min(packet.linear().len()));
    let header_len = transport.and_then(|bytes| transport_len(how.protocol, bytes));
    let end = header_len.map(|len| upper.at + len);
    is_protocol
        && how.size > 0
        && how.pieces(ip.end) <= Segmentation::PIECES_MAX
        && end == Some(usize::from(how.header_len))
        && end.is_some_and(|end| end <= HEADERS_MAX)
}
