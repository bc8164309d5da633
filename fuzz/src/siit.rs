//! Fuzzes the translation between IPv4 and IPv6 by arbitrary packets.
//!
//! Invariants:
//!
//! - A translated packet can be parsed, and its length is that of its headers and payload.
//! - The parts of a divided packet are not longer than the limit.
//! - Addresses of the pool belong to the hosts that have them.

use std::net::{Ipv4Addr, Ipv6Addr};

use towpath_siit::{
    AddressMap, AddressPool, FRAGMENT_MTU, MAPPING_TIMEOUT_NS, TranslationPrefix, split_v6,
    v4_to_v6, v6_to_v4,
};
use towpath_wire::{ipv4, ipv6};

use crate::input::Input;

/// Maximum number of packets of a case.
const PACKETS_MAX: usize = 50;
const PREFIX: TranslationPrefix = TranslationPrefix::WELL_KNOWN;

struct Hosts(AddressPool);

impl AddressMap for Hosts {
    fn v4_of(&self, addr: Ipv6Addr) -> Option<Ipv4Addr> {
        PREFIX.extract(addr).or_else(|| self.0.v4_of(addr))
    }

    fn v6_of(&self, addr: Ipv4Addr) -> Option<Ipv6Addr> {
        self.0.v6_of(addr).or_else(|| Some(PREFIX.embed(addr)))
    }
}

/// Runs a case.
///
/// # Panics
/// If a translated packet is invalid, or two hosts have one address.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let pool = "198.18.0.0/28".parse().expect("a prefix");
    let mut hosts = Hosts(AddressPool::new(pool).expect("addresses"));
    let (mut now_ns, mut out) = (0, Vec::new());
    for _ in 0..PACKETS_MAX {
        if input.is_empty() {
            break;
        }
        now_ns += u64::from(input.u8()) * MAPPING_TIMEOUT_NS / 100;
        let host = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(input.u8() & 31) << 60);
        let Ok(own) = hosts.0.take(host, now_ns) else { continue };
        assert_eq!((hosts.0.v6_of(own), hosts.0.v4_of(host)), (Some(host), Some(own)));
        let server = Ipv4Addr::from_bits(input.u32());
        let packet = packet(&mut input);
        match packet.first().map(|first| first >> 4) {
            Some(6) => {
                if v6_to_v4(&packet, own, server, &hosts, 7, &mut out).is_ok() {
                    let (header, payload) = ipv4::Header::parse(&out).expect("an IPv4 packet");
                    assert_eq!((header.src, header.dst, payload.end), (own, server, out.len()));
                    assert!(ipv4::checksum_ok(&out[..payload.start]));
                }
            }
            _ => {
                if v4_to_v6(&packet, PREFIX.embed(server), host, &hosts, &mut out).is_ok() {
                    let (header, payload) = ipv6::Header::parse(&out).expect("an IPv6 packet");
                    assert_eq!((header.dst, payload.end), (host, out.len()));
                    split_v6(&out, 9, |piece| {
                        assert!(piece.len() <= FRAGMENT_MTU);
                        assert!(ipv6::Header::parse(piece).is_ok());
                    });
                }
            }
        }
    }
}

/// Returns a packet of either version. Most have a valid length, protocol and start of a quotation.
fn packet(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8();
    let is_v6 = kind & 1 != 0;
    let len =
        if kind & 2 != 0 { usize::from(input.u8()) } else { usize::from(input.u16() & 0x7ff) };
    let mut packet: Vec<u8> = (0..len).map(|_| input.u8()).collect();
    // The second header is that of the packet within an ICMP error.
    let headers: &[bool] = if kind & 4 == 0 { &[false] } else { &[false, true] };
    for is_quoted in headers {
        let at = match (is_v6, is_quoted) {
            (_, false) => 0,
            (true, true) => 48,
            (false, true) => 28,
        };
        let rest = packet.len().saturating_sub(at);
        let Some(header) = packet.get_mut(at..).filter(|header| header.len() >= 40) else { break };
        header[0] = if is_v6 { 0x60 } else { 0x45 };
        let (len_at, len) = if is_v6 { (4, rest - 40) } else { (2, rest) };
        header[len_at..len_at + 2].copy_from_slice(&(len as u16).to_be_bytes());
        let (place, protocols) = if is_v6 { (6, [58, 17, 44, 60]) } else { (9, [1, 17, 6, 50]) };
        header[place] = match kind & 4 {
            0 => protocols[usize::from(header[place] & 3)],
            _ if *is_quoted => protocols[1],
            _ => protocols[0],
        };
    }
    packet
}
