//! Fragmentation of packets that this host sends and that exceed the path MTU. The module
//! `reassembly` does the opposite.

use towpath_pool::{Meta, Packet, Pool};
use towpath_wire::ipv6_ext::{self, FRAGMENT_LEN};
use towpath_wire::{IpProtocol, ipv4, ipv6};

use super::offload::refresh_ipv4_checksum;

/// Splits `packet` into fragments of at most `mtu` bytes, and passes each fragment to `out`. The
/// packet begins with an IP header without options or extension headers, and its checksum is
/// complete.
pub(super) fn cut(
    packet: Packet,
    mtu: usize,
    ident: u32,
    pool: &mut Pool,
    mut out: impl FnMut(Packet, &mut Pool),
) {
    let v4 = packet.linear().first().is_some_and(|first| first >> 4 == 4);
    let (ip_len, extra) = if v4 { (ipv4::HEADER_LEN, 0) } else { (ipv6::HEADER_LEN, FRAGMENT_LEN) };
    let payload_len = packet.len() - ip_len;
    // The data length of each fragment except the last is a multiple of 8 bytes.
    let piece_max = (mtu.saturating_sub(ip_len + extra) & !7).max(8);
    for from in (0..payload_len).step_by(piece_max) {
        let to = payload_len.min(from + piece_max);
        let more = to < payload_len;
        let len = ip_len + extra + to - from;
        let mut fragment = pool.take(len);
        let bytes = fragment.push_back(len).expect("taken with room");
        packet.copy_to(0, &mut bytes[..ip_len]);
        packet.copy_to(ip_len + from, &mut bytes[ip_len + extra..]);
        if v4 {
            patch_v4(bytes, from, more, ident);
        } else {
            patch_v6(bytes, from, more, ident);
        }
        let Meta { vlan, sender, .. } = packet.meta;
        fragment.meta = Meta { vlan, sender, ..Meta::default() };
        out(fragment, pool);
    }
    pool.give(packet);
}

fn patch_v4(bytes: &mut [u8], from: usize, more: bool, ident: u32) {
    const MORE_FRAGMENTS: u16 = 0x2000;
    let total_len = bytes.len() as u16;
    let fragment = (from / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 };
    bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
    bytes[4..6].copy_from_slice(&(ident as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
    refresh_ipv4_checksum(&mut bytes[..ipv4::HEADER_LEN]);
}

fn patch_v6(bytes: &mut [u8], from: usize, more: bool, ident: u32) {
    let payload_len = (bytes.len() - ipv6::HEADER_LEN) as u16;
    let header = ipv6_ext::FragmentHeader {
        next_header: IpProtocol(bytes[6]),
        offset: from as u16,
        more,
        ident,
        header_at: ipv6::HEADER_LEN,
        named_at: 6,
    };
    bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
    bytes[6] = IpProtocol::FRAGMENT.0;
    header.emit(&mut bytes[ipv6::HEADER_LEN..]);
}
