//! Routes with the prefix lengths of a real table, and destinations within them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_lab_filter::shape::Dice;
use towpath_wire::{Prefix, addr};

/// Frequencies of IPv4 prefix lengths in BGP tables, per 1000. Rounded from the daily summaries of
/// route collectors (CIDR Report, bgp.potaroo.net) of 2024.
const LENGTHS: [(u8, u64); 17] = [
    (8, 1),
    (9, 1),
    (10, 1),
    (11, 1),
    (12, 1),
    (13, 1),
    (14, 1),
    (15, 2),
    (16, 14),
    (17, 8),
    (18, 14),
    (19, 26),
    (20, 44),
    (21, 53),
    (22, 110),
    (23, 100),
    (24, 622),
];

/// Number of neighbouring routers to which the routes lead.
pub const ROUTERS: u32 = 64;

/// Number of destinations, more flows than a processor's caches hold.
pub const DESTINATIONS: usize = 65_536;

/// Generates routes: networks, each with the number of its router.
pub fn routes(count: usize) -> Vec<(Prefix, u32)> {
    if count == 1 {
        return vec![(Prefix::ALL_V4, 0)];
    }
    let mut dice = Dice(30);
    let mut prefixes = BTreeSet::new();
    let mut routes = Vec::with_capacity(count);
    let mut last = 0u32;
    while routes.len() < count {
        let len = length(&mut dice);
        // Let half of the networks follow the previous one, as parts of a divided network do.
        last = match dice.percent(50) {
            true => last.wrapping_add(1 << (32 - len)),
            false => dice.next() as u32,
        };
        let bits = last & (u32::MAX << (32 - len));
        if is_public(bits) && prefixes.insert((bits, len)) {
            let prefix = Prefix::new(IpAddr::V4(Ipv4Addr::from_bits(bits)), len);
            let router = dice.below(ROUTERS.into()) as u32;
            routes.push((prefix.expect("a length of IPv4"), router));
        }
    }
    routes
}

/// Generates IPv6 routes: half of them /48, as in BGP tables, and the others from /29 to /44.
pub fn routes_v6(count: usize) -> Vec<(Prefix, u32)> {
    const LENGTHS: [u8; 10] = [48, 48, 48, 48, 48, 29, 32, 36, 40, 44];
    let mut dice = Dice(6);
    let mut prefixes = BTreeSet::new();
    let mut routes = Vec::with_capacity(count);
    while routes.len() < count {
        let len: u8 = dice.pick(&LENGTHS);
        // 2000::/3, the space of global addresses.
        let bits = 1 << 125 | u128::from(dice.next()) << 64 >> 3;
        let bits = bits & (u128::MAX << (128 - len));
        if prefixes.insert((bits, len)) {
            let prefix = Prefix::new(IpAddr::V6(Ipv6Addr::from_bits(bits)), len);
            let router = dice.below(ROUTERS.into()) as u32;
            routes.push((prefix.expect("a length of IPv6"), router));
        }
    }
    routes
}

fn length(dice: &mut Dice) -> u8 {
    let mut rest = dice.below(LENGTHS.iter().map(|(_, part)| part).sum());
    for (len, part) in LENGTHS {
        if rest < part {
            return len;
        }
        rest -= part;
    }
    24
}

/// Returns whether a transit packet can have this destination. 10.0.0.0/8 belongs to the routers
/// here.
fn is_public(bits: u32) -> bool {
    let v4 = Ipv4Addr::from_bits(bits);
    (1..224).contains(&v4.octets()[0])
        && v4.octets()[0] != 10
        && !addr::is_martian_destination(v4.into())
        && !v4.is_link_local()
}

/// Returns random destinations, each in the network of a route.
pub fn destinations(routes: &[(Prefix, u32)]) -> Vec<Ipv4Addr> {
    let mut dice = Dice(64);
    let mut all = Vec::with_capacity(DESTINATIONS);
    while all.len() < DESTINATIONS {
        let (prefix, _) = dice.pick(routes);
        let (IpAddr::V4(first), IpAddr::V4(last)) = (prefix.network(), prefix.last()) else {
            continue;
        };
        let free = last.to_bits() ^ first.to_bits();
        let bits = first.to_bits() | dice.next() as u32 & free;
        if is_public(bits) {
            all.push(Ipv4Addr::from_bits(bits));
        }
    }
    all
}
