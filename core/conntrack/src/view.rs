//! Packets as the tracker sees them, and the fields that it reads.

use core::net::IpAddr;

use towpath_filter::{Fields, FlowState};
use towpath_wire::{IpProtocol, ipv4, ipv6, ipv6_ext};

use crate::tuple::Tuple;

/// Position of a fragment in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentPosition {
    /// Identification, by which the fragments of a packet are recognised.
    pub ident: u32,
    /// Whether this is the first fragment, which has the transport header.
    pub is_first: bool,
}

/// Value that the tracker attaches to a packet at its first hook, and reads at the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketToken(pub u64);

/// A packet at a hook. Each change keeps its checksums valid.
pub trait PacketView {
    /// Returns the current fields of the packet, with its hook and interfaces.
    fn fields(&self) -> &Fields;
    /// Returns the transport header and the payload behind it, as far as they are in one piece of
    /// memory. Empty for a fragment other than the first.
    fn transport(&self) -> &[u8];
    /// Returns the length of transport header and payload.
    fn transport_len(&self) -> usize;
    /// Returns the length of the packet.
    fn len(&self) -> usize;
    /// Returns whether the packet has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the position of a fragment; `None` for a whole packet.
    fn fragment(&self) -> Option<FragmentPosition>;
    /// Replaces the source address.
    fn set_src(&mut self, src: IpAddr);
    /// Replaces the destination address.
    fn set_dst(&mut self, dst: IpAddr);
    /// Replaces both ports. Returns false if the packet has none.
    fn set_ports(&mut self, src: u16, dst: u16) -> bool;
    /// Replaces bytes at an even offset of [`transport`](Self::transport). Returns false if they
    /// are not there.
    fn rewrite(&mut self, at: usize, bytes: &[u8]) -> bool;
    /// Returns the token of [`set_tracked`](Self::set_tracked) at an earlier hook.
    fn token(&self) -> PacketToken;
    /// Attaches a token, and the state that rules see.
    fn set_tracked(&mut self, token: PacketToken, state: FlowState);
}

/// Flow of a packet, according to its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketSubject {
    /// A packet of a flow. `may_open`: it can be the first of the flow.
    Flow { tuple: Tuple, may_open: bool },
    /// An ICMP error about a packet with this tuple.
    Error(Tuple),
    /// A fragment without transport header.
    LaterFragment,
    /// A packet that is neither valid nor tracked.
    Invalid,
}

const ICMP_ERRORS: [u8; 4] = [3, 4, 11, 12];
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const TIMESTAMP_REQUEST: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// Offset of the packet that an ICMP error quotes.
pub(crate) const QUOTE_AT: usize = 8;
/// Offset of the identifier of an ICMP query.
pub(crate) const IDENT_AT: usize = 4;

/// Returns the request's type of an ICMP query, and whether `kind` is the request.
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

/// Reads the flow of a packet.
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
        // Require the same IP version in the quotation. An error must go to the quoted source,
        // except errors of this router, which may quote a translated source.
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

/// The packet that an ICMP error quotes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotedPacket {
    pub tuple: Tuple,
    /// Offset of its transport header.
    pub transport_at: usize,
}

/// Parses the start of an IP packet as far as its ports. `None` for a later fragment, and for a
/// packet of which too little is there.
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
