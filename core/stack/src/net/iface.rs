//! Interfaces and their addresses.

use core::net::IpAddr;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::discovery::Discovery;
use super::groups::Groups;
use super::output::Output;

/// An interface: its place in the order of adding. 0 is the loopback interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfaceId(pub u16);

impl IfaceId {
    /// The loopback interface, `lo`, which every [`super::Net`] has.
    pub const LOOPBACK: Self = Self(0);

    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What an interface shall be.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// Its name, for people.
    pub name: String,
    /// What its packets begin with.
    pub link: LinkType,
    /// Its Ethernet address; ignored on an IP link.
    pub mac: MacAddr,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// What its device does by itself.
    pub offloads: Offloads,
    /// Its addresses, each with the prefix that is on the link.
    pub addresses: Vec<Prefix>,
    /// Listen to IPv6 routers: make addresses and routes as they say (RFC 4862). Ethernet only.
    pub slaac: bool,
    /// Take packets to every unicast destination for our own, as a gateway does.
    pub any_address: bool,
    /// Behind it the host's kernel sends packets on, and cuts them to what it knows of the network: its DF
    /// says nothing but what the program wants.
    pub kernel_cuts: bool,
}

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
    pub(super) addresses: Vec<Address>,
    pub(super) output: Output,
    pub(super) discovery: Discovery,
    pub(super) groups: Groups,
}

impl Interface {
    pub(super) fn new(id: IfaceId, config: &InterfaceConfig) -> Self {
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
            addresses: Vec::new(),
            output: Output::default(),
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

    /// Longest IP packet in bytes that may be sent to `dst`: routers may ask for less with IPv6.
    pub(super) fn mtu_for(&self, dst: IpAddr) -> u32 {
        if dst.is_ipv6() { self.mtu_v6 } else { self.mtu }
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.id == IfaceId::LOOPBACK
    }

    /// Whether `addr` is the directed broadcast address of one of its subnets.
    pub(super) fn is_broadcast(&self, addr: IpAddr) -> bool {
        let IpAddr::V4(addr) = addr else { return false };
        self.addresses.iter().any(|a| a.prefix.is_broadcast(addr))
    }

    pub(super) fn address(&self, addr: IpAddr) -> Option<&Address> {
        self.addresses.iter().find(|a| a.addr() == addr)
    }

    pub(super) fn address_mut(&mut self, addr: IpAddr) -> Option<&mut Address> {
        self.addresses.iter_mut().find(|a| a.addr() == addr)
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address, and which part of it is the link's prefix.
    pub prefix: Prefix,
    /// Whether it may be used.
    pub state: AddressState,
    /// Who made it.
    pub origin: Origin,
    /// Until when new connections should use it; `None` for ever.
    pub preferred_until: Option<Instant>,
    /// Until when it exists; `None` for ever.
    pub valid_until: Option<Instant>,
    /// Duplicates found so far while making this one, an input of RFC 7217.
    pub(super) dad_count: u8,
}

impl Address {
    /// The address alone.
    #[inline]
    pub fn addr(&self) -> IpAddr {
        self.prefix.addr()
    }

    /// Whether packets may be sent from it.
    pub fn is_usable(&self) -> bool {
        self.state != AddressState::Tentative
    }

    /// Whether it is known to be nobody else's: duplicate address detection is over (RFC 4862 §2).
    pub fn is_assigned(&self) -> bool {
        matches!(self.state, AddressState::Preferred | AddressState::Deprecated)
    }
}

/// How far an address may be used (RFC 4862 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// Nobody may use it: duplicate address detection has not finished.
    Tentative,
    /// Used while its duplicate address detection runs (RFC 4429): addresses an operator gave.
    Optimistic,
    /// In use.
    Preferred,
    /// Still works for what uses it, not to be used anew.
    Deprecated,
}

/// Who made an address or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The operator.
    Static,
    /// It follows from an interface's address: its link, or `fe80::`.
    Link,
    /// A router's advertisement.
    Router,
}
