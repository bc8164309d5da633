//! Network interfaces and their addresses.

use core::net::IpAddr;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

/// Index of a network interface, in the order in which interfaces are added. 0 is the loopback
/// interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfaceId(pub u16);

impl IfaceId {
    /// The loopback interface `lo`, which every [`super::Net`] has.
    pub const LOOPBACK: Self = Self(0);

    /// Returns the identifier as an index of tables.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Configuration of a network interface to be added.
#[derive(Debug, Clone)]
pub struct InterfaceConfig {
    /// Name of the interface, for display.
    pub name: String,
    /// Type of the link, which determines the link header.
    pub link: LinkType,
    /// MAC address of the interface; ignored for a link of type IP.
    pub mac: MacAddr,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Offloads that the interface's device supports.
    pub offloads: Offloads,
    /// Addresses of the interface, each with the prefix length of its network.
    pub addresses: Vec<Prefix>,
    /// Whether addresses and routes are configured by IPv6 router advertisements (RFC 4862). Only
    /// for Ethernet.
    pub slaac: bool,
    /// Whether the interface accepts packets to every unicast address as if it were its own. A
    /// gateway that accepts connections to any host needs this.
    pub any_address: bool,
    /// Whether the kernel of the machine sends the packets of this interface to other networks, and
    /// fragments them to the path MTUs that it knows. The DF bit of a packet then depends only on
    /// the socket option of the program.
    pub kernel_cuts: bool,
    /// Whether the host on the other side of the link is a stack in this process. A link of this
    /// kind loses no packets, and its SYNs cannot be part of a flood. A SYN therefore reserves its
    /// place in the accept queue before the handshake is complete.
    pub in_process: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address, with the prefix length of its network.
    pub prefix: Prefix,
    /// State of the address in duplicate address detection and in its lifetimes.
    pub state: AddressState,
    /// Origin of the address: operator, link or router advertisement.
    pub origin: Origin,
    /// Time at which the preferred lifetime ends; `None` if it is infinite. The value is that of
    /// the last change of the host's addresses. Router advertisements may have extended both
    /// lifetimes since.
    pub preferred_until: Option<Instant>,
    /// Time at which the valid lifetime ends; `None` if it is infinite.
    pub valid_until: Option<Instant>,
    /// Number of times that duplicate address detection failed for this address (DAD_Counter of RFC
    /// 7217).
    pub(super) dad_count: u8,
}

impl Address {
    /// Returns the IP address without the prefix length of its network.
    #[inline]
    pub fn addr(&self) -> IpAddr {
        self.prefix.addr()
    }

    /// Returns whether packets may have this address as source.
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
    /// The address is not used yet, because duplicate address detection has not finished.
    Tentative,
    /// The address is used although duplicate address detection has not finished (RFC 4429). The
    /// operator added it.
    Optimistic,
    /// The address is used for new and existing connections.
    Preferred,
    /// The address is used only for existing connections, because its preferred lifetime has ended.
    Deprecated,
    /// The address is not used, because duplicate address detection found another host with the
    /// same address.
    DadFailed,
}

/// Origin of an address or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The operator added the address or route.
    Static,
    /// A link-local address, or a route to the network of an interface's address.
    Link,
    /// The address or route is from a router advertisement.
    Router,
    /// Taken over from the kernel of the host, with the number of the routing protocol
    /// (`rtm_protocol` of rtnetlink(7)). Only for routes.
    Kernel(u8),
}
