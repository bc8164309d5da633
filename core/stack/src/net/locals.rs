//! Addresses of this host, and the groups and broadcast addresses that it receives.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use towpath_wire::addr;

use super::hash::Cheap;
use super::iface::{Address, IfaceId};

/// Roles of addresses for this host. Link-local IPv6 addresses, groups and directed broadcast
/// addresses are valid only on their own link. As on Linux, any other address is this host's on
/// every interface (the weak model of RFC 1122 §3.3.4.2). A packet costs one lookup for each of its
/// two addresses, whatever the number of entries.
#[derive(Debug, Clone)]
pub(super) struct Locals {
    pub hosts: Arc<Roles>,
    pub groups: Arc<Roles>,
}

/// Table of the roles of addresses, or of groups. A change creates a new table.
#[derive(Debug)]
pub(super) struct Roles {
    roles: HashMap<(u128, u32), Role, Cheap>,
    /// Bloom filter of the addresses in `roles`. Most addresses of forwarded packets are not in the
    /// table, and need no lookup.
    known: [u64; KNOWN_BITS / 64],
    /// Number of lookups so far.
    #[cfg(test)]
    asked: core::sync::atomic::AtomicU64,
}

/// Role of an address, on one interface or on any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Role {
    /// First interface that has the address; `None` if this host does not have it.
    pub owner: Option<IfaceId>,
    /// The address is a directed broadcast address.
    pub broadcast: bool,
    /// The address is a joined group.
    pub joined: bool,
}

/// Number of bits in the Bloom filter. With 60 addresses of a router, one of 70 other addresses
/// causes a needless lookup.
const KNOWN_BITS: usize = 4096;

/// Returns the index of an address's word in the Bloom filter, and the bit in this word.
#[inline]
fn known_bit(addr: IpAddr) -> (usize, u64) {
    let folded = match addr {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    // Fibonacci hashing (Knuth, volume 3, section 6.4): the upper bits are the best distributed
    // ones.
    let at = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KNOWN_BITS.ilog2());
    ((at / 64) as usize, 1 << (at % 64))
}

/// Stands for any interface in a key.
const ANY: u32 = u32::MAX;

impl Roles {
    /// Creates an empty table.
    pub(super) fn new(hash: Cheap) -> Self {
        Self {
            roles: HashMap::with_hasher(hash),
            known: [0; KNOWN_BITS / 64],
            #[cfg(test)]
            asked: core::sync::atomic::AtomicU64::default(),
        }
    }

    /// Adds an address of an interface.
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

    /// Adds a group that was joined on an interface.
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

    /// Returns the role of `addr` in a packet received or sent on `iface`.
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
        // An address of one subnet can be the broadcast address of another one.
        let broadcast = anywhere.broadcast && self.hosts.known(addr, here).broadcast;
        Role { broadcast, ..anywhere }
    }

    /// Returns the role of `addr`, which is no group, on any interface.
    #[inline]
    pub(super) fn anywhere(&self, addr: IpAddr) -> Role {
        self.hosts.known(addr, ANY)
    }

    /// Returns whether the table may have an IPv4 address, which is no group. If false, the address
    /// is not this host's.
    #[inline]
    pub(super) fn may_know(&self, v4: u32) -> bool {
        let (word, bit) = known_bit(IpAddr::V4(Ipv4Addr::from_bits(v4)));
        self.hosts.known[word] & bit != 0
    }

    /// Returns the number of lookups in the tables.
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

/// Returns the key of an address: the address (IPv4 as its mapped form, which no link may carry),
/// and the interface. Plain numbers are hashed by two multiplications.
#[inline]
fn key(addr: IpAddr, on: u32) -> (u128, u32) {
    match addr {
        IpAddr::V4(v4) => (0xffff_0000_0000 | u128::from(v4.to_bits()), on),
        IpAddr::V6(v6) => (v6.to_bits(), on),
    }
}

/// Returns whether all hosts are members of `group` (RFC 1112 §4, RFC 4291 §2.8).
pub(super) fn is_of_all_hosts(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4 == addr::ALL_HOSTS_V4,
        // Interface-local and link-local all-nodes groups.
        IpAddr::V6(v6) => v6 == addr::ALL_NODES || v6 == INTERFACE_LOCAL_ALL_NODES,
    }
}

const INTERFACE_LOCAL_ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
