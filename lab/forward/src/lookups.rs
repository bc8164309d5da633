//! Lookups in the routing table without a stack, compared with the crate `prefix-trie`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use prefix_trie::PrefixMap;
use towpath_lpm::{Flat, Trie};
use towpath_wire::Prefix;

fn left_aligned(v4: Ipv4Addr) -> u128 {
    u128::from(v4.to_bits()) << 96
}

/// Creates a router's two structures: the trie to which changes are made, and its flat copy.
pub fn ours(routes: &[(Prefix, u32)]) -> (Trie<u32>, Flat<u32>) {
    let (mut trie, mut flat) = (Trie::default(), Flat::default());
    for (prefix, router) in routes {
        if let IpAddr::V4(network) = prefix.network() {
            let bits = (left_aligned(network), prefix.len());
            trie.set(bits, *router);
            flat.note(bits);
        }
    }
    flat.update(&trie);
    (trie, flat)
}

/// Creates the map of the crate `prefix-trie`.
pub fn other(routes: &[(Prefix, u32)]) -> PrefixMap<Ipv4Net, u32> {
    let route = |(prefix, router): &(Prefix, u32)| match prefix.network() {
        IpAddr::V4(network) => Ipv4Net::new(network, prefix.len()).ok().map(|net| (net, *router)),
        IpAddr::V6(_) => None,
    };
    routes.iter().filter_map(route).collect()
}

/// Number of addresses that are looked up together, equal to a router's burst.
const TOGETHER: usize = 32;

/// Looks up all destinations in batches. Returns the sum of the results, so that the compiler
/// cannot remove the lookups.
pub fn total_of_flat(flat: &Flat<u32>, destinations: &[Ipv4Addr]) -> u64 {
    let mut sum = 0;
    for burst in destinations.chunks(TOGETHER) {
        let (mut addrs, mut found) = ([0; TOGETHER], [None; TOGETHER]);
        addrs.iter_mut().zip(burst).for_each(|(addr, dst)| *addr = black_box(*dst).to_bits());
        flat.find_all(&addrs[..burst.len()], &mut found);
        sum += found.iter().flatten().map(|router| u64::from(**router)).sum::<u64>();
    }
    sum
}

/// Looks up all destinations in the trie, one by one, and returns the sum of the results.
pub fn total_of_tree(trie: &Trie<u32>, destinations: &[Ipv4Addr]) -> u64 {
    let look = |dst: &Ipv4Addr| trie.longest(left_aligned(black_box(*dst)));
    destinations.iter().filter_map(look).map(|router| u64::from(*router)).sum()
}

/// Looks up all destinations in the map of `prefix-trie`, and returns the sum of the results.
pub fn total_of_other(map: &PrefixMap<Ipv4Net, u32>, destinations: &[Ipv4Addr]) -> u64 {
    let host = |dst: Ipv4Addr| Ipv4Net::new(dst, 32).expect("32 bits");
    let look = |dst: &Ipv4Addr| map.get_lpm(&host(black_box(*dst)));
    destinations.iter().filter_map(look).map(|(_, router)| u64::from(*router)).sum()
}
