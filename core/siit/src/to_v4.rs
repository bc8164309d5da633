//! Translates an IPv6 packet to IPv4 (RFC 7915 section 5).

use core::net::Ipv4Addr;

use towpath_wire::ipv6_ext::{self, Chain};
use towpath_wire::{IpProtocol, checksum, icmpv4, icmpv6, ipv4, ipv6};

use crate::error::Untranslatable;
use crate::kinds::{ErrorKind, error_to_v4};
use crate::quote::{AddressMap, ERROR_HEADER_LEN, ICMP_CHECKSUM_AT, echo_to_v4, quote_to_v4};
use crate::sums::{BothEnds, TranslatedTo, update_transport};

/// Maximum length in bytes of an IPv4 packet that routers may fragment. A longer packet may not be
/// fragmented, so that its sender learns the path MTU. Shorter ones may, because an IPv6 host sends
/// 1280 bytes over any path (RFC 7915 section 5.1).
const FRAGMENTABLE_MAX: usize = ipv6::MTU_MIN - (ipv6::HEADER_LEN - ipv4::HEADER_LEN);

/// Translates the IPv6 packet `packet`, and replaces the content of `out` by the IPv4 packet from
/// `src` to `dst`. `ident` is the identification of a packet that may be fragmented.
///
/// # Errors
/// Returns the reason why the packet is not translated.
pub fn v6_to_v4(
    packet: &[u8],
    src: Ipv4Addr,
    dst: Ipv4Addr,
    map: &impl AddressMap,
    ident: u16,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    let (header, payload) = ipv6::Header::parse(packet).map_err(|_| Untranslatable::Malformed)?;
    let packet = &packet[..payload.end];
    let chain = ipv6_ext::walk(packet, &header).map_err(|_| Untranslatable::NoCounterpart)?;
    let upper = packet.get(chain.upper_at..).ok_or(Untranslatable::Malformed)?;
    let protocol = match chain.upper {
        IpProtocol::ICMPV6 => IpProtocol::ICMP,
        // ICMPv4 within IPv6 has no meaning. A header that is behind a fragment's remains.
        IpProtocol::ICMP | IpProtocol::NO_NEXT_HEADER => return Err(Untranslatable::NoCounterpart),
        protocol if protocol.is_ipv6_extension() => return Err(Untranslatable::NoCounterpart),
        protocol => protocol,
    };
    out.clear();
    out.resize(ipv4::HEADER_LEN, 0);
    let ends = BothEnds { v4: (src, dst), v6: (header.src, header.dst) };
    if protocol == IpProtocol::ICMP {
        message_to_v4(upper, &chain, &ends, map, out)?;
    } else {
        out.extend_from_slice(upper);
        if chain.fragment.is_none_or(|fragment| fragment.offset == 0) {
            update_transport(&mut out[ipv4::HEADER_LEN..], protocol, &ends, TranslatedTo::V4);
        }
    }
    emit_header(&header, &chain, protocol, &ends, ident, out)
}

/// Writes the IPv4 header to the first bytes of `out`, which contains the whole packet.
fn emit_header(
    header: &ipv6::Header,
    chain: &Chain,
    protocol: IpProtocol,
    ends: &BothEnds,
    ident: u16,
    out: &mut [u8],
) -> Result<(), Untranslatable> {
    let total_len = u16::try_from(out.len()).map_err(|_| Untranslatable::TooLong)?;
    // A fragment that ends beyond the longest IPv4 packet can never be reassembled.
    let offset = chain.fragment.map_or(0, |fragment| fragment.offset);
    if total_len.checked_add(offset).is_none() {
        return Err(Untranslatable::TooLong);
    }
    let may_fragment = chain.fragment.is_some() || out.len() <= FRAGMENTABLE_MAX;
    let own_ident = if may_fragment { ident } else { 0 };
    let translated = ipv4::Header {
        tos: header.traffic_class,
        total_len,
        ident: chain.fragment.map_or(own_ident, |fragment| fragment.ident as u16),
        dont_fragment: !may_fragment,
        more_fragments: chain.fragment.is_some_and(|fragment| fragment.more),
        fragment_offset: offset,
        ttl: header.hop_limit,
        protocol,
        src: ends.v4.0,
        dst: ends.v4.1,
        options: ipv4::Options::EMPTY,
    };
    translated.emit(out);
    Ok(())
}

/// Translates an ICMPv6 message, and appends it to `out`.
fn message_to_v4(
    message: &[u8],
    chain: &Chain,
    ends: &BothEnds,
    map: &impl AddressMap,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    if chain.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
        return Err(Untranslatable::FragmentedIcmp);
    }
    let start = out.len();
    let Some([kind, code, _, _, word @ ..]) = message.first_chunk::<ERROR_HEADER_LEN>() else {
        return Err(Untranslatable::Malformed);
    };
    if *kind >= icmpv6::ECHO_REQUEST {
        out.extend_from_slice(message);
        return echo_to_v4(&mut out[start..], ends, message.len());
    }
    // A new checksum is computed, which would hide that the message is damaged.
    if !icmpv6::checksum_ok(message, ends.v6.0, ends.v6.1) {
        return Err(Untranslatable::Malformed);
    }
    let error = ErrorKind { kind: *kind, code: *code, word: u32::from_be_bytes(*word) };
    let error = error_to_v4(error).ok_or(Untranslatable::NoCounterpart)?;
    out.extend_from_slice(&[error.kind, error.code, 0, 0]);
    out.extend_from_slice(&error.word.to_be_bytes());
    quote_to_v4(quoted(message, 8), map, out)?;
    out.truncate(icmpv4::ERROR_PACKET_LEN_MAX);
    let sum = checksum::finish(checksum::sum(&out[start..], 0));
    out[start + ICMP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Returns the quoted packet without extensions (RFC 4884). The message has its length, in units of
/// `unit` bytes.
fn quoted(message: &[u8], unit: usize) -> &[u8] {
    let quoted = &message[ERROR_HEADER_LEN..];
    // Only these two types have the length, in the first byte behind the checksum.
    let has_len = matches!(message[0], icmpv6::DEST_UNREACHABLE | icmpv6::TIME_EXCEEDED);
    match usize::from(message[4]) * unit {
        len if has_len && len > 0 => &quoted[..len.min(quoted.len())],
        _ => quoted,
    }
}
