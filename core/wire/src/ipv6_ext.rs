//! IPv6 extension headers (RFC 8200 §4): parses them from the IPv6 header to the transport header
//! (the upper layer).
//!
//! The numbers of headers and options are limited by [`HEADERS_MAX`] and [`OPTIONS_MAX`], as RFC
//! 8504 §5.3 permits. Each error includes the ICMPv6 Parameter Problem to send, if any. A packet
//! without extension headers, by far the most common case, needs one comparison.

use crate::bytes::{at, be16, head_mut};
use crate::{IpProtocol, ParseError, icmpv6, ipv6};

/// Maximum number of extension headers per packet. The recommended order of RFC 8200 §4.1 has
/// seven.
pub const HEADERS_MAX: usize = 8;
/// Maximum number of options in one options header; padding is not counted (RFC 8504 §5.3).
pub const OPTIONS_MAX: usize = 8;
/// Length of an IPv6 fragment header in bytes.
pub const FRAGMENT_LEN: usize = 8;
/// Length in bytes of the hop-by-hop header that [`emit_router_alert`] writes.
pub const ROUTER_ALERT_LEN: usize = 8;

/// Result of parsing the extension headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Protocol of the upper layer, such as TCP. For a fragment, the type of the first header in
    /// the fragmented part.
    pub upper: IpProtocol,
    /// Offset of the upper-layer header, or of the fragment's data, from the start of the IPv6
    /// header.
    pub upper_at: usize,
    /// Offset of the next-header field that contains the protocol `upper`. If this protocol is
    /// unknown, an ICMPv6 Parameter Problem points to this offset.
    pub upper_named_at: usize,
    /// The fragment header; `None` if there is none. Unless the fragment [is
    /// atomic](FragmentHeader::is_atomic), parsing stops after this header, because the packet must
    /// be reassembled first.
    pub fragment: Option<FragmentHeader>,
    /// Value of the Router Alert option in the hop-by-hop header (RFC 2711), 0 for MLD; `None`
    /// without this option.
    pub router_alert: Option<u16>,
}

/// An IPv6 fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Type of the first header in the fragmented part.
    pub next_header: IpProtocol,
    /// Offset of this fragment in the fragmented part of the packet, in bytes; a multiple of 8.
    pub offset: u16,
    /// Whether more fragments follow this one.
    pub more: bool,
    /// Identification, which all fragments of a packet share.
    pub ident: u32,
    /// Offset of the fragment header from the start of the IPv6 header. The headers before it form
    /// the unfragmentable part.
    pub header_at: usize,
    /// Offset of the next-header field that refers to the fragment header. Reassembly writes
    /// `next_header` there.
    pub named_at: usize,
}

impl FragmentHeader {
    /// Returns whether this fragment is the whole packet, to be processed as if it had no fragment
    /// header.
    //= https://www.rfc-editor.org/rfc/rfc6946#section-4
    //# A host that receives an IPv6 packet that includes a Fragment Header with the "Fragment Offset"
    //# equal to 0 and the "M" flag equal to 0 MUST process that packet in isolation from any other
    //# packets/fragments
    #[inline]
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }

    /// Writes the fragment header to `buf`, and returns its length in bytes, 8.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let h = head_mut::<FRAGMENT_LEN>(buf);
        h[0] = self.next_header.0;
        h[1] = 0;
        h[2..4].copy_from_slice(&(self.offset & !7 | u16::from(self.more)).to_be_bytes());
        h[4..].copy_from_slice(&self.ident.to_be_bytes());
        FRAGMENT_LEN
    }
}

/// Reason why the extension headers of a packet were rejected, and how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainError {
    /// Drop the packet without an answer.
    Discard(ParseError),
    /// Drop the packet, and send an ICMPv6 Parameter Problem, unless RFC 4443 §2.4 (e) forbids it.
    ParamProblem {
        /// Code of the Parameter Problem.
        code: u8,
        /// Pointer of the Parameter Problem: an offset from the start of the IPv6 header.
        pointer: u32,
        /// Whether the Parameter Problem is sent even if the packet had a multicast destination.
        even_if_multicast: bool,
    },
}

impl ChainError {
    const fn problem(code: u8, pointer: usize) -> Self {
        Self::ParamProblem { code, pointer: pointer as u32, even_if_multicast: false }
    }
}

