//! Headers and attributes of netlink messages, in the byte order of the host.

use std::net::IpAddr;

/// Length of `struct nlmsghdr` in bytes.
pub(crate) const HEADER_LEN: usize = 16;

/// A netlink message without its header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMessage<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// Iterates over the messages of a packet, up to the first truncated one.
pub(crate) fn messages(mut packet: &[u8]) -> impl Iterator<Item = RawMessage<'_>> {
    std::iter::from_fn(move || {
        let (len, kind) = (u32_at(packet, 0)? as usize, u16_at(packet, 4)?);
        let (flags, sequence) = (u16_at(packet, 6)?, u32_at(packet, 8)?);
        let body = packet.get(HEADER_LEN..len)?;
        packet = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(RawMessage { kind, flags, sequence, body })
    })
}

/// Iterates over types and values of a list of attributes, up to the first truncated one.
pub(crate) fn attributes(mut list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    // Mask of the type; the upper bits describe the encoding of the value.
    const KIND: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(list, 0)?), u16_at(list, 2)? & KIND);
        let value = list.get(4..len)?;
        list = list.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends a netlink attribute and its padding.
pub(crate) fn put_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Parses an IP address. Its version follows from its length.
pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?)),
        _ => None,
    }
}
