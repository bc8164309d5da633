//! Addresses of this host, and the multicast groups and broadcast addresses whose packets it
//! receives.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use towpath_wire::addr;

use super::hash::Cheap;
use super::iface::{Address, IfaceId};

/// Roles of addresses for this host: own, a multicast group, or a broadcast address. Link-local
/// IPv6 addresses, groups and directed broadcast addresses apply only on their own link. As on
/// Linux, any other address of this host applies on every interface (the weak model of RFC 1122
/// §3.3.4.2). A packet needs one lookup for each of its two addresses, regardless of the number of
/// entries.
#[derive(Debug, Clone)]
pub(super) struct Locals {
    pub hosts: Arc<Roles>,
    pub groups: Arc<Roles>,
}

/// Table of the roles of unicast and broadcast addresses, or of multicast groups. A change creates
/// a new table.
#[derive(Debug)]
pub(super) struct Roles {
    roles: HashMap<(u128, u32), Role, Cheap>,
    /// Bloom filter of the addresses in `roles`. Most addresses of forwarded packets are not in the
    /// table; the filter avoids a lookup for them.
    known: [u64; KNOWN_BITS / 64],
    /// Number of lookups in this table, for tests.
    #[cfg(test)]
    asked: core::sync::atomic::AtomicU64,
}

/// Role of an address for this host: own, multicast group or broadcast address, on one interface or
/// on any interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Role {
    /// First interface with this address; `None` if it is not an address of this host.
    pub owner: Option<IfaceId>,
    /// Whether the address is a directed broadcast address.
    pub broadcast: bool,
    /// Whether the address is a multicast group that was joined.
    pub joined: bool,
}

/// Number of bits in the Bloom filter of this host's addresses. For a router with 60 addresses, one
/// of 70 other addresses causes an unnecessary lookup.
const KNOWN_BITS: usize = 4096;

/// Returns the index of the word for an address in the Bloom filter, and the bit in this word.
#[inline]
fn known_bit(addr: IpAddr) -> (usize, u64) {
    let folded = match addr {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    // Fibonacci hashing (Knuth, volume 3, section 6.4). Use the upper bits of the product, because
    // they are better distributed than the lower bits.
    let at = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KNOWN_BITS.ilog2());
    ((at / 64) as usize, 1 << (at % 64))
}

/// Interface number in a key that means any interface.
const ANY: u32 = u32::MAX;

impl Roles {
    /// Creates an empty table of roles.
    pub(super) fn new(hash: Cheap) -> Self {
        Self {
            roles: HashMap::with_hasher(hash),
            known: [0; KNOWN_BITS / 64],
            #[cfg(test)]
            asked: core::sync::atomic::AtomicU64::default(),
        }
    }

    /// Adds an address of an interface to the table.
    pub(super) fn add(&mut self, iface: IfaceId, address: &Address) {
        if address.is_usable() {
            let (addr, here) = (address.addr(), u32::from(iface.0));
            if is_scoped(addr) {
                self.role(addr, here).owner.get_or_insert(iface);
            }
            self.role(addr, ANY).owner.get_or_insert(iface);
        }
        if let Some(broadcast) = address.prefix.broadcast() {
            for on in [u32::from(iface.0), ANY] {
                self.role(broadcast.into(), on).broadcast = true;
            }
        }
    }

    /// Adds a multicast group that was joined on an interface.
    pub(super) fn join(&mut self, iface: IfaceId, group: IpAddr) {
        self.role(group, iface.0.into()).joined = true;
    }

    fn role(&mut self, addr: IpAddr, on: u32) -> &mut Role {
        let (word, bit) = known_bit(addr);
        self.known[word] |= bit;
        self.roles.entry(key(addr, on)).or_default()
    }

    #[inline]
    fn known(&self, addr: IpAddr, on: u32) -> Role {
        #[cfg(test)]
        self.asked.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let (word, bit) = known_bit(addr);
        if self.known[word] & bit == 0 {
            return Role::default();
        }
        self.roles.get(&key(addr, on)).copied().unwrap_or_default()
    }
}

impl Locals {
    /// Creates the tables of a host without addresses.
    pub(super) fn new(hash: Cheap) -> Self {
        Self { hosts: Arc::new(Roles::new(hash)), groups: Arc::new(Roles::new(hash)) }
    }

    /// Returns the role of `addr` for this host (own, broadcast or group address), in a packet
    /// received or sent on the interface `iface`.
    #[inline]
    pub(super) fn on(&self, iface: IfaceId, addr: IpAddr) -> Role {
        let here = u32::from(iface.0);
        if addr.is_multicast() {
            return self.groups.known(addr, here);
        }
        if is_scoped(addr) {
            return self.hosts.known(addr, here);
        }
        let anywhere = self.hosts.known(addr, ANY);
        // Check the interface as well, because an address of one subnet can be the broadcast
        // address of another subnet.
        let broadcast = anywhere.broadcast && self.hosts.known(addr, here).broadcast;
        Role { broadcast, ..anywhere }
    }

    /// Returns the role of `addr` for this host (own or broadcast address) on any interface. `addr`
    /// must not be a multicast group.
    #[inline]
    pub(super) fn anywhere(&self, addr: IpAddr) -> Role {
        self.hosts.known(addr, ANY)
    }

    /// Returns false if an IPv4 address is certainly not an address of this host, because it is not
    /// in the Bloom filter. The address must not be a multicast group.
    #[inline]
    pub(super) fn may_know(&self, v4: u32) -> bool {
        let (word, bit) = known_bit(IpAddr::V4(Ipv4Addr::from_bits(v4)));
        self.hosts.known[word] & bit != 0
    }

    /// Returns the number of lookups in both tables, for tests.
    #[cfg(test)]
    pub(super) fn asked(&self) -> u64 {
        let tables = [&self.hosts, &self.groups];
        tables.map(|roles| roles.asked.load(core::sync::atomic::Ordering::Relaxed)).iter().sum()
    }
}

#[inline]
fn is_scoped(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the key of an address in the table: the address as a number, and the interface. An IPv4
/// address is stored in its IPv4-mapped form, which must not occur on a link. Numbers can be hashed
/// by two multiplications.
#[inline]
fn key(addr: IpAddr, on: u32) -> (u128, u32) {
    match addr {
        IpAddr::V4(v4) => (0xffff_0000_0000 | u128::from(v4.to_bits()), on),
        IpAddr::V6(v6) => (v6.to_bits(), on),
    }
}

/// Returns whether `group` is a multicast group of which all hosts are members (RFC 1112 §4, RFC
/// 4291 §2.8).
pub(super) fn is_of_all_hosts(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4 == addr::ALL_HOSTS_V4,
        // The all-nodes groups with link-local and interface-local scope.
        IpAddr::V6(v6) => v6 == addr::ALL_NODES || v6 == INTERFACE_LOCAL_ALL_NODES,
    }
}

const INTERFACE_LOCAL_ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