impl From<ParseError> for ChainError {
    fn from(error: ParseError) -> Self {
        Self::Discard(error)
    }
}

/// Parses the extension headers of a packet. `packet` must begin with the IPv6 header, and end with
/// the payload. `header` is the parsed IPv6 header.
#[inline]
pub fn walk(packet: &[u8], header: &ipv6::Header) -> Result<Chain, ChainError> {
    let chain = Chain {
        upper: header.next_header,
        upper_at: ipv6::HEADER_LEN,
        upper_named_at: NEXT_HEADER_AT,
        fragment: None,
        router_alert: None,
    };
    if !header.next_header.is_ipv6_extension() {
        return Ok(chain);
    }
    walk_headers(packet, chain)
}

/// The upper layer of a packet or fragment, found without validating the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Protocol of the upper layer, such as TCP. In a fragment other than the first, this is the
    /// value of a header field that is not verified, and may be an extension header.
    pub protocol: IpProtocol,
    /// Offset in the packet of the upper-layer header. For a fragment other than the first, the
    /// offset of its data.
    pub at: usize,
    /// Offset of the fragment in its packet, in bytes; 0 for a packet that is not fragmented.
    pub fragment_offset: usize,
    /// Whether more fragments follow this one.
    pub more_fragments: bool,
}

/// Finds the upper layer of a packet, using only the lengths of the extension headers. The number
/// of headers is not limited. Unlike [`walk`], this function accepts headers that a receiver would
/// reject. `packet` must begin with the IPv6 header, and end with the payload.
///
/// Returns `None` if the packet ends within an extension header, or has two fragment headers. The
/// loop ends, because each header has at least 8 bytes.
pub fn upper_by_lengths(packet: &[u8], header: &ipv6::Header) -> Option<UpperLayer> {
    let mut upper = UpperLayer {
        protocol: header.next_header,
        at: ipv6::HEADER_LEN,
        fragment_offset: 0,
        more_fragments: false,
    };
    let mut is_fragment = false;
    loop {
        let len = match upper.protocol {
            IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS | IpProtocol::ROUTING => {
                extension_len(packet, upper.at).ok()?
            }
            IpProtocol::FRAGMENT if is_fragment => return None,
            IpProtocol::FRAGMENT => {
                let [_, _, hi, lo, ..] = *at::<FRAGMENT_LEN>(packet, upper.at).ok()?;
                let field = be16(hi, lo);
                upper.fragment_offset = usize::from(field & !7);
                upper.more_fragments = field & 1 != 0;
                is_fragment = true;
                FRAGMENT_LEN
            }
            _ => return Some(upper),
        };
        let [next] = *at::<1>(packet, upper.at).ok()?;
        (upper.protocol, upper.at) = (IpProtocol(next), upper.at + len);
        if upper.fragment_offset > 0 {
            return Some(upper);
        }
    }
}

/// Processes only the hop-by-hop options, as required of a forwarding router. Returns the value of
/// a Router Alert.
//= https://www.rfc-editor.org/rfc/rfc8200#section-4
//# Extension headers (except for the Hop-by-Hop Options header) are not
//# processed, inserted, or deleted by any node along a packet's delivery
//# path, until the packet reaches the node
pub fn walk_hop_by_hop(packet: &[u8], header: &ipv6::Header) -> Result<Option<u16>, ChainError> {
    if header.next_header != IpProtocol::HOP_BY_HOP {
        return Ok(None);
    }
    let len = extension_len(packet, ipv6::HEADER_LEN)?;
    walk_options(packet, ipv6::HEADER_LEN, len)
}

/// Writes a hop-by-hop header with a Router Alert option to `buf`, and returns its length in bytes,
/// 8. The `value` 0 stands for MLD (RFC 2711 §2.1).
pub fn emit_router_alert(next_header: IpProtocol, value: u16, buf: &mut [u8]) -> usize {
    let [hi, lo] = value.to_be_bytes();
    let h = head_mut::<ROUTER_ALERT_LEN>(buf);
    *h = [next_header.0, 0, OPTION_ROUTER_ALERT, 2, hi, lo, OPTION_PAD_N, 0];
    ROUTER_ALERT_LEN
}

const NEXT_HEADER_AT: usize = 6;
const PAYLOAD_LEN_AT: usize = 4;

const OPTION_PAD1: u8 = 0;
const OPTION_PAD_N: u8 = 1;
const OPTION_ROUTER_ALERT: u8 = 5;

