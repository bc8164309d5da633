//! Lists of changes to a running host. A list is validated as a whole, and then applied as a whole.
//!
//! Packets see a snapshot with all changes of a list, or with none. Each change is validated after
//! the changes before it: a route may lead through the network of an address that the same list
//! adds. The rules and the errors are those of Linux (rtnetlink(7)).

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::iface::IfaceId;
use super::layer::Net;
use super::route::RouteKind;

/// A change of the host's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Adds an address to an interface, and the route to the address's network.
    AddAddress {
        /// Interface that gets the address.
        iface: IfaceId,
        /// The address, with the prefix length of its network.
        prefix: Prefix,
    },
    /// Removes an address. The route to its network is removed with the last address in that
    /// network.
    RemoveAddress {
        /// Interface that has the address.
        iface: IfaceId,
        /// The address.
        addr: IpAddr,
        /// Prefix length, which must match that of the address; `None` accepts any length.
        len: Option<u8>,
    },
    /// Sets the lifetimes of an address. The address is removed when its valid lifetime ends.
    SetLifetime {
        /// Interface that has the address.
        iface: IfaceId,
        /// The address.
        addr: IpAddr,
        /// Valid and preferred lifetime from now on; `None`: infinite.
        lifetime: Option<Duration>,
    },
    /// Adds or replaces a route.
    SetRoute(RouteSpec, How),
    /// Removes the best route that matches all given fields. Without a next hop in the
    /// [`RouteSpec`], the routes that share flows with that route are removed, too: ip-route(8)
    /// shows them as one multipath route.
    RemoveRoute(RouteSpec),
    /// Sets a permanent MAC address for a neighbour, so that no solicitations are sent for it.
    SetNeighbor {
        /// Interface whose link the neighbour is on.
        iface: IfaceId,
        /// IP address of the neighbour.
        addr: IpAddr,
        /// MAC address of the neighbour.
        mac: MacAddr,
        /// Behaviour if the neighbour has an entry already.
        how: How,
    },
    /// Removes the entry of a neighbour. Fails if there is no entry.
    RemoveNeighbor {
        /// Interface whose link the neighbour is on.
        iface: IfaceId,
        /// IP address of the neighbour.
        addr: IpAddr,
    },
    /// Sets an interface up or down. An interface that is down sends and receives no packets, and
    /// has no routes and no neighbours. When set up again, the interface gets the routes to the
    /// networks of its addresses.
    SetUp {
        /// Interface to set up or down.
        iface: IfaceId,
        /// `true` for up, `false` for down.
        up: bool,
    },
    /// Removes an interface with its addresses, routes, neighbours and groups. Sockets that are
    /// bound to it get ENODEV, and connections over it use another route. The owner then drops the
    /// queued packets in each shard by [`Stack::detach`](crate::Stack::detach).
    RemoveInterface {
        /// Interface to remove.
        iface: IfaceId,
    },
    /// Sets the maximum MTU of an interface's device, the upper limit for [`Change::SetMtu`]. The
    /// interface gets this MTU, unless the operator or a router set a smaller one.
    SetMtuMost {
        /// Interface of the device.
        iface: IfaceId,
        /// Maximum MTU in bytes.
        mtu: u32,
    },
    /// Sets the MTU of an interface, at most the maximum of its device.
    SetMtu {
        /// Interface whose MTU is set.
        iface: IfaceId,
        /// MTU in bytes.
        mtu: u32,
    },
}

/// A route as the operator specifies it, to add, change or remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec {
    /// Network of the destinations; bits after the prefix length are 0.
    pub prefix: Prefix,
    /// Router that packets are sent to. `None`: the destinations are on the link. In a removal,
    /// `None` matches any router.
    pub next_hop: Option<IpAddr>,
    /// Interface that packets leave by. `None`: the interface whose link has the router. In a
    /// removal, `None` matches any interface.
    pub iface: Option<IfaceId>,
    /// Metric of the route. `None`: Linux's default, 0 for IPv4 and 1024 for IPv6. In a removal,
    /// `None` matches any metric.
    pub metric: Option<u32>,
    /// Type of the route. `None`: unicast. In a removal, `None` matches any type. A route that is
    /// not unicast has no next hop.
    pub kind: Option<RouteKind>,
    /// Treat `next_hop` as directly reachable on `iface`, even without a route to it (`onlink` of
    /// ip-route(8)).
    pub on_link: bool,
    /// MTU of the route in bytes. `None`: the MTU of the link. In a removal, `None` matches any
    /// MTU.
    pub mtu: Option<u32>,
    /// Weight among multipath routes to the same network, 1 to 256. `None`: 1. Ignored in a
    /// removal.
    pub weight: Option<u16>,
}

impl RouteSpec {
    /// Returns a specification with only the network set.
    pub const fn to(prefix: Prefix) -> Self {
        let (next_hop, iface, metric, kind) = (None, None, None, None);
        Self { prefix, next_hop, iface, metric, kind, on_link: false, mtu: None, weight: None }
    }
}

/// Behaviour of an addition if an equal entry exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Fail if the entry exists (NLM_F_EXCL).
    Add,
    /// Add another entry after the existing ones (NLM_F_APPEND). Routes with the same metric
    /// through routers share their flows.
    Append,
    /// Replace the existing entry, or add the entry if none exists (NLM_F_REPLACE with
    /// NLM_F_CREATE).
    Replace,
    /// Replace the existing entry, and fail if none exists (NLM_F_REPLACE).
    Change,
}

/// Rejection of a list of changes, of which none was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Index of the first invalid change in the list.
    pub at: usize,
    /// Reason why the change is invalid.
    pub why: Fault,
}

/// Reason why a change is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The interface does not exist, or none is given and the router is on no interface's link
    /// (ENODEV).
    NoInterface,
    /// The interface, address, route or neighbour exists already (EEXIST).
    Exists,
    /// The interface does not have the address to remove (EADDRNOTAVAIL).
    NoAddress,
    /// The route to remove does not exist (ESRCH).
    NoRoute,
    /// The route or neighbour to change does not exist (ENOENT).
    NotThere,
    /// The neighbour to remove has no entry (ENOENT).
    NoNeighbor,
    /// The router is not directly reachable through the interface (ENETUNREACH).
    GatewayUnreachable,
    /// The interface is down (ENETDOWN).
    Down,
    /// The address or prefix length is invalid for a host, or the address families differ (EINVAL).
    Invalid,
    /// The network of the route has bits set after the prefix length (EINVAL).
    HostBits,
    /// The MTU is above the maximum of the interface's device (`Change::SetMtuMost`), or either is
    /// below 1280 bytes, IPv6's minimum (EINVAL).
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
    /// Writes the error text that ip(8) prints for the errno.
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
    /// Applies a list of changes atomically: packets see all of them, or none.
    ///
    /// # Errors
    ///
    /// The index of the first invalid change and the reason. No change was applied.
    ///
    /// # Panics
    ///
    /// On a shard other than the first.
    pub fn apply(&mut self, now: Instant, changes: &[Change]) -> Result<(), Refused> {
        self.decide(|control| control.apply(now, changes))
    }
}
