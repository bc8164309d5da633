//! Translates the packet that an ICMP error quotes.

use core::net::{Ipv4Addr, Ipv6Addr};

use towpath_wire::{IpProtocol, checksum, icmpv4, ipv4, ipv6, ipv6_ext};

use crate::error::Untranslatable;
use crate::kinds::{query_to_v4, query_to_v6};
use crate::sums::{BothEnds, TranslatedTo, replaced, update_transport};

/// Known addresses of both versions, for packets that ICMP errors quote.
pub trait AddressMap {
    /// Returns the IPv4 address of an IPv6 host.
    fn v4_of(&self, addr: Ipv6Addr) -> Option<Ipv4Addr>;
    /// Returns the IPv6 address of an IPv4 host.
    fn v6_of(&self, addr: Ipv4Addr) -> Option<Ipv6Addr>;
}

/// Length in bytes of an ICMP header in front of the quoted packet, in both versions.
pub(crate) const ERROR_HEADER_LEN: usize = 8;
/// Offset of the checksum in both ICMP headers.
pub(crate) const ICMP_CHECKSUM_AT: usize = icmpv4::CHECKSUM_OFFSET;

/// Translates a quoted IPv6 packet, which may be cut off, and appends it to `out`.
pub(crate) fn quote_to_v4(
    quoted: &[u8],
    map: &impl AddressMap,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    let malformed = |_| Untranslatable::Malformed;
    let (header, _) = ipv6::Header::parse_quoted(quoted).map_err(malformed)?;
    let unknown = || Untranslatable::UnknownQuote;
    let src = map.v4_of(header.src).ok_or_else(unknown)?;
    let dst = map.v4_of(header.dst).ok_or_else(unknown)?;
    let chain = ipv6_ext::walk(quoted, &header).map_err(|_| Untranslatable::Malformed)?;
    let payload = quoted.get(chain.upper_at..).ok_or(Untranslatable::Malformed)?;
    let removed = chain.upper_at - ipv6::HEADER_LEN;
    let len = usize::from(header.payload_len).saturating_sub(removed);
    let total_len = u16::try_from(len + ipv4::HEADER_LEN).map_err(|_| Untranslatable::TooLong)?;
    let protocol = match chain.upper {
        IpProtocol::ICMPV6 => IpProtocol::ICMP,
        protocol => protocol,
    };
    let fragment = chain.fragment;
    let start = out.len();
    out.resize(start + ipv4::HEADER_LEN, 0);
    let translated = ipv4::Header {
        tos: header.traffic_class,
        total_len,
        ident: fragment.map_or(0, |fragment| fragment.ident as u16),
        dont_fragment: fragment.is_none(),
        more_fragments: fragment.is_some_and(|fragment| fragment.more),
        fragment_offset: fragment.map_or(0, |fragment| fragment.offset),
        ttl: header.hop_limit,
        protocol,
        src,
        dst,
        options: ipv4::Options::EMPTY,
    };
    translated.emit(&mut out[start..]);
    out.extend_from_slice(payload);
    let is_later = fragment.is_some_and(|fragment| fragment.offset > 0);
    if is_later {
        return Ok(());
    }
    let transport = &mut out[start + ipv4::HEADER_LEN..];
    let ends = BothEnds { v4: (src, dst), v6: (header.src, header.dst) };
    if protocol == IpProtocol::ICMP {
        return echo_to_v4(transport, &ends, len);
    }
    update_transport(transport, protocol, &ends, TranslatedTo::V4);
    Ok(())
}

