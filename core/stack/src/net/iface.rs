//! Interfaces and their addresses.

use core::net::IpAddr;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

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

/// Configuration of a new interface.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// Its name, for people.
    pub name: String,
    /// Header that its packets begin with.
    pub link: LinkType,
    /// Its Ethernet address; ignored on an IP link.
    pub mac: MacAddr,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Work that its device takes over.
    pub offloads: Offloads,
    /// Its addresses, each with the prefix that is on the link.
    pub addresses: Vec<Prefix>,
    /// Listen to IPv6 routers: make addresses and routes as they say (RFC 4862). Ethernet only.
    pub slaac: bool,
    /// Take packets to every unicast destination for our own, as a gateway does.
    pub any_address: bool,
    /// The host's kernel forwards packets behind this link, and fragments them to the path MTUs it
    /// knows. DF then expresses the program's wish alone.
    pub kernel_cuts: bool,
    /// Whether the other end is in this process: the link loses nothing, and no SYN is part of a
    /// flood. A SYN then takes its place in the accept queue at once, for the end of its handshake.
    pub in_process: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address, and which part of it is the link's prefix.
    pub prefix: Prefix,
    /// Whether it may be used.
    pub state: AddressState,
    /// Origin of the address.
    pub origin: Origin,
    /// Time until when new connections should use it; `None` for ever. Both times are as of the
    /// last change of any address of the host: routers may have prolonged them since.
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
        !matches!(self.state, AddressState::Tentative | AddressState::DadFailed)
    }

    /// Whether the address is known to be unique: duplicate address detection is over (RFC 4862
    /// §2).
    pub fn is_assigned(&self) -> bool {
        matches!(self.state, AddressState::Preferred | AddressState::Deprecated)
    }
}

/// How far an address may be used (RFC 4862 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// Not in use yet: duplicate address detection has not finished.
    Tentative,
    /// Used while its duplicate address detection runs (RFC 4429): addresses an operator gave.
    Optimistic,
    /// In use.
    Preferred,
    /// Valid for present users, not to be used anew.
    Deprecated,
    /// Another host has it, as duplicate address detection found out: never used.
    DadFailed,
}

/// Origin of an address or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The operator.
    Static,
    /// An interface's address, which implies a route to its link, and the address `fe80::`.
    Link,
    /// A router's advertisement.
    Router,
}
