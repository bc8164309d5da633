//! IPv4 addresses for IPv6 hosts: a host keeps its address while it sends packets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

use towpath_wire::Prefix;

/// Time without packets after which the address of a host is free again. Longer than the idle time
/// of established TCP connections in the connection tracker, whose flows have the address.
pub const MAPPING_TIMEOUT_NS: u64 = 7500 * 1_000_000_000;
/// Interval in which the time of the last packet is updated, so that most packets change nothing.
const REFRESH_NS: u64 = 60 * 1_000_000_000;
/// Number of addresses that a pool has at most, which bounds its memory.
const ADDRESSES_MAX: u32 = 1 << 16;
/// Part of the pool that all hosts of an IPv6 /64 may have together, because one host can use all
/// of its addresses.
const PER_NETWORK_PART: u32 = 4;

/// Reason why an IPv6 host gets no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolRefusal {
    /// No address is free.
    Exhausted,
    /// The hosts of its /64 have a quarter of all addresses.
    NetworkFull,
}

/// An IPv6 host that has an address.
#[derive(Debug, Clone, Copy)]
struct PoolHost {
    index: u32,
    last_ns: u64,
}

/// IPv4 addresses, and the IPv6 hosts that have them.
///
/// A lookup takes a time that is logarithmic in the number of hosts. Addresses of peers therefore
/// cannot collide.
#[derive(Debug)]
pub struct AddressPool {
    prefix: Prefix,
    first: u32,
    count: u32,
    hosts: BTreeMap<Ipv6Addr, PoolHost>,
    by_index: BTreeMap<u32, Ipv6Addr>,
    /// Times of the last packets with the index, the oldest first.
    by_age: BTreeSet<(u64, u32)>,
    /// Number of addresses by the first 64 bits of their hosts.
    per_network: BTreeMap<u64, u32>,
    /// Indices below this number were in use at least once.
    unused: u32,
    free: Vec<u32>,
}

impl AddressPool {
    /// Creates a pool of the addresses of an IPv4 prefix, without its first three and its last one.
    /// The second one is the router's on the port of the translator, and the third one the source
    /// of the router's translated ICMP errors. Returns `None` if there are no others.
    #[must_use]
    pub fn new(prefix: Prefix) -> Option<Self> {
        let (IpAddr::V4(network), IpAddr::V4(last)) = (prefix.network(), prefix.last()) else {
            return None;
        };
        let first = network.to_bits().checked_add(3)?;
        let count = last.to_bits().checked_sub(first)?.min(ADDRESSES_MAX);
        (count > 0 && prefix.trunc() == prefix).then(|| Self {
            prefix,
            first,
            count,
            hosts: BTreeMap::new(),
            by_index: BTreeMap::new(),
            by_age: BTreeSet::new(),
            per_network: BTreeMap::new(),
            unused: 0,
            free: Vec::new(),
        })
    }

    /// Returns the address of the router.
    #[must_use]
    pub const fn own(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first - 2)
    }

    /// Returns the source of ICMP errors that the router itself sends, after their translation. The
    /// router would drop received packets with its own address as their source.
    #[must_use]
    pub const fn reporter(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first - 1)
    }

    /// Returns whether an address belongs to the pool, whether it is in use or not.
    #[must_use]
    pub const fn contains(&self, addr: Ipv4Addr) -> bool {
        self.prefix.contains(IpAddr::V4(addr))
    }

    /// Returns the number of hosts that have an address.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Returns whether no host has an address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns the address of a host that has one.
    #[must_use]
    pub fn v4_of(&self, host: Ipv6Addr) -> Option<Ipv4Addr> {
        self.hosts.get(&host).map(|known| self.address(known.index))
    }

    /// Returns the host that has an address.
    #[must_use]
    pub fn v6_of(&self, addr: Ipv4Addr) -> Option<Ipv6Addr> {
        let index = addr.to_bits().checked_sub(self.first)?;
        self.by_index.get(&index).copied()
    }

    /// Returns the address of a host that sends a packet. The host gets an address if it has none.
    ///
    /// # Errors
    /// Returns the reason why there is no address.
    pub fn take(&mut self, host: Ipv6Addr, now_ns: u64) -> Result<Ipv4Addr, PoolRefusal> {
        self.expire(now_ns);
        if let Some(known) = self.hosts.get_mut(&host) {
            let index = known.index;
            if now_ns.saturating_sub(known.last_ns) >= REFRESH_NS {
                self.by_age.remove(&(known.last_ns, index));
                known.last_ns = now_ns;
                self.by_age.insert((now_ns, index));
            }
            return Ok(self.address(index));
        }
        let network = network_of(host);
        let of_network = self.per_network.get(&network).copied().unwrap_or(0);
        if of_network >= self.count.div_ceil(PER_NETWORK_PART) {
            return Err(PoolRefusal::NetworkFull);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.unused < self.count => {
                self.unused += 1;
                self.unused - 1
            }
            None => return Err(PoolRefusal::Exhausted),
        };
        self.hosts.insert(host, PoolHost { index, last_ns: now_ns });
        self.by_index.insert(index, host);
        self.by_age.insert((now_ns, index));
        *self.per_network.entry(network).or_default() += 1;
        Ok(self.address(index))
    }

    /// Frees the addresses of hosts that have sent no packet for [`MAPPING_TIMEOUT_NS`].
    fn expire(&mut self, now_ns: u64) {
        while let Some((last_ns, index)) = self.by_age.first().copied() {
            if now_ns.saturating_sub(last_ns) < MAPPING_TIMEOUT_NS {
                return;
            }
            self.by_age.remove(&(last_ns, index));
            self.free.push(index);
            let Some(host) = self.by_index.remove(&index) else { continue };
            self.hosts.remove(&host);
            let network = network_of(host);
            if let Some(count) = self.per_network.get_mut(&network) {
                *count -= 1;
                if *count == 0 {
                    self.per_network.remove(&network);
                }
            }
        }
    }

    const fn address(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first + index)
    }
}

/// Returns the first 64 bits of an address.
fn network_of(host: Ipv6Addr) -> u64 {
    (host.to_bits() >> 64) as u64
}
