//! Changes of a host that runs: a list of them is checked as a whole, then made as a whole.
//!
//! Packets see one snapshot with all of them, or none. Each change is checked after those before
//! it: a route may lead through the network of an address that the same list adds. The rules and
//! the faults are those of Linux (rtnetlink(7)).

use core::fmt;
use core::net::IpAddr;

use towpath_tcp::Instant;
use towpath_wire::{MacAddr, Prefix};

use super::iface::IfaceId;
use super::layer::Net;
use super::route::RouteKind;

/// A change of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Gives an interface an address, and the route to its link.
    AddAddress {
        /// Owner of the address.
        iface: IfaceId,
        /// The address with the length of its network.
        prefix: Prefix,
    },
    /// Takes an address away; the route to its link goes with the last address in that network.
    RemoveAddress {
        /// Owner of the address.
        iface: IfaceId,
        /// The address.
        addr: IpAddr,
        /// Length of its network, where that has to be right, too.
        len: Option<u8>,
    },
    /// Adds or replaces a route.
    SetRoute(RouteSpec, How),
    /// Removes the best route that has everything that is given. Without a router given, those
    /// that share its flows go as well: they are one route in the words of ip-route(8).
    RemoveRoute(RouteSpec),
    /// Says where a neighbour is, for ever: it is asked for no more.
    SetNeighbor {
        /// Link of the neighbour.
        iface: IfaceId,
        /// Its IP address.
        addr: IpAddr,
        /// Its link address.
        mac: MacAddr,
        /// Whether there may be an entry already.
        how: How,
    },
    /// Removes the entry of a neighbour, if any.
    RemoveNeighbor {
        /// Link of the neighbour.
        iface: IfaceId,
        /// Its IP address.
        addr: IpAddr,
    },
    /// Sets an interface up or down. An interface that is down sends and receives nothing, and has
    /// no routes and no neighbours. Up again, it has the routes to the links of its addresses.
    SetUp {
        /// The interface.
        iface: IfaceId,
        /// Up, or down.
        up: bool,
    },
    /// Sets the longest IP packet that the device of an interface takes, which is the most for
    /// [`Change::SetMtu`]. The interface's MTU follows, unless it was set to less and still fits.
    SetMtuMost {
        /// The interface.
        iface: IfaceId,
        /// Bytes.
        mtu: u32,
    },
    /// Sets the longest IP packet that an interface sends, at most what its device takes.
    SetMtu {
        /// The interface.
        iface: IfaceId,
        /// Bytes.
        mtu: u32,
    },
}

/// A route as an operator names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destinations, without host bits.
    pub prefix: Prefix,
    /// The router; `None`: the destinations are on the link, or any router when a route is removed.
    pub next_hop: Option<IpAddr>,
    /// The interface; `None`: that of the link which the router is on, or any.
    pub iface: Option<IfaceId>,
    /// The metric; `None`: Linux's default, 0 for IPv4 and 1024 for IPv6, or any.
    pub metric: Option<u32>,
    /// Fate of packets that take it; `None`: unicast, or any. Any but unicast leads nowhere.
    pub kind: Option<RouteKind>,
    /// The router is on the link of `iface`, even without a route to it (`onlink` of ip-route(8)).
    pub on_link: bool,
    /// Longest IP packet in bytes that takes it; `None`: as long as the link takes, or any.
    pub mtu: Option<u32>,
    /// Share of flows among routes to the same network, 1 to 256; `None`: 1, or any.
    pub weight: Option<u16>,
}

impl RouteSpec {
    /// The route to a network of which nothing more is said.
    pub const fn to(prefix: Prefix) -> Self {
        let (next_hop, iface, metric, kind) = (None, None, None, None);
        Self { prefix, next_hop, iface, metric, kind, on_link: false, mtu: None, weight: None }
    }
}

/// Meaning of an entry that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A fault: the entry is to be a new one.
    Add,
    /// The entry is one more beside those. Routes of one metric through routers share the flows.
    Append,
    /// The entry is replaced.
    Replace,
    /// The entry is replaced, and a fault if it is not there.
    Change,
}

/// Why none of a list of changes was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Place of the first change that cannot be made, from 0.
    pub at: usize,
    /// Its fault.
    pub why: Fault,
}

/// Fault of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No such interface, or none is named and none follows from the router (ENODEV).
    NoInterface,
    /// The address, route or neighbour is there already (EEXIST).
    Exists,
    /// The interface has no such address (EADDRNOTAVAIL).
    NoAddress,
    /// There is no such route (ESRCH).
    NoRoute,
    /// There is no route to be changed (ENOENT).
    NotThere,
    /// There is no such neighbour (ENOENT).
    NoNeighbor,
    /// The router is on no link of the interface (ENETUNREACH).
    GatewayUnreachable,
    /// The interface is down (ENETDOWN).
    Down,
    /// The address or its length cannot be one of a host, or families differ (EINVAL).
    Invalid,
    /// The network of a route has host bits (EINVAL).
    HostBits,
    /// The MTU is above the interface's initial one, or below 1280 bytes (EINVAL).
    Mtu,
    /// The MTU of a route is below 68 bytes, of IPv6 below 1280, or above 65535 (EINVAL).
    RouteMtu,
    /// The weight of a route is 0 or above 256 (EINVAL).
    Weight,
    /// The interface has no neighbours: it is no Ethernet interface (EINVAL).
    NoNeighbors,
    /// The loopback interface stays as it is (EPERM).
    Loopback,
    /// A table is full (ENOSPC).
    Full,
}

impl fmt::Display for Fault {
    /// In the words in which ip(8) shows them.
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
    /// Makes all of several changes, for packets at one moment.
    ///
    /// # Errors
    /// None of them was made: the first one that cannot be, and why.
    ///
    /// # Panics
    /// On a shard other than the first.
    pub fn apply(&mut self, now: Instant, changes: &[Change]) -> Result<(), Refused> {
        self.decide(|control| control.apply(now, changes))
    }
}
