//! Fragmentation of forwarded IPv4 packets that exceed the MTU of the next link. Unlike packets
//! that this host sends (module `fragment`), they may have options, and may already be fragments.

use towpath_pool::{Meta, Packet, Pool};
use towpath_wire::ipv4;

use super::offload::refresh_ipv4_checksum;

/// Flag of IPv4 options that are copied into every fragment (RFC 791 section 3.1).
const COPIED: u8 = 0x80;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Splits `packet` into fragments of at most `mtu` bytes, and passes each to `out`. The packet
/// starts with a valid IPv4 header, and its checksums are complete.
//= https://www.rfc-editor.org/rfc/rfc1812#section-4.2.2.7
//# Fragmentation, as described in [INTERNET:1], MUST be supported by a
//# router.
pub(super) fn cut(
    packet: Packet,
    mtu: usize,
    pool: &mut Pool,
    mut out: impl FnMut(Packet, &mut Pool),
) {
    let bytes = packet.linear();
    let ip_len = usize::from(bytes[0] & 0xf) * 4;
    let field = u16::from_be_bytes([bytes[6], bytes[7]]);
    let (first_at, is_middle) = (usize::from(field & OFFSET) * 8, field & MORE_FRAGMENTS != 0);
    let flags = field & !OFFSET & !MORE_FRAGMENTS;
    let payload_len = packet.len() - ip_len;
    let piece_max = (mtu.saturating_sub(ip_len) & !7).max(8);
    for from in (0..payload_len).step_by(piece_max) {
        let to = payload_len.min(from + piece_max);
        let more = is_middle || to < payload_len;
        let len = ip_len + to - from;
        let mut fragment = pool.take(len);
        let bytes = fragment.push_back(len).expect("taken with room");
        packet.copy_to(0, &mut bytes[..ip_len]);
        packet.copy_to(ip_len + from, &mut bytes[ip_len..]);
        if from > 0 {
            blank_uncopied(&mut bytes[ipv4::HEADER_LEN..ip_len]);
        }
        let field = flags | ((first_at + from) / 8) as u16 | if more { MORE_FRAGMENTS } else { 0 };
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&field.to_be_bytes());
        refresh_ipv4_checksum(&mut bytes[..ip_len]);
        fragment.meta = Meta { arrival_ns: packet.meta.arrival_ns, ..Meta::default() };
        out(fragment, pool);
    }
    pool.give(packet);
}

/// Replaces the options that only the first fragment contains by "no operation". As on Linux, the
/// length of the header does not change.
fn blank_uncopied(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        let len = match kind {
            END_OF_OPTIONS => return,
            NO_OPERATION => 1,
            _ => usize::from(options.get(at + 1).copied().unwrap_or(0)),
        };
        let Some(option) = options.get_mut(at..at + len).filter(|option| !option.is_empty()) else {
            return;
        };
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        at += len;
    }
}
