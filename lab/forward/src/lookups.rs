//! Look-ups in the table of routes alone, beside `prefix-trie`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use prefix_trie::PrefixMap;
use towpath_lpm::{Flat, Trie};
use towpath_wire::Prefix;

fn left_aligned(v4: Ipv4Addr) -> u128 {
    u128::from(v4.to_bits()) << 96
}

/// The structures of a router: the tree that changes are made in, and its flat copy.
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

/// The other one.
pub fn other(routes: &[(Prefix, u32)]) -> PrefixMap<Ipv4Net, u32> {
    let route = |(prefix, router): &(Prefix, u32)| match prefix.network() {
        IpAddr::V4(network) => Ipv4Net::new(network, prefix.len()).ok().map(|net| (net, *router)),
        IpAddr::V6(_) => None,
    };
    routes.iter().filter_map(route).collect()
}

/// Addresses that are looked up together, as those of a router's burst.
const TOGETHER: usize = 32;

/// The sum of what all destinations lead to, so that no look-up can be left out.
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

/// The same by the tree, one by one.
pub fn total_of_tree(trie: &Trie<u32>, destinations: &[Ipv4Addr]) -> u64 {
    let look = |dst: &Ipv4Addr| trie.longest(left_aligned(black_box(*dst)));
    destinations.iter().filter_map(look).map(|router| u64::from(*router)).sum()
}

/// The same by the other one.
pub fn total_of_other(map: &PrefixMap<Ipv4Net, u32>, destinations: &[Ipv4Addr]) -> u64 {
    let host = |dst: Ipv4Addr| Ipv4Net::new(dst, 32).expect("32 bits");
    let look = |dst: &Ipv4Addr| map.get_lpm(&host(black_box(*dst)));
    destinations.iter().filter_map(look).map(|(_, router)| u64::from(*router)).sum()
}
