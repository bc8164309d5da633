//! Interface through which the connection tracker reads and changes packets.

use core::net::IpAddr;

use towpath_filter::{Fields, FlowState};
use towpath_wire::{IpProtocol, ipv4, ipv6, ipv6_ext};

use crate::tuple::Tuple;

/// Identification of a fragmented packet, and the position of one of its fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentPosition {
    /// Identification field of the IP header, which all fragments of a packet share.
    pub ident: u32,
    /// Whether this is the first fragment, which contains the transport header.
    pub is_first: bool,
}

/// Number that the tracker attaches to a packet at its first hook, and reads back at the last hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketToken(pub u64);

/// A packet at a hook of the router. Methods that change the packet also update its checksums.
pub trait PacketView {
    /// Returns the packet's current header fields, its hook and interfaces.
    fn fields(&self) -> &Fields;
    /// Returns the transport header and payload, as far as they are contiguous in memory. Returns
    /// an empty slice for all fragments but the first.
    fn transport(&self) -> &[u8];
    /// Returns the length of transport header and payload in bytes.
    fn transport_len(&self) -> usize;
    /// Returns the length of the packet in bytes.
    fn len(&self) -> usize;
    /// Returns whether the packet has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the position of a fragment in its packet; `None` for an unfragmented packet.
    fn fragment(&self) -> Option<FragmentPosition>;
    /// Replaces the packet's source address, and updates its checksums.
    fn set_src(&mut self, src: IpAddr);
    /// Replaces the packet's destination address, and updates its checksums.
    fn set_dst(&mut self, dst: IpAddr);
    /// Replaces both ports. Returns false if the packet has no ports.
    fn set_ports(&mut self, src: u16, dst: u16) -> bool;
    /// Overwrites bytes at an even offset of the transport header and payload
    /// ([`transport`](Self::transport)). Returns false if the offset is out of bounds.
    fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool;
    /// Returns the token (a number) that [`set_tracked`](Self::set_tracked) attached to the packet
    /// at an earlier hook.
    fn token(&self) -> PacketToken;
    /// Attaches a token (a number) to the packet, and sets the flow state that filter rules match.
    fn set_tracked(&mut self, token: PacketToken, state: FlowState);
}

/// Classification of a packet by its headers, before the flow table is consulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketSubject {
    /// A packet that belongs to the flow with this tuple (addresses, ports and protocol). If
    /// `may_open` is true, it may be the flow's first packet.
    Flow { tuple: Tuple, may_open: bool },
    /// An ICMP error that quotes a packet with this tuple (addresses, ports and protocol).
    Error(Tuple),
    /// A fragment other than the first, which has no transport header.
    LaterFragment,
    /// A packet with invalid headers, or of a kind that the tracker does not handle.
    Invalid,
}

const ICMP_ERRORS: [u8; 4] = [3, 4, 11, 12];
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const TIMESTAMP_REQUEST: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Offset of the quoted packet in an ICMP error, in bytes.
pub(crate) const QUOTE_AT: usize = 8;
/// Offset of the identifier in an ICMP query, in bytes.
pub(crate) const IDENT_AT: usize = 4;