/// Translates a quoted IPv4 packet, which may be cut off, and appends it to `out`.
pub(crate) fn quote_to_v6(
    quoted: &[u8],
    map: &impl AddressMap,
    out: &mut Vec<u8>,
) -> Result<(), Untranslatable> {
    let malformed = |_| Untranslatable::Malformed;
    let (header, header_len) = ipv4::Header::parse_quoted(quoted).map_err(malformed)?;
    let unknown = || Untranslatable::UnknownQuote;
    let src = map.v6_of(header.src).ok_or_else(unknown)?;
    let dst = map.v6_of(header.dst).ok_or_else(unknown)?;
    let payload = quoted.get(header_len..).ok_or(Untranslatable::Malformed)?;
    let len = usize::from(header.total_len).saturating_sub(header_len);
    let protocol = match header.protocol {
        IpProtocol::ICMP => IpProtocol::ICMPV6,
        protocol => protocol,
    };
    let start = out.len();
    let fragment = header.is_fragment().then(|| fragment_header(&header, protocol));
    let room = fragment.map_or(0, |_| ipv6_ext::FRAGMENT_LEN);
    let payload_len = u16::try_from(len + room).map_err(|_| Untranslatable::TooLong)?;
    out.resize(start + ipv6::HEADER_LEN + room, 0);
    let translated = ipv6::Header {
        traffic_class: header.tos,
        flow_label: 0,
        payload_len,
        next_header: if room == 0 { protocol } else { IpProtocol::FRAGMENT },
        hop_limit: header.ttl,
        src,
        dst,
    };
    translated.emit(&mut out[start..]);
    if let Some(fragment) = fragment {
        fragment.emit(&mut out[start + ipv6::HEADER_LEN..]);
    }
    out.extend_from_slice(payload);
    if header.fragment_offset > 0 {
        return Ok(());
    }
    let transport = &mut out[start + ipv6::HEADER_LEN + room..];
    let ends = BothEnds { v4: (header.src, header.dst), v6: (src, dst) };
    if protocol == IpProtocol::ICMPV6 {
        return echo_to_v6(transport, &ends, len);
    }
    update_transport(transport, protocol, &ends, TranslatedTo::V6);
    Ok(())
}

/// Returns the IPv6 fragment header for a fragment of IPv4.
pub(crate) fn fragment_header(
    header: &ipv4::Header,
    protocol: IpProtocol,
) -> ipv6_ext::FragmentHeader {
    ipv6_ext::FragmentHeader {
        next_header: protocol,
        offset: header.fragment_offset,
        more: header.more_fragments,
        ident: header.ident.into(),
        header_at: ipv6::HEADER_LEN,
        named_at: 6,
    }
}

/// Changes an ICMPv6 echo message to one of ICMPv4. `len` is the length of the whole message.
pub(crate) fn echo_to_v4(
    message: &mut [u8],
    ends: &BothEnds,
    len: usize,
) -> Result<(), Untranslatable> {
    let (src, dst) = ends.v6;
    let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, len as u32);
    change_echo(message, query_to_v4, pseudo, 0)
}

/// Changes an ICMPv4 echo message to one of ICMPv6. `len` is the length of the whole message.
pub(crate) fn echo_to_v6(
    message: &mut [u8],
    ends: &BothEnds,
    len: usize,
) -> Result<(), Untranslatable> {
    let (src, dst) = ends.v6;
    let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, len as u32);
    change_echo(message, query_to_v6, 0, pseudo)
}

/// Changes the type of an echo message, and updates the checksum for it and for the pseudo-header.
fn change_echo(
    message: &mut [u8],
    counterpart: impl Fn(u8) -> Option<u8>,
    old_pseudo: u64,
    new_pseudo: u64,
) -> Result<(), Untranslatable> {
    let Some([kind, code, hi, lo]) = message.first_chunk_mut() else {
        return Err(Untranslatable::Malformed);
    };
    let changed = counterpart(*kind).ok_or(Untranslatable::NoCounterpart)?;
    let word = |kind: u8| u64::from(u16::from_be_bytes([kind, *code]));
    let (old, new) = (old_pseudo + word(*kind), new_pseudo + word(changed));
    [*hi, *lo] = replaced(u16::from_be_bytes([*hi, *lo]), old, new).to_be_bytes();
    *kind = changed;
    Ok(())
}