fn walk_headers(packet: &[u8], mut chain: Chain) -> Result<Chain, ChainError> {
    for _ in 0..HEADERS_MAX {
        let here = chain.upper_at;
        let len = match chain.upper {
            IpProtocol::HOP_BY_HOP => {
                //= https://www.rfc-editor.org/rfc/rfc8200#section-4
                //# The same
                //# action should be taken if a node encounters a Next Header value of
                //# zero in any header other than an IPv6 header.
                if here != ipv6::HEADER_LEN {
                    let code = icmpv6::PARAM_UNKNOWN_NEXT_HEADER;
                    return Err(ChainError::problem(code, chain.upper_named_at));
                }
                let len = extension_len(packet, here)?;
                chain.router_alert = walk_options(packet, here, len)?;
                len
            }
            IpProtocol::DESTINATION_OPTIONS => {
                let len = extension_len(packet, here)?;
                walk_options(packet, here, len)?;
                len
            }
            IpProtocol::ROUTING => {
                let len = extension_len(packet, here)?;
                check_routing(packet, here)?;
                len
            }
            // Drop the packet without an answer. Nested fragments are only used to evade packet
            // filters, and a second atomic fragment header has no purpose.
            IpProtocol::FRAGMENT if chain.fragment.is_some() => {
                return Err(ParseError::Unsupported.into());
            }
            IpProtocol::FRAGMENT => {
                let fragment = parse_fragment(packet, here, chain.upper_named_at)?;
                chain.fragment = Some(fragment);
                if !fragment.is_atomic() {
                    chain.upper_at = here + FRAGMENT_LEN;
                    chain.upper_named_at = here;
                    chain.upper = fragment.next_header;
                    return Ok(chain);
                }
                FRAGMENT_LEN
            }
            _ => return Ok(chain),
        };
        let [next] = *at::<1>(packet, here)?;
        chain.upper = IpProtocol(next);
        chain.upper_named_at = here;
        chain.upper_at = here + len;
    }
    if chain.upper.is_ipv6_extension() {
        return Err(ChainError::problem(icmpv6::PARAM_TOO_MANY_HEADERS, chain.upper_at));
    }
    Ok(chain)
}

/// Returns the length in bytes of the extension header at offset `here`, which must not exceed the
/// packet.
fn extension_len(packet: &[u8], here: usize) -> Result<usize, ParseError> {
    let [_, units] = *at::<2>(packet, here)?;
    let len = (usize::from(units) + 1) * 8;
    if here + len > packet.len() {
        return Err(ParseError::Truncated);
    }
    Ok(len)
}

//= https://www.rfc-editor.org/rfc/rfc5095#section-3
//# An IPv6 node that receives a packet with a destination address assigned to it and that contains an
//# RH0 extension header MUST NOT execute the algorithm specified in the latter part of Section 4.4 of
//# [RFC2460] for RH0. Instead, such packets MUST be processed according to the behaviour specified in
//# Section 4.4 of [RFC2460] for a datagram that includes an unrecognised Routing Type value
fn check_routing(packet: &[u8], here: usize) -> Result<(), ChainError> {
    let [_, _, _, segments_left] = *at::<4>(packet, here)?;
    // No type of routing header is supported. If segments are left, report an error at the type
    // field of the header.
    if segments_left != 0 {
        return Err(ChainError::problem(icmpv6::PARAM_ERRONEOUS_FIELD, here + 2));
    }
    Ok(())
}

