//! Lists of changes to the configuration of a running host. A list is validated as a whole, and
//! then applied as a whole.
//!
//! No packet is handled by a configuration with only a part of the changes. Each change is
//! validated as if the changes before it were already made. For example, a route may lead through
//! the network of an address that the same list adds. The rules and the errors are those of Linux
//! (rtnetlink(7)).

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::iface::IfaceId;
use super::layer::Net;
use super::route::RouteKind;

/// A change of the host's IP configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Adds an address to an interface, and the route to the address's network.
    AddAddress {
        /// Interface to which the address is added.
        iface: IfaceId,
        /// The address to add, with the prefix length of its network.
        prefix: Prefix,
    },
    /// Removes an address. If the interface has no other address in the same network, the route to
    /// the network is removed, too.
    RemoveAddress {
        /// Interface that has the address.
        iface: IfaceId,
        /// The address to remove.
        addr: IpAddr,
        /// Prefix length of the address, which must match; `None` accepts any prefix length.
        len: Option<u8>,
    },
    /// Sets the lifetimes of an address. The address is removed when its valid lifetime ends.
    SetLifetime {
        /// Interface that has the address.
        iface: IfaceId,
        /// The address whose lifetimes are set.
        addr: IpAddr,
        /// Valid and preferred lifetime, which begins now; `None` if it is infinite.
        lifetime: Option<Duration>,
    },
    /// Adds or replaces a route.
    SetRoute(RouteSpec, How),
    /// Removes the best route that matches all given fields. If the [`RouteSpec`] has no next hop
    /// and matches a multipath route, all parts of that route are removed. ip-route(8) shows the
    /// parts as one route.
    RemoveRoute(RouteSpec),
    /// Sets a permanent MAC address for a neighbour, so that the host does not send ARP requests or
    /// neighbour solicitations for it.
    SetNeighbor {
        /// Interface to whose link the neighbour is attached.
        iface: IfaceId,
        /// IP address of the neighbour.
        addr: IpAddr,
        /// MAC address of the neighbour.
        mac: MacAddr,
        /// Action if the neighbour already has an entry.
        how: How,
    },
    /// Removes the entry of a neighbour. Fails if the neighbour has no entry.
    RemoveNeighbor {
        /// Interface to whose link the neighbour is attached.
        iface: IfaceId,
        /// IP address of the neighbour.
        addr: IpAddr,
    },
    /// Sets an interface up or down. An interface that is down sends and receives no packets, and
    /// has no routes and no neighbours. When an interface is set up again, the routes to the
    /// networks of its addresses are added again.
    SetUp {
        /// Interface to set up or down.
        iface: IfaceId,
        /// `true` for up, `false` for down.
        up: bool,
    },
    /// Removes an interface with its addresses, routes, neighbours and multicast groups. Sockets
    /// that are bound to the interface get ENODEV, and connections over it use another route.
    /// Afterwards the owner calls [`Stack::detach`](crate::Stack::detach) in each shard, to drop
    /// packets queued for the interface.
    RemoveInterface {
        /// Interface to remove.
        iface: IfaceId,
    },
    /// Sets the maximum MTU that an interface's device supports; [`Change::SetMtu`] cannot exceed
    /// it. The interface then uses this maximum, unless the operator or a router set a smaller MTU.
    SetMtuMost {
        /// Interface of the device.
        iface: IfaceId,
        /// Maximum MTU in bytes.
        mtu: u32,
    },
    /// Sets the MTU of an interface; it must not exceed the maximum of the device.
    SetMtu {
        /// Interface whose MTU is set.
        iface: IfaceId,
        /// MTU in bytes.
        mtu: u32,
    },
}

/// A route to add, change or remove, with the fields that the operator specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec {
    /// Network of the destinations; bits after the prefix length are 0.
    pub prefix: Prefix,
    /// Next router; `None` if the destinations are on the link. In a removal, `None` matches any
    /// router.
    pub next_hop: Option<IpAddr>,
    /// Interface by which packets are sent; `None` for the interface to whose link the router is
    /// attached. In a removal, `None` matches any interface.
    pub iface: Option<IfaceId>,
    /// Metric of the route; `None` for Linux's default, 0 for IPv4 and 1024 for IPv6. In a removal,
    /// `None` matches any metric.
    pub metric: Option<u32>,
    /// Type of the route; `None` for unicast. In a removal, `None` matches any type. Only unicast
    /// routes have a next hop.
    pub kind: Option<RouteKind>,
    /// Whether `next_hop` counts as directly reachable on `iface`, even if there is no route to it
    /// (`onlink` of ip-route(8)).
    pub on_link: bool,
    /// MTU of the route in bytes; `None` for the MTU of the link. In a removal, `None` matches any
    /// MTU.
    pub mtu: Option<u32>,
    /// Weight of the route among the parts of a multipath route, 1 to 256; `None` for 1. Ignored in
    /// a removal.
    pub weight: Option<u16>,
}

