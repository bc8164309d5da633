//! Interfaces, as their owner and their routers made them.

use core::net::IpAddr;

use towpath_pool::{LinkType, Offloads};
use towpath_wire::MacAddr;

use super::addresses::Addresses;
use super::discovery::Discovery;
use super::groups::Groups;
use crate::net::hash::Cheap;
use crate::net::iface::{Address, IfaceId, InterfaceConfig};
use crate::net::snapshot::Link;

/// An interface as it is.
#[derive(Debug)]
pub struct Interface {
    pub(super) id: IfaceId,
    pub(super) name: String,
    pub(super) link: LinkType,
    pub(super) mac: MacAddr,
    pub(super) mtu: u32,
    pub(super) mtu_v6: u32,
    pub(super) offloads: Offloads,
    pub(super) any_address: bool,
    pub(super) kernel_cuts: bool,
    pub(super) addresses: Addresses,
    pub(super) discovery: Discovery,
    pub(super) groups: Groups,
}

impl Interface {
    pub(super) fn new(id: IfaceId, config: &InterfaceConfig, hash: Cheap) -> Self {
        let slaac = config.slaac && config.link == LinkType::Ethernet;
        Self {
            id,
            name: config.name.clone(),
            link: config.link,
            mac: config.mac,
            mtu: config.mtu,
            mtu_v6: config.mtu,
            offloads: config.offloads,
            any_address: config.any_address,
            kernel_cuts: config.kernel_cuts,
            addresses: Addresses::new(hash),
            discovery: Discovery::new(slaac),
            groups: Groups::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> IfaceId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its packets begin with.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Longest IP packet in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// What its device does by itself.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Its addresses, in order of adding.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Whether every unicast destination is local on it.
    pub fn is_any_address(&self) -> bool {
        self.any_address
    }

    pub(super) fn address(&self, addr: IpAddr) -> Option<&Address> {
        self.addresses.find(addr)
    }

    pub(super) fn address_mut(&mut self, addr: IpAddr) -> Option<&mut Address> {
        self.addresses.find_mut(addr)
    }

    /// What packets need to know of it.
    pub(super) fn as_link(&mut self) -> Link {
        Link {
            kind: self.link,
            mac: self.mac,
            mtu: self.mtu,
            mtu_v6: self.mtu_v6,
            hop_limit: self.discovery.hop_limit,
            offloads: self.offloads,
            any_address: self.any_address,
            kernel_cuts: self.kernel_cuts,
            addresses: self.addresses.shared(),
        }
    }
}
