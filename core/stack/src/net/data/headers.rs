//! Parses and validates the IP headers of a received packet.

use towpath_pool::Packet;
use towpath_wire::ipv6_ext::{self, ChainError};
use towpath_wire::{IpProtocol, icmpv4, icmpv6, ipv4, ipv6, ndp};

use super::ip_packet::{FragmentPiece, IpPacket, Tracked};
use super::report::Report;
use crate::drop::DropReason;

/// Reason why a received packet's IP headers are rejected, and the ICMP error to send, if any.
#[derive(Debug)]
pub(super) enum HeaderRefusal {
    Silently(DropReason),
    Problem {
        report: Report,
        ip: IpPacket,
    },
    /// The packet has extension headers that only its destination must support. A router ignores
    /// this problem, and forwards the packet.
    Unread {
        reason: DropReason,
        ip: IpPacket,
    },
}

impl From<DropReason> for HeaderRefusal {
    fn from(reason: DropReason) -> Self {
        Self::Silently(reason)
    }
}

/// Parses and validates the IPv4 header at offset `at`. The header checksum of a packet from this
/// host to itself is not verified, because no link can have corrupted it.
pub(super) fn read_ipv4(
    packet: &Packet,
    at: usize,
    looped: bool,
) -> Result<IpPacket, HeaderRefusal> {
    let bytes = packet.linear().get(at..).unwrap_or_default();
    let (header, header_len) =
        ipv4::Header::parse_quoted(bytes).map_err(|_| DropReason::IpMalformed)?;
    let total_len = usize::from(header.total_len);
    if total_len < header_len || at + total_len > packet.len() {
        return Err(DropReason::IpMalformed.into());
    }
    if !looped && !ipv4::checksum_ok(&bytes[..header_len]) {
        return Err(DropReason::IpChecksum.into());
    }
    let fragment = header.is_fragment().then(|| FragmentPiece {
        offset: usize::from(header.fragment_offset),
        more: header.more_fragments,
        ident: u32::from(header.ident),
        next_header: None,
    });
    let ip = IpPacket::of_v4(&header, at, header_len, fragment);
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# a TCP implementation MUST ignore options that it does not understand (MUST-50).
    if header.options.is_empty() {
        return Ok(ip);
    }
    if header.options.has_source_route() {
        return Err(DropReason::IpSourceRoute.into());
    }
    //= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.2.5
    //# A host SHOULD generate Parameter Problem messages.
    match header.options.malformed_at() {
        None => Ok(ip),
        Some(bad) => {
            let pointer = (ipv4::HEADER_LEN + bad) as u8;
            let report = Report::V4(icmpv4::Message::ParamProblem { code: 0, pointer });
            Err(HeaderRefusal::Problem { report, ip })
        }
    }
}

/// Parses and validates an IPv6 header at offset `at`, and its extension headers.
pub(super) fn read_ipv6(packet: &Packet, at: usize) -> Result<IpPacket, HeaderRefusal> {
    let bytes = packet.linear().get(at..).unwrap_or_default();
    let (header, header_len) =
        ipv6::Header::parse_quoted(bytes).map_err(|_| DropReason::IpMalformed)?;
    let len = header_len + usize::from(header.payload_len);
    let extended = header.next_header.is_ipv6_extension();
    // Only packets that a stack on this host sent have a payload outside the linear part, and they
    // have no extension headers.
    if at + len > packet.len() || extended && len > bytes.len() {
        return Err(DropReason::IpMalformed.into());
    }
    let mut ip = IpPacket {
        src: header.src.into(),
        dst: header.dst.into(),
        protocol: header.next_header,
        ttl: header.hop_limit,
        tos: header.traffic_class,
        ip_offset: at,
        offset: at + header_len,
        end: at + len,
        fragment: None,
        tracked: Tracked::default(),
        is_rewritten: false,
    };
    if !extended {
        return Ok(ip);
    }
    let chain = match ipv6_ext::walk(&bytes[..len], &header) {
        Ok(chain) => chain,
        Err(ChainError::ParamProblem { code, pointer, even_if_multicast }) => {
            let message = icmpv6::Message::ParamProblem { code, pointer };
            let report = match even_if_multicast {
                true => Report::V6EvenGroup(message),
                false => Report::V6(message),
            };
            return Err(HeaderRefusal::Problem { report, ip });
        }
        Err(_) => return Err(HeaderRefusal::Unread { reason: DropReason::IpMalformed, ip }),
    };
    ip.protocol = chain.upper;
    ip.offset = at + chain.upper_at;
    if chain.fragment.is_some_and(|fragment| fragment.is_atomic()) && is_discovery(packet, &ip) {
        return Err(HeaderRefusal::Unread { reason: DropReason::NeighborMalformed, ip });
    }
    ip.fragment =
        chain.fragment.filter(|fragment| !fragment.is_atomic()).map(|fragment| FragmentPiece {
            offset: usize::from(fragment.offset),
            more: fragment.more,
            ident: fragment.ident,
            next_header: Some((fragment.named_at as u32, fragment.next_header.0)),
        });
    Ok(ip)
}

/// Returns whether the packet is a neighbour discovery message, which must not be fragmented.
//= https://www.rfc-editor.org/rfc/rfc6980#section-5
//# Nodes MUST silently ignore the following Neighbor Discovery and SEcure
//# Neighbor Discovery messages if the packets carrying them include an IPv6
//# Fragmentation Header
pub(super) fn is_discovery(packet: &Packet, ip: &IpPacket) -> bool {
    ip.protocol == IpProtocol::ICMPV6
        && packet
            .linear()
            .get(ip.offset)
            .is_some_and(|kind| (ndp::ROUTER_SOLICIT..=ndp::REDIRECT).contains(kind))
}
