//! Owners of flows: maps the two endpoints of a flow to a shard.

use std::net::{IpAddr, SocketAddr};

use crate::keys::SocketKeys;
use crate::limits::SHARDS_MAX;
use crate::net::hash::Keyed;
use crate::tables::flow::Flow;

/// Number that identifies a shard of a host, beginning with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u8);

impl ShardId {
    /// The first shard. The shard receives packets that concern the host as a whole, and not a
    /// single flow.
    pub const FIRST: Self = Self(0);

    /// Returns the number of the shard as an index of tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Assigns flows to shards, by a keyed hash that all shards and their tables use. An attacker
/// without the key cannot direct load to one shard.
///
/// A device with several queues, or a port in memory, may deliver each packet to the queue of the
/// shard that owns its flow. Shards then need not pass packets to each other.
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    key: Keyed,
    /// Number of shards minus one. The value is the mask of the hash bits that select the shard.
    mask: u8,
}

impl Owners {
    /// Creates the assignment for a host of `shards` shards. `seed` is the secret passed to
    /// [`Stack::new`](crate::Stack::new).
    ///
    /// # Panics
    /// Panics if `shards` is not a power of two, or exceeds
    /// [`SHARDS_MAX`](crate::limits::SHARDS_MAX).
    pub fn new(seed: &[u8; 32], shards: usize) -> Self {
        assert!(shards.is_power_of_two() && shards <= SHARDS_MAX, "{shards} shards");
        Self { key: SocketKeys::derive(seed).table, mask: (shards - 1) as u8 }
    }

    /// Returns the number of shards.
    pub fn count(&self) -> usize {
        usize::from(self.mask) + 1
    }

    /// Returns the key of the hash (SipHash-1-3), for devices that compute the hash themselves.
    ///
    /// The hashed message consists of the smaller address, the other address, and their ports in
    /// that order. If the addresses are equal, the smaller port comes first. All words are
    /// little-endian:
    ///
    /// - an IPv4 address is one 32-bit word, an IPv6 address two 64-bit words, upper half first;
    /// - the ports are one 32-bit word, the first port in the upper half.
    ///
    /// The owner is given by the lowest bits of the hash's upper half.
    pub fn key(&self) -> [u64; 2] {
        self.key.0
    }

    /// Returns the shard that owns the flow between two endpoints, in either order. IPv4-mapped
    /// addresses are equivalent to their IPv4 addresses.
    pub fn owner(&self, one: SocketAddr, other: SocketAddr) -> ShardId {
        let (local, local_port) = (one.ip(), one.port());
        self.of(&Flow { local, remote: other.ip(), local_port, remote_port: other.port() })
    }

    /// Returns the shard that owns a flow. The result does not depend on which endpoint is the
    /// local one. Both ends of a connection of this host to itself are therefore in one shard.
    #[inline]
    pub(crate) fn of(&self, flow: &Flow) -> ShardId {
        self.of_hash(self.hash(flow))
    }

    /// Returns the hash of a flow that determines its owner. The flow table of each shard uses the
    /// same hash, so that it is computed only once.
    #[inline]
    pub(crate) fn hash(&self, flow: &Flow) -> u64 {
        self.key.ends(flow)
    }

    /// Returns the shard that owns a flow with the given hash.
    #[inline]
    pub(crate) fn of_hash(&self, hash: u64) -> ShardId {
        ShardId((hash >> 32) as u8 & self.mask)
    }

    /// Returns the shard that reassembles the fragments of a packet. The result depends only on the
    /// addresses, because only one fragment contains the ports.
    #[inline]
    pub fn of_fragments(&self, src: IpAddr, dst: IpAddr) -> ShardId {
        self.of(&Flow { local: dst, remote: src, local_port: 0, remote_port: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        ]
    }

    fn mapped(ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            v6 => v6,
        }
    }

    proptest! {
        #[test]
        fn both_ends_and_every_way_to_write_them_have_one_owner(
            seed in any::<[u8; 32]>(),
            bits in 0..=4u32,
            local in address(),
            remote in address(),
            local_port: u16,
            remote_port: u16,
        ) {
            let owners = Owners::new(&seed, 1 << bits);
            let flow = Flow { local, remote, local_port, remote_port };
            let owner = owners.of(&flow);
            prop_assert!(owner.index() < owners.count());
            let (there, back) = ((local, local_port), (remote, remote_port));
            for ((local, local_port), (remote, remote_port)) in [(there, back), (back, there)] {
                for (local, remote) in [(local, remote), (mapped(local), mapped(remote))] {
                    let same = Flow { local, remote, local_port, remote_port };
                    prop_assert_eq!(owners.of(&same), owner);
                }
            }
            prop_assert_eq!(owners.of_fragments(local, remote), owners.of_fragments(remote, local));
        }
    }

    /// Returns how many of `flows` each of `count` shards owns.
    fn shares(count: usize, flows: impl Iterator<Item = Flow>) -> Vec<u32> {
        let owners = Owners::new(&[7; 32], count);
        let mut shares = vec![0; count];
        flows.for_each(|flow| shares[owners.of(&flow).index()] += 1);
        shares
    }

    /// Tests flows of one client with many ports, of many clients, and of a host with itself.
    #[test]
    fn flows_that_differ_little_are_spread_evenly() {
        let server = IpAddr::from([10, 0, 0, 2]);
        let client = |n: u32| IpAddr::from((0x0a00_0100 + n).to_be_bytes());
        let flow =
            |remote, remote_port| Flow { local: server, remote, local_port: 80, remote_port };
        for count in [1, 2, 4, 8, 16] {
            let by_port = shares(count, (20_000..52_000).map(|port| flow(client(0), port)));
            let by_client = shares(count, (0..32_000).map(|n| flow(client(n), 40_000)));
            let by_self = shares(count, (20_000..52_000).map(|port| flow(server, port)));
            let even = 32_000 / count as u32;
            for share in by_port.into_iter().chain(by_client).chain(by_self) {
                // The smallest expected number of flows per shard is 2000, and its standard
                // deviation is 43.
                assert!(share.abs_diff(even) < even / 8, "{share} of {even}");
            }
        }
    }

    #[test]
    fn the_key_decides_the_owner() {
        let flow = |port| Flow {
            local: IpAddr::from([10, 0, 0, 2]),
            remote: IpAddr::from([10, 0, 0, 1]),
            local_port: 80,
            remote_port: port,
        };
        let [a, b] = [1, 2].map(|seed| Owners::new(&[seed; 32], 16));
        let same = (0..1600).filter(|port| a.of(&flow(*port)) == b.of(&flow(*port))).count();
        // By chance, 1/16 of the flows have the same owner with both keys.
        assert!((60..140).contains(&same), "{same}");
    }
}
