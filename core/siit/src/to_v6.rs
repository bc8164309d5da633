//! Translates an IPv4 packet to IPv6 (RFC 7915 section 4).

use core::net::Ipv6Addr;

use towpath_wire::{IpProtocol, checksum, icmpv4, icmpv6, ipv4, ipv6, ipv6_ext, udp};

use crate::error::Untranslatable;
use crate::kinds::{ErrorKind, error_to_v6};
use crate::quote::{
    AddressMap, ERROR_HEADER_LEN, ICMP_CHECKSUM_AT, echo_to_v6, fragment_header, quote_to_v6,
};
use crate::sums::{BothEnds, TranslatedTo, fill_udp, update_transport};

/// Translates the IPv4 packet `packet`, and replaces the content of `out` by the IPv6 packet from
/// `src` to `dst`. The packet may be longer than the IPv6 link allows: see
/// [`split_v6`](crate::split_v6).
///
/// # Errors
/// Returns the reason why the packet is not translated.
pub fn v4_to_v6(
    packet: &[u8],
    src: Ipv6Addr,
    dst: Ipv6Addr,
    map: &impl AddressMap,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    let (header, payload) = ipv4::Header::parse(packet).map_err(|_| Untranslatable::Malformed)?;
    if header.options.has_source_route() {
        return Err(Untranslatable::NoCounterpart);
    }
    let upper = &packet[payload];
    let protocol = match header.protocol {
        IpProtocol::ICMP => IpProtocol::ICMPV6,
        // IGMP, ICMPv6 and extension headers have no meaning between the versions.
        IpProtocol::IGMP | IpProtocol::ICMPV6 | IpProtocol::NO_NEXT_HEADER => {
            return Err(Untranslatable::NoCounterpart);
        }
        protocol if protocol.is_ipv6_extension() => return Err(Untranslatable::NoCounterpart),
        protocol => protocol,
    };
    let fragment = header.is_fragment().then(|| fragment_header(&header, protocol));
    let start = ipv6::HEADER_LEN + fragment.map_or(0, |_| ipv6_ext::FRAGMENT_LEN);
    out.clear();
    out.resize(start, 0);
    let ends = BothEnds { v4: (header.src, header.dst), v6: (src, dst) };
    if protocol == IpProtocol::ICMPV6 {
        if fragment.is_some() {
            return Err(Untranslatable::FragmentedIcmp);
        }
        message_to_v6(upper, &ends, map, out)?;
    } else {
        out.extend_from_slice(upper);
        if header.fragment_offset == 0 {
            transport_to_v6(&mut out[start..], protocol, &ends, fragment.is_some())?;
        }
    }
    let payload_len = u16::try_from(out.len() - ipv6::HEADER_LEN);
    let translated = ipv6::Header {
        traffic_class: header.tos,
        flow_label: 0,
        payload_len: payload_len.map_err(|_| Untranslatable::TooLong)?,
        next_header: if fragment.is_some() { IpProtocol::FRAGMENT } else { protocol },
        hop_limit: header.ttl,
        src,
        dst,
    };
    translated.emit(out);
    if let Some(fragment) = fragment {
        fragment.emit(&mut out[ipv6::HEADER_LEN..]);
    }
    Ok(())
}

/// Updates the checksum of a transport header for its new pseudo-header.
fn transport_to_v6(
    transport: &mut [u8],
    protocol: IpProtocol,
    ends: &BothEnds,
    is_fragment: bool,
) -> Result<(), Untranslatable> {
    let sum = transport.get(udp::CHECKSUM_OFFSET..udp::CHECKSUM_OFFSET + 2);
    if protocol != IpProtocol::UDP || sum != Some(&[0, 0]) {
        update_transport(transport, protocol, ends, TranslatedTo::V6);
        return Ok(());
    }
    // IPv6 requires a checksum, for which all fragments of the datagram would be needed.
    if is_fragment {
        return Err(Untranslatable::NoChecksum);
    }
    fill_udp(transport, ends.v6)
}

/// Translates an ICMPv4 message, and appends it to `out`.
fn message_to_v6(
    message: &[u8],
    ends: &BothEnds,
    map: &impl AddressMap,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    let start = out.len();
    let Some([kind, code, _, _, word @ ..]) = message.first_chunk::<ERROR_HEADER_LEN>() else {
        return Err(Untranslatable::Malformed);
    };
    let is_error =
        matches!(*kind, icmpv4::DEST_UNREACHABLE | icmpv4::TIME_EXCEEDED | icmpv4::PARAM_PROBLEM);
    if !is_error {
        out.extend_from_slice(message);
        return echo_to_v6(&mut out[start..], ends, message.len());
    }
    // A new checksum is computed, which would hide that the message is damaged.
    if !icmpv4::checksum_ok(message) {
        return Err(Untranslatable::Malformed);
    }
    let quoted = quoted(message);
    let quoted_len = match ipv4::Header::parse_quoted(quoted) {
        Ok((header, _)) => header.total_len,
        Err(_) => return Err(Untranslatable::Malformed),
    };
    let error = ErrorKind { kind: *kind, code: *code, word: u32::from_be_bytes(*word) };
    let error = error_to_v6(error, quoted_len).ok_or(Untranslatable::NoCounterpart)?;
    out.extend_from_slice(&[error.kind, error.code, 0, 0]);
    out.extend_from_slice(&error.word.to_be_bytes());
    quote_to_v6(quoted, map, out)?;
    out.truncate(icmpv6::ERROR_PACKET_LEN_MAX);
    let (src, dst) = ends.v6;
    let len = (out.len() - start) as u32;
    let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, len);
    let sum = checksum::finish(checksum::sum(&out[start..], pseudo));
    out[start + ICMP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Returns the quoted packet without extensions. Their place is given by the second byte behind the
/// checksum, in units of four bytes (RFC 4884 section 4).
fn quoted(message: &[u8]) -> &[u8] {
    let quoted = &message[ERROR_HEADER_LEN..];
    match usize::from(message[5]) * 4 {
        0 => quoted,
        len => &quoted[..len.min(quoted.len())],
    }
}
