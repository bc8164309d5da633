//! Addresses that are this host's, and groups and broadcast addresses that it receives.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use towpath_wire::addr;

use super::hash::Cheap;
use super::iface::{Address, IfaceId};

/// Meaning of each address to this host. Link-local IPv6 addresses, groups and directed broadcast
/// addresses count on their own link only. As on Linux, any other address is this host's on every
/// interface (the weak model of RFC 1122 §3.3.4.2). A packet costs one lookup for each of its
/// addresses, whatever their number.
#[derive(Debug, Clone)]
pub(super) struct Locals {
    pub hosts: Arc<Roles>,
    pub groups: Arc<Roles>,
}

/// A table of addresses, or of groups. Any change makes a new table.
#[derive(Debug)]
pub(super) struct Roles {
    roles: HashMap<(u128, u32), Role, Cheap>,
    /// Bloom filter: a bit for each address in `roles`, and for others by chance. Most addresses of
    /// packets in transit are not known, and thereby cost no lookup.
    known: [u64; KNOWN_BITS / 64],
    /// Times that it was asked.
    #[cfg(test)]
    asked: core::sync::atomic::AtomicU64,
}

/// Meaning of an address, on an interface or on any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Role {
    /// The first interface that has the address; `None` when it is not this host's.
    pub owner: Option<IfaceId>,
    /// A directed broadcast address.
    pub broadcast: bool,
    /// A group that was joined.
    pub joined: bool,
}

/// Bits for addresses that are known: 4096, so that a router with 60 addresses is asked for one in
/// 70 others in vain.
const KNOWN_BITS: usize = 4096;

/// The bit of an address: its word, and its place there.
#[inline]
fn known_bit(addr: IpAddr) -> (usize, u64) {
    let folded = match addr {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    // Fibonacci hashing (Knuth, volume 3, section 6.4): the upper bits are the best ones.
    let at = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - KNOWN_BITS.ilog2());
    ((at / 64) as usize, 1 << (at % 64))
}

/// In place of an interface: any.
const ANY: u32 = u32::MAX;

impl Roles {
    /// Without any.
    pub(super) fn new(hash: Cheap) -> Self {
        Self {
            roles: HashMap::with_hasher(hash),
            known: [0; KNOWN_BITS / 64],
            #[cfg(test)]
            asked: core::sync::atomic::AtomicU64::default(),
        }
    }

    /// An interface has an address.
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

    /// A group was joined on an interface.
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
    /// The table of a host without addresses.
    pub(super) fn new(hash: Cheap) -> Self {
        Self { hosts: Arc::new(Roles::new(hash)), groups: Arc::new(Roles::new(hash)) }
    }

    /// Role of `addr` in a packet that came in on `iface`, or goes out there.
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
        // An address of one subnet may be the broadcast address of another one.
        let broadcast = anywhere.broadcast && self.hosts.known(addr, here).broadcast;
        Role { broadcast, ..anywhere }
    }

    /// Role of `addr`, which is no group, on any interface.
    #[inline]
    pub(super) fn anywhere(&self, addr: IpAddr) -> Role {
        self.hosts.known(addr, ANY)
    }

    /// Whether an IPv4 address, which is no group, may be known. If not, it is none of this host's.
    #[inline]
    pub(super) fn may_know(&self, v4: u32) -> bool {
        let (word, bit) = known_bit(IpAddr::V4(Ipv4Addr::from_bits(v4)));
        self.hosts.known[word] & bit != 0
    }

    /// Times that the tables were asked.
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

/// Plain numbers, which hash in two multiplications: the address (IPv4 as its mapped form, which no
/// link may carry), and the interface.
#[inline]
fn key(addr: IpAddr, on: u32) -> (u128, u32) {
    match addr {
        IpAddr::V4(v4) => (0xffff_0000_0000 | u128::from(v4.to_bits()), on),
        IpAddr::V6(v6) => (v6.to_bits(), on),
    }
}

/// Whether every interface is a member of `group` (RFC 1112 §4, RFC 4291 §2.8).
pub(super) fn is_of_all_hosts(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4 == addr::ALL_HOSTS_V4,
        // All nodes, of the interface and of the link.
        IpAddr::V6(v6) => v6 == addr::ALL_NODES || v6 == INTERFACE_LOCAL_ALL_NODES,
    }
}

const INTERFACE_LOCAL_ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
