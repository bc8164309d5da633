//! Translates the packet quoted in an ICMP error back to its original addresses and ports.
//! Otherwise the sender of that packet would not recognize it.

use core::net::IpAddr;

use towpath_wire::{IpProtocol, checksum, tcp, udp};

use crate::tuple::Tuple;
use crate::view::{IDENT_AT, PacketView, QUOTE_AT, quoted};

/// Maximum number of bytes in a quoted packet that translation may change. The part comprises IPv4
/// options or some IPv6 extension headers, and the transport header up to its checksum.
const QUOTE_MAX: usize = 128;
const IPV4_CHECKSUM_AT: usize = 10;

/// Replaces addresses and ports of the packet that an ICMP error quotes by those of `tuple`.
/// Returns false if the quotation is too short.
//= https://www.rfc-editor.org/rfc/rfc5508#section-4.2
//# a) Revert the IP and transport headers of the embedded IP packet to
//# their original form, using the matching mapping; and
pub(crate) fn translate_quote(packet: &mut impl PacketView, tuple: &Tuple) -> bool {
    let Some(bytes) = packet.transport().get(QUOTE_AT..) else { return false };
    let Some(quote) = quoted(bytes) else { return false };
    let mut copy = [0; QUOTE_MAX];
    let len = bytes.len().min(QUOTE_MAX) & !1;
    copy[..len].copy_from_slice(&bytes[..len]);
    let Some((ip, transport)) = copy[..len].split_at_mut_checked(quote.transport_at) else {
        return false;
    };
    let (old, new) = (quote.tuple, *tuple);
    for (at, old, new) in [(0, old.src, new.src), (1, old.dst, new.dst)] {
        set_address(ip, at, new);
        update_transport(transport, tuple.protocol, |sum| update(sum, old, new));
    }
    if new.has_ports() {
        let is_query = new.query != 0;
        let at = if is_query { IDENT_AT } else { 0 };
        let ports: &[(usize, u16, u16)] = match is_query {
            true => &[(at, old.src_port, new.src_port)],
            false => &[(0, old.src_port, new.src_port), (2, old.dst_port, new.dst_port)],
        };
        for (at, old, new) in ports {
            let Some(field) = transport.get_mut(*at..*at + 2) else { return false };
            field.copy_from_slice(&new.to_be_bytes());
            let change = |sum| checksum::update16(sum, *old, *new);
            match is_query {
                true => update_icmp(transport, change),
                false => update_transport(transport, tuple.protocol, change),
            }
        }
    }
    packet.rewrite(QUOTE_AT, &copy[..len])
}

fn set_address(ip: &mut [u8], which: usize, addr: IpAddr) {
    match addr {
        IpAddr::V4(new) => {
            let field = &mut ip[12 + 4 * which..][..4];
            let old = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
            field.copy_from_slice(&new.octets());
            update_field(ip, IPV4_CHECKSUM_AT, |sum| checksum::update32(sum, old, new.to_bits()));
        }
        IpAddr::V6(new) => ip[8 + 16 * which..][..16].copy_from_slice(&new.octets()),
    }
}

/// Updates the checksum of a quoted transport header, unless the quotation ends before it.
fn update_transport(transport: &mut [u8], protocol: u8, change: impl FnOnce(u16) -> u16) {
    match IpProtocol(protocol) {
        IpProtocol::TCP => update_field(transport, tcp::CHECKSUM_OFFSET, change),
        IpProtocol::UDP => update_field(transport, udp::CHECKSUM_OFFSET, |sum| match sum {
            0 => 0,
            sum => match change(sum) {
                0 => 0xffff,
                sum => sum,
            },
        }),
        IpProtocol::ICMPV6 => update_icmp(transport, change),
        _ => {}
    }
}

fn update_icmp(transport: &mut [u8], change: impl FnOnce(u16) -> u16) {
    update_field(transport, towpath_wire::icmpv4::CHECKSUM_OFFSET, change);
}

fn update_field(bytes: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        let sum = u16::from_be_bytes([field[0], field[1]]);
        field.copy_from_slice(&change(sum).to_be_bytes());
    }
}

fn update(sum: u16, old: IpAddr, new: IpAddr) -> u16 {
    match (old, new) {
        (IpAddr::V4(old), IpAddr::V4(new)) => checksum::update32(sum, old.to_bits(), new.to_bits()),
        (IpAddr::V6(old), IpAddr::V6(new)) => checksum::update_v6(sum, old, new),
        _ => sum,
    }
}
