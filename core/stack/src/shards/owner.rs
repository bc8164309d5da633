//! Owners of flows: the map from a 4-tuple to its shard.

use std::net::{IpAddr, SocketAddr};

use crate::keys::SocketKeys;
use crate::limits::SHARDS_MAX;
use crate::net::hash::Keyed;
use crate::tables::flow::Flow;

/// Names a shard of a host, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u8);

impl ShardId {
    /// The shard that gets packets for the host as a whole, not for a flow.
    pub const FIRST: Self = Self(0);

    /// Its place among those of the host.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Divides flows among shards, by a keyed hash that all shards and their tables use. Without the
/// key a stranger cannot direct load to one shard.
///
/// A device with several queues, or a port in memory, may put each packet into the queue of its
/// owner. Shards then need not hand packets on.
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    key: Keyed,
    /// The number of shards less one: those bits of the hash count.
    mask: u8,
}

impl Owners {
    /// The division for a host of `shards` shards with the secret `seed`, that of
    /// [`Stack::new`](crate::Stack::new).
    ///
    /// # Panics
    /// When `shards` is no power of two, or more than [`SHARDS_MAX`](crate::limits::SHARDS_MAX).
    pub fn new(seed: &[u8; 32], shards: usize) -> Self {
        assert!(shards.is_power_of_two() && shards <= SHARDS_MAX, "{shards} shards");
        Self { key: SocketKeys::derive(seed).table, mask: (shards - 1) as u8 }
    }

    /// How many shards there are.
    pub fn count(&self) -> usize {
        usize::from(self.mask) + 1
    }

    /// The key of the hash, which is SipHash-1-3, for a device that computes it as well.
    ///
    /// The message is the smaller address, the other one, and their ports in that order. Between
    /// equal addresses the smaller port decides. All words are little-endian:
    ///
    /// - an IPv4 address is one word of 32 bits, an IPv6 address two of 64 bits, upper half first;
    /// - the ports are one word of 32 bits, the first in the upper half.
    ///
    /// The owner is the lowest bits of the hash's upper half.
    pub fn key(&self) -> [u64; 2] {
        self.key.0
    }

    /// The shard that owns the flow between two ends, in either order. IPv4-mapped addresses count
    /// as their IPv4 addresses.
    pub fn owner(&self, one: SocketAddr, other: SocketAddr) -> ShardId {
        let (local, local_port) = (one.ip(), one.port());
        self.of(&Flow { local, remote: other.ip(), local_port, remote_port: other.port() })
    }

    /// The shard that owns a flow, whichever end is the local one. Both ends of a connection of
    /// this host to itself are thereby in one shard.
    #[inline]
    pub(crate) fn of(&self, flow: &Flow) -> ShardId {
        self.of_hash(self.hash(flow))
    }

    /// The hash that says so: that of the flow in each shard's table.
    #[inline]
    pub(crate) fn hash(&self, flow: &Flow) -> u64 {
        self.key.ends(flow)
    }

    /// The shard that owns a flow whose hash is `hash`.
    #[inline]
    pub(crate) fn of_hash(&self, hash: u64) -> ShardId {
        ShardId((hash >> 32) as u8 & self.mask)
    }

    /// The shard that puts the fragments of a packet together: its ports are in one of them alone.
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

    /// How many of `flows` each of `count` shards has.
    fn shares(count: usize, flows: impl Iterator<Item = Flow>) -> Vec<u32> {
        let owners = Owners::new(&[7; 32], count);
        let mut shares = vec![0; count];
        flows.for_each(|flow| shares[owners.of(&flow).index()] += 1);
        shares
    }

    /// The ports of one client, the clients of one server, and a host that talks to itself.
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
                // Standard deviation of the smallest share, 2000: 43.
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
        // By chance a sixteenth is the same.
        assert!((60..140).contains(&same), "{same}");
    }
}
