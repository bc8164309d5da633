//! Which addresses are this host.

use core::net::IpAddr;

use hashbrown::HashMap;

use super::hash::Cheap;
use super::iface::IfaceId;

/// Every address in use, with its interfaces. Link-local IPv6 addresses count on their own link only;
/// any other address is this host on every interface (the weak model of RFC 1122 §3.3.4.2), as Linux
/// has it.
#[derive(Debug, Default)]
pub(super) struct Locals {
    /// Nearly always one interface, never none.
    addresses: HashMap<(u128, u32), Vec<IfaceId>, Cheap>,
}

impl Locals {
    pub(super) fn add(&mut self, addr: IpAddr, iface: IfaceId) {
        self.addresses.entry(key(addr, iface)).or_default().push(iface);
    }

    pub(super) fn remove(&mut self, addr: IpAddr, iface: IfaceId) {
        let key = key(addr, iface);
        let Some(ifaces) = self.addresses.get_mut(&key) else { return };
        if let Some(at) = ifaces.iter().position(|has| *has == iface) {
            ifaces.remove(at);
        }
        if ifaces.is_empty() {
            self.addresses.remove(&key);
        }
    }

    /// The interface of `0..count` that has `addr`; of several the one that has had it for longest.
    pub(super) fn interface_of(&self, addr: IpAddr, count: u16) -> Option<IfaceId> {
        let mut ifaces = (0..if scoped(addr) { count } else { 1 }).map(IfaceId);
        ifaces.find_map(|iface| self.addresses.get(&key(addr, iface))?.first().copied())
    }

    /// Whether packets to `addr` that come in on `iface` are for this host.
    #[inline]
    pub(super) fn contains(&self, addr: IpAddr, iface: IfaceId) -> bool {
        self.addresses.contains_key(&key(addr, iface))
    }

    /// Whether `addr` is an address of this host; a link-local one on any interface of `0..count`.
    pub(super) fn contains_anywhere(&self, addr: IpAddr, count: u16) -> bool {
        self.interface_of(addr, count).is_some()
    }
}

#[inline]
fn scoped(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Plain numbers, which hash in two multiplications: the address (IPv4 as its mapped form, which no link
/// may carry), and the interface where that matters.
#[inline]
fn key(addr: IpAddr, iface: IfaceId) -> (u128, u32) {
    match addr {
        IpAddr::V4(v4) => (0xffff_0000_0000 | u128::from(v4.to_bits()), u32::MAX),
        IpAddr::V6(v6) if scoped(addr) => (v6.to_bits(), u32::from(iface.0)),
        IpAddr::V6(v6) => (v6.to_bits(), u32::MAX),
    }
}
