//! Interfaces and their addresses.

use core::net::IpAddr;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

/// Index of an interface, in the order of addition. 0 is the loopback interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfaceId(pub u16);

impl IfaceId {
    /// The loopback interface `lo`, which every [`super::Net`] has.
    pub const LOOPBACK: Self = Self(0);

    /// Returns the id as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Configuration of a new interface.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// Name for display.
    pub name: String,
    /// Type of the link, which determines the link header.
    pub link: LinkType,
    /// MAC address; ignored for an IP link.
    pub mac: MacAddr,
    /// MTU in bytes.
    pub mtu: u32,
    /// Offloads of the device.
    pub offloads: Offloads,
    /// Addresses, each with the prefix of its network.
    pub addresses: Vec<Prefix>,
    /// Configure addresses and routes by IPv6 router advertisements (RFC 4862). Only for Ethernet.
    pub slaac: bool,
    /// Accept packets to every unicast address as local, as a gateway does.
    pub any_address: bool,
    /// The kernel of the real host forwards the packets behind this link, and fragments them to the
    /// path MTUs it knows. DF then depends only on the program's option.
    pub kernel_cuts: bool,
    /// The peer on this link is in this process, so no packets are lost and no SYN is part of a
    /// flood. A SYN then reserves its place in the accept queue, before the handshake is complete.
    pub in_process: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Address, with the prefix length of its network.
    pub prefix: Prefix,
    /// State of duplicate address detection and lifetimes.
    pub state: AddressState,
    /// Origin of the address: operator, link or router advertisement.
    pub origin: Origin,
    /// End of the preferred lifetime; `None`: infinite. Both lifetimes are as of the last change of
    /// an address of this host; later advertisements may have extended them.
    pub preferred_until: Option<Instant>,
    /// End of the valid lifetime; `None`: infinite.
    pub valid_until: Option<Instant>,
    /// Number of duplicates found for this address so far (DAD_Counter of RFC 7217).
    pub(super) dad_count: u8,
}

impl Address {
    /// Returns the address without the prefix length.
    #[inline]
    pub fn addr(&self) -> IpAddr {
        self.prefix.addr()
    }

    /// Returns whether packets may be sent from the address.
    pub fn is_usable(&self) -> bool {
        !matches!(self.state, AddressState::Tentative | AddressState::DadFailed)
    }

    /// Returns whether duplicate address detection has finished, so that the address is known to be
    /// unique (RFC 4862 §2).
    pub fn is_assigned(&self) -> bool {
        matches!(self.state, AddressState::Preferred | AddressState::Deprecated)
    }
}

/// State of an address (RFC 4862 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// Not used yet, because duplicate address detection has not finished.
    Tentative,
    /// Used while duplicate address detection runs (RFC 4429), for addresses that the operator
    /// added.
    Optimistic,
    /// Used for new and existing connections.
    Preferred,
    /// Used for existing connections only, because the preferred lifetime ended.
    Deprecated,
    /// Not used, because duplicate address detection found it on another host.
    DadFailed,
}

/// Origin of an address or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Added by the operator.
    Static,
    /// Link-local address, or the route that follows from an address of an interface.
    Link,
    /// Learnt from a router advertisement.
    Router,
}