/// Returns the request type of the ICMP query that type `kind` belongs to, and whether `kind` is
/// that request type.
fn query_of(kind: u8, is_v4: bool) -> Option<(u8, bool)> {
    Some(match (is_v4, kind) {
        (true, ECHO_REQUEST | ECHO_REPLY) => (ECHO_REQUEST, kind == ECHO_REQUEST),
        (true, TIMESTAMP_REQUEST | TIMESTAMP_REPLY) => {
            (TIMESTAMP_REQUEST, kind == TIMESTAMP_REQUEST)
        }
        (false, ECHO_REQUEST_V6 | ECHO_REPLY_V6) => (ECHO_REQUEST_V6, kind == ECHO_REQUEST_V6),
        _ => return None,
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Classifies a packet by its headers.
pub(crate) fn subject(packet: &impl PacketView) -> PacketSubject {
    let fields = packet.fields();
    let &Fields { src, dst, protocol, .. } = fields;
    if packet.fragment().is_some_and(|fragment| !fragment.is_first) {
        return PacketSubject::LaterFragment;
    }
    let whole = Tuple { src, dst, src_port: 0, dst_port: 0, protocol, query: 0 };
    if let Some((src_port, dst_port)) = fields.ports {
        let tuple = Tuple { src_port, dst_port, ..whole };
        return PacketSubject::Flow { tuple, may_open: true };
    }
    match IpProtocol(protocol) {
        IpProtocol::ICMP | IpProtocol::ICMPV6 => icmp_subject(packet, whole),
        IpProtocol::TCP | IpProtocol::UDP => PacketSubject::Invalid,
        _ => PacketSubject::Flow { tuple: whole, may_open: true },
    }
}

fn icmp_subject(packet: &impl PacketView, whole: Tuple) -> PacketSubject {
    let Some((kind, _)) = packet.fields().icmp else { return PacketSubject::Invalid };
    let is_v4 = whole.src.is_ipv4();
    let is_error = if is_v4 { ICMP_ERRORS.contains(&kind) } else { kind < 128 };
    let transport = packet.transport();
    if is_error {
        let quote = transport.get(QUOTE_AT..).and_then(quoted);
        // The quoted packet must have the same IP version. An error must be sent to the source of
        // the quoted packet. Errors that this router sends are exempt, because they may quote a
        // translated source.
        let is_own = packet.fields().iface_in.is_none();
        let quote = quote.filter(|quote| match is_own {
            true => quote.tuple.src.is_ipv4() == is_v4,
            false => quote.tuple.src == whole.dst,
        });
        return quote.map_or(PacketSubject::Invalid, |quote| PacketSubject::Error(quote.tuple));
    }
    let Some(((query, may_open), ident)) = query_of(kind, is_v4).zip(be16(transport, IDENT_AT))
    else {
        return PacketSubject::Invalid;
    };
    PacketSubject::Flow {
        tuple: Tuple { src_port: ident, dst_port: ident, query, ..whole },
        may_open,
    }
}

/// The packet quoted in an ICMP error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotedPacket {
    pub tuple: Tuple,
    /// Offset of the quoted packet's transport header.
    pub transport_at: usize,
}

/// Parses the start of an IP packet, up to its ports. Returns `None` for fragments other than the
/// first, and for truncated packets.
pub(crate) fn quoted(bytes: &[u8]) -> Option<QuotedPacket> {
    let (src, dst, protocol, transport_at): (IpAddr, IpAddr, _, _) = match bytes.first()? >> 4 {
        4 => {
            let (header, at) = ipv4::Header::parse_quoted(bytes).ok()?;
            if header.fragment_offset != 0 {
                return None;
            }
            (header.src.into(), header.dst.into(), header.protocol, at)
        }
        _ => {
            let (header, _) = ipv6::Header::parse_quoted(bytes).ok()?;
            let upper = ipv6_ext::upper_by_lengths(bytes, &header)?;
            if upper.fragment_offset != 0 {
                return None;
            }
            (header.src.into(), header.dst.into(), upper.protocol, upper.at)
        }
    };
    let transport = bytes.get(transport_at..)?;
    let whole = Tuple { src, dst, src_port: 0, dst_port: 0, protocol: protocol.0, query: 0 };
    const SCTP: u8 = 132;
    let tuple = match protocol {
        IpProtocol::ICMP | IpProtocol::ICMPV6 => {
            let (query, _) = query_of(*transport.first()?, src.is_ipv4())?;
            let ident = be16(transport, IDENT_AT)?;
            Tuple { src_port: ident, dst_port: ident, query, ..whole }
        }
        _ if whole.has_ports() || protocol.0 == SCTP => {
            Tuple { src_port: be16(transport, 0)?, dst_port: be16(transport, 2)?, ..whole }
        }
        _ => whole,
    };
    Some(QuotedPacket { tuple, transport_at })
}