impl RouteSpec {
    /// Returns a specification in which only the destination network is set.
    pub const fn to(prefix: Prefix) -> Self {
        let (next_hop, iface, metric, kind) = (None, None, None, None);
        Self { prefix, next_hop, iface, metric, kind, on_link: false, mtu: None, weight: None }
    }
}

/// Action if an entry to be added already exists (flags of rtnetlink(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Fail if an equal entry exists (NLM_F_EXCL).
    Add,
    /// Add another entry after the existing ones (NLM_F_APPEND). Routes to the same network through
    /// routers, with the same metric, form a multipath route.
    Append,
    /// Replace the existing entry, or add the entry if none exists (NLM_F_REPLACE with
    /// NLM_F_CREATE).
    Replace,
    /// Replace the existing entry, and fail if none exists (NLM_F_REPLACE).
    Change,
}

/// Error of a list of changes that contains an invalid change. None of the changes was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Index of the first invalid change in the list.
    pub at: usize,
    /// Reason why the change at index `at` is invalid.
    pub why: Fault,
}

/// Reason why a change of the configuration is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The interface does not exist, or none was given and the router is on no interface's link
    /// (ENODEV).
    NoInterface,
    /// The interface, address, route or neighbour exists already (EEXIST).
    Exists,
    /// The interface does not have the address to remove (EADDRNOTAVAIL).
    NoAddress,
    /// The route to be removed does not exist (ESRCH).
    NoRoute,
    /// The route or neighbour to be changed does not exist (ENOENT).
    NotThere,
    /// The neighbour to be removed has no entry (ENOENT).
    NoNeighbor,
    /// The router is not directly reachable through the interface (ENETUNREACH).
    GatewayUnreachable,
    /// The interface for the change is down (ENETDOWN).
    Down,
    /// The address or prefix length is invalid for a host, or the address families differ (EINVAL).
    Invalid,
    /// The network of the route has bits set after the prefix length (EINVAL).
    HostBits,
    /// The MTU exceeds the maximum of the interface's device (`Change::SetMtuMost`), or one of the
    /// two is below IPv6's minimum of 1280 bytes (EINVAL).
    Mtu,
    /// The MTU of the route is below 68 bytes (1280 for IPv6) or above 65,535 (EINVAL).
    RouteMtu,
    /// The weight of a route is 0 or above 256 (EINVAL).
    Weight,
    /// The interface is not an Ethernet interface, so it has no neighbours (EINVAL).
    NoNeighbors,
    /// The change would modify the loopback interface, which is not allowed (EPERM).
    Loopback,
    /// The limit on interfaces, addresses, routers or neighbours is reached (ENOSPC).
    Full,
}

impl fmt::Display for Fault {
    /// Writes the error text that ip(8) prints for the corresponding errno.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoInterface => "No such device",
            Self::Exists => "File exists",
            Self::NoAddress => "Cannot assign requested address",
            Self::NoRoute => "No such process",
            Self::NotThere | Self::NoNeighbor => "No such file or directory",
            Self::GatewayUnreachable => "Nexthop has invalid gateway",
            Self::Down => "Network is down",
            Self::Invalid => "Invalid argument",
            Self::HostBits => "Invalid prefix for given prefix length",
            Self::Mtu => {
                "MTU out of range: expected 1280 to what the device of the interface takes"
            }
            Self::RouteMtu => "MTU of a route out of range: expected 68 (IPv6: 1280) to 65535",
            Self::Weight => "Weight of a next hop out of range: expected 1 to 256",
            Self::NoNeighbors => "Device does not have neighbors",
            Self::Loopback => "Operation not permitted on the loopback interface",
            Self::Full => "No space left on device",
        })
    }
}

impl Net {
    /// Applies a list of changes atomically: packets are handled with all changes, or with none.
    ///
    /// # Errors
    ///
    /// Returns the index of the first invalid change and the reason why it is invalid. No change
    /// was applied.
    ///
    /// # Panics
    ///
    /// Panics on a shard other than the first one, which owns the configuration.
    pub fn apply(&mut self, now: Instant, changes: &[Change]) -> Result<(), Refused> {
        self.decide(|control| control.apply(now, changes))
    }
}