fn parse_fragment(
    packet: &[u8],
    here: usize,
    named_at: usize,
) -> Result<FragmentHeader, ChainError> {
    let h = at::<FRAGMENT_LEN>(packet, here)?;
    let field = be16(h[2], h[3]);
    let fragment = FragmentHeader {
        next_header: IpProtocol(h[0]),
        offset: field & !7,
        more: field & 1 != 0,
        ident: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
        header_at: here,
        named_at,
    };
    let piece_len = packet.len() - here - FRAGMENT_LEN;
    //= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
    //# If the length of a fragment, as derived from the fragment packet's
    //# Payload Length field, is not a multiple of 8 octets and the M flag
    //# of that fragment packet is 1, then that fragment must be discarded
    //# and an ICMP Parameter Problem, Code 0, message should be sent to
    //# the source of the fragment, pointing to the Payload Length field
    //# of the fragment packet.
    if fragment.more && !piece_len.is_multiple_of(8) {
        return Err(ChainError::problem(icmpv6::PARAM_ERRONEOUS_FIELD, PAYLOAD_LEN_AT));
    }
    //= https://www.rfc-editor.org/rfc/rfc8200#section-4.5
    //# If the length and offset of a fragment are such that the Payload
    //# Length of the packet reassembled from that fragment would exceed
    //# 65,535 octets, then that fragment must be discarded
    let unfragmentable = here - ipv6::HEADER_LEN;
    if unfragmentable + usize::from(fragment.offset) + piece_len > ipv6::PAYLOAD_LEN_MAX {
        return Err(ChainError::problem(icmpv6::PARAM_ERRONEOUS_FIELD, here + 2));
    }
    if fragment.more && fragment.offset == 0 {
        check_first_fragment(packet, fragment.next_header, here + FRAGMENT_LEN)?;
    }
    Ok(fragment)
}

/// Checks that the first fragment contains all headers up to that of the upper layer, so that
/// packet filters can inspect them. Otherwise the packet is dropped with Parameter Problem code 3
/// (RFC 7112 §5). Options are processed after reassembly.
fn check_first_fragment(packet: &[u8], next: IpProtocol, here: usize) -> Result<(), ChainError> {
    let incomplete = ChainError::problem(icmpv6::PARAM_INCOMPLETE_CHAIN, 0);
    let (mut next, mut here) = (next, here);
    for _ in 0..HEADERS_MAX {
        let upper_len = match next {
            IpProtocol::HOP_BY_HOP | IpProtocol::FRAGMENT => {
                return Err(ParseError::Unsupported.into());
            }
            IpProtocol::ROUTING | IpProtocol::DESTINATION_OPTIONS => {
                let len = extension_len(packet, here).map_err(|_| incomplete)?;
                let [named] = *at::<1>(packet, here).map_err(|_| incomplete)?;
                next = IpProtocol(named);
                here += len;
                continue;
            }
            IpProtocol::NO_NEXT_HEADER => 0,
            IpProtocol::TCP => 20,
            IpProtocol::UDP | IpProtocol::ICMPV6 => 8,
            _ => 1,
        };
        return if here + upper_len <= packet.len() { Ok(()) } else { Err(incomplete) };
    }
    Err(ChainError::problem(icmpv6::PARAM_TOO_MANY_HEADERS, here))
}

/// Processes the options of the header at offset `here`. Returns the value of a Router Alert
/// option, if any.
fn walk_options(packet: &[u8], here: usize, len: usize) -> Result<Option<u16>, ChainError> {
    let end = here + len;
    let mut cursor = here + 2;
    let mut seen = 0;
    let mut router_alert = None;
    while cursor < end {
        let [kind] = *at::<1>(packet, cursor)?;
        if kind == OPTION_PAD1 {
            cursor += 1;
            continue;
        }
        let [_, data_len] = *at::<2>(packet, cursor)?;
        let data_len = usize::from(data_len);
        let next = cursor + 2 + data_len;
        if next > end {
            return Err(ParseError::BadOption.into());
        }
        if kind != OPTION_PAD_N {
            seen += 1;
            if seen > OPTIONS_MAX {
                return Err(ChainError::problem(icmpv6::PARAM_TOO_MANY_OPTIONS, cursor));
            }
            match (kind, data_len) {
                (OPTION_ROUTER_ALERT, 2) => {
                    let [hi, lo] = *at::<2>(packet, cursor + 2)?;
                    router_alert = Some(be16(hi, lo));
                }
                _ => refuse_unknown_option(kind, cursor)?,
            }
        }
        cursor = next;
    }
    Ok(router_alert)
}

/// Decides what happens to a packet with an unknown option, by the two highest bits of the option
/// type (RFC 8200 §4.2).
fn refuse_unknown_option(kind: u8, pointer: usize) -> Result<(), ChainError> {
    let even_if_multicast = match kind >> 6 {
        0b00 => return Ok(()),
        0b01 => return Err(ParseError::BadOption.into()),
        0b10 => true,
        _ => false,
    };
    Err(ChainError::ParamProblem {
        code: icmpv6::PARAM_UNKNOWN_OPTION,
        pointer: pointer as u32,
        even_if_multicast,
    })
}
