//! Look-ups in the table of routes alone, beside `prefix-trie`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use prefix_trie::PrefixMap;
use towpath_lpm::Trie;
use towpath_wire::Prefix;

fn left_aligned(v4: Ipv4Addr) -> u128 {
    u128::from(v4.to_bits()) << 96
}

/// The structure of the stack.
pub fn ours(routes: &[(Prefix, u32)]) -> Trie<u32> {
    let mut trie = Trie::default();
    for (prefix, router) in routes {
        if let IpAddr::V4(network) = prefix.network() {
            trie.set((left_aligned(network), prefix.len()), *router);
        }
    }
    trie
}

/// The other one.
pub fn other(routes: &[(Prefix, u32)]) -> PrefixMap<Ipv4Net, u32> {
    let route = |(prefix, router): &(Prefix, u32)| match prefix.network() {
        IpAddr::V4(network) => Ipv4Net::new(network, prefix.len()).ok().map(|net| (net, *router)),
        IpAddr::V6(_) => None,
    };
    routes.iter().filter_map(route).collect()
}

/// The sum of what all destinations lead to, so that no look-up can be left out.
pub fn total_of_ours(trie: &Trie<u32>, destinations: &[Ipv4Addr]) -> u64 {
    let look = |dst: &Ipv4Addr| trie.longest(left_aligned(black_box(*dst)));
    destinations.iter().filter_map(look).map(|router| u64::from(*router)).sum()
}

/// The same by the other one.
pub fn total_of_other(map: &PrefixMap<Ipv4Net, u32>, destinations: &[Ipv4Addr]) -> u64 {
    let host = |dst: Ipv4Addr| Ipv4Net::new(dst, 32).expect("32 bits");
    let look = |dst: &Ipv4Addr| map.get_lpm(&host(black_box(*dst)));
    destinations.iter().filter_map(look).map(|(_, router)| u64::from(*router)).sum()
}
