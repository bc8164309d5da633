//! Interfaces of the host, with their configured properties and those that routers advertise.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::addresses::Addresses;
use super::discovery::Discovery;
use super::groups::Groups;
use crate::net::hash::Cheap;
use crate::net::iface::{Address, IfaceId, InterfaceConfig};
use crate::net::snapshot::Link;

/// An interface in the control part of the IP layer. The data parts use a [`Link`] instead.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) id: IfaceId,
    /// Time at which the interface was added. Distinguishes it from an earlier interface with the
    /// same index.
    pub(super) added_at: Instant,
    /// Time at which the interface was removed; `None` if it exists. The entry of a removed
    /// interface only reserves the index.
    pub(super) removed_at: Option<Instant>,
    pub(super) name: Arc<str>,
    pub(super) link: LinkType,
    pub(super) mac: MacAddr,
    pub(super) mtu: u32,
    pub(super) mtu_v6: u32,
    /// Maximum MTU in bytes that the interface's device supports.
    pub(super) mtu_most: u32,
    /// Whether the operator has set the interface down, so that it neither sends nor receives
    /// packets.
    pub(super) down: bool,
    pub(super) offloads: Offloads,
    pub(super) any_address: bool,
    pub(super) kernel_cuts: bool,
    pub(super) in_process: bool,
    pub(super) addresses: Addresses,
    pub(super) discovery: Discovery,
    pub(super) groups: Groups,
}

impl Interface {
    pub(super) fn new(now: Instant, id: IfaceId, config: &InterfaceConfig, hash: Cheap) -> Self {
        let slaac = config.slaac && config.link == LinkType::Ethernet;
        Self {
            id,
            added_at: now,
            removed_at: None,
            name: config.name.as_str().into(),
            link: config.link,
            mac: config.mac,
            mtu: config.mtu,
            mtu_v6: config.mtu,
            mtu_most: config.mtu,
            down: false,
            offloads: config.offloads,
            any_address: config.any_address,
            kernel_cuts: config.kernel_cuts,
            in_process: config.in_process,
            addresses: Addresses::new(hash),
            discovery: Discovery::new(slaac),
            groups: Groups::default(),
        }
    }

    /// Returns an entry that replaces a removed interface in the table, so that its index is not
    /// reused at once.
    pub(super) fn removed(&self, now: Instant, hash: Cheap) -> Self {
        Self {
            id: self.id,
            added_at: self.added_at,
            removed_at: Some(now),
            name: Arc::from(""),
            // A link of type IP has no neighbours, so none are resolved for the removed interface.
            link: LinkType::Ip,
            mac: MacAddr::UNSPECIFIED,
            mtu: self.mtu,
            mtu_v6: self.mtu_v6,
            mtu_most: self.mtu_most,
            down: true,
            offloads: Offloads::default(),
            any_address: false,
            kernel_cuts: false,
            in_process: false,
            addresses: Addresses::new(hash),
            discovery: Discovery::new(false),
            groups: Groups::default(),
        }
    }

    /// Sets the maximum MTU in bytes that the interface's device supports.
    pub(super) fn set_mtu_most(&mut self, most: u32) {
        let before = std::mem::replace(&mut self.mtu_most, most);
        for mtu in [&mut self.mtu, &mut self.mtu_v6] {
            // An MTU below the previous maximum was set by the operator or a router, so keep it.
            let is_chosen = *mtu < before;
            *mtu = if is_chosen { most.min(*mtu) } else { most };
        }
    }

    pub(super) fn address(&self, addr: IpAddr) -> Option<&Address> {
        self.addresses.find(addr)
    }

    pub(super) fn address_mut(&mut self, addr: IpAddr) -> Option<&mut Address> {
        self.addresses.find_mut(addr)
    }

    /// Converts the interface to a [`Link`], its description in the next configuration snapshot.
    pub(super) fn as_link(&mut self) -> Link {
        Link {
            id: self.id,
            added_at: self.added_at,
            removed: self.removed_at.is_some(),
            name: Arc::clone(&self.name),
            kind: self.link,
            mac: self.mac,
            mtu: self.mtu,
            mtu_v6: self.mtu_v6,
            down: self.down,
            hop_limit: self.discovery.hop_limit,
            offloads: self.offloads,
            any_address: self.any_address,
            kernel_cuts: self.kernel_cuts,
            in_process: self.in_process,
            addresses: self.addresses.shared(),
        }
    }
}
