//! Reads the header fields that rules of the packet filter match.

use core::net::IpAddr;

use towpath_filter::{Fields, FlowState, Hook};
use towpath_pool::Packet;
use towpath_wire::ipv6_ext::UpperLayer;
use towpath_wire::{IpProtocol, ipv4, ndp};

use super::ip_packet::IpPacket;
use super::refusal::RuleRefusal;

const TCP_FLAGS_AT: usize = 13;
const TCP_HEADER_MIN: usize = 20;
pub(super) const SCTP: IpProtocol = IpProtocol(132);
pub(super) const DCCP: IpProtocol = IpProtocol(33);
pub(super) const UDP_LITE: IpProtocol = IpProtocol(136);

/// Returns header fields with addresses and protocol. Ports and other transport fields are unset.
#[inline]
pub(super) fn of_ends(src: IpAddr, dst: IpAddr, protocol: IpProtocol) -> Fields {
    Fields {
        hook: Hook::Prerouting,
        src,
        dst,
        protocol: protocol.0,
        ports: None,
        tcp_flags: 0,
        icmp: None,
        iface_in: None,
        iface_out: None,
        state: FlowState::Untracked,
        mark: 0,
    }
}

/// Returns the header fields of an unfragmented IPv4 packet without options. `bytes` begins with
/// the IP header.
#[inline]
pub(super) fn of_plain_v4(bytes: &[u8]) -> Fields {
    let (header, transport) = bytes.split_first_chunk().unwrap_or((&[0; ipv4::HEADER_LEN], &[]));
    let (words, _) = header.as_chunks::<4>();
    let (src, dst) = (IpAddr::from(words[3]), IpAddr::from(words[4]));
    let mut fields = of_ends(src, dst, IpProtocol(words[2][1]));
    read_transport(&mut fields, transport);
    fields
}

/// Reads ports, TCP flags and ICMP type, as far as `bytes` contains the transport header.
#[inline]
pub(super) fn read_transport(fields: &mut Fields, bytes: &[u8]) {
    match IpProtocol(fields.protocol) {
        IpProtocol::TCP | IpProtocol::UDP | SCTP | DCCP | UDP_LITE => {
            if let Some([a, b, c, d]) = bytes.first_chunk::<4>() {
                fields.ports = Some((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])));
            }
            if fields.protocol == IpProtocol::TCP.0 {
                fields.tcp_flags = bytes.get(TCP_FLAGS_AT).copied().unwrap_or(0);
            }
        }
        IpProtocol::ICMP | IpProtocol::ICMPV6 => {
            fields.icmp = bytes.first_chunk::<2>().map(|[kind, code]| (*kind, *code));
        }
        _ => {}
    }
}

/// Returns whether a packet is a neighbour discovery message that no router has forwarded (hop
/// limit 255).
pub(super) fn is_discovery(fields: &Fields, ttl: u8) -> bool {
    let kinds = ndp::ROUTER_SOLICIT..=ndp::REDIRECT;
    let is_kind = fields.icmp.is_some_and(|(kind, _)| kinds.contains(&kind));
    fields.protocol == IpProtocol::ICMPV6.0 && is_kind && ttl == ndp::HOP_LIMIT
}

/// Returns the transport header of a packet. Refuses a packet that hides the header, or a fragment
/// that could overwrite it. Offsets 8 and 16 are refused for every protocol, because no link needs
/// them: fragments for an MTU of 68 bytes (RFC 791) carry 48.
//= https://www.rfc-editor.org/rfc/rfc1858#section-3.2.2
//# IF FO=1 and PROTOCOL=TCP then
//# DROP PACKET
//= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
//# If the first fragment does not include all headers through an
//# Upper-Layer header, then that fragment should be discarded
pub(super) fn visible_upper(packet: &Packet, ip: &IpPacket) -> Result<UpperLayer, RuleRefusal> {
    let upper = ip.upper(packet).ok_or(RuleRefusal::Hidden)?;
    let is_first = upper.fragment_offset == 0 && upper.more_fragments;
    let is_incomplete = is_first && ip.end < upper.at + header_len_min(upper.protocol);
    if is_incomplete || (1..TCP_HEADER_MIN).contains(&upper.fragment_offset) {
        return Err(RuleRefusal::Fragment);
    }
    Ok(upper)
}

/// Returns the minimum number of bytes of a transport header that include all fields that packet
/// filter rules match.
fn header_len_min(protocol: IpProtocol) -> usize {
    match protocol {
        IpProtocol::TCP => TCP_HEADER_MIN,
        IpProtocol::UDP | UDP_LITE | IpProtocol::ICMP | IpProtocol::ICMPV6 => 8,
        SCTP | DCCP => 12,
        _ => 0,
    }
}
