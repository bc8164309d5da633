//! Network configuration of a run, and changes to it, as serialized to JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_wire::{MacAddr, Prefix};

use crate::sockets::Word;
use crate::text;

/// Network configuration of a run: interfaces, routes and neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// All interfaces; the loopback interface comes first.
    pub interfaces: Vec<Interface>,
    /// All routes, in the order in which they were added.
    pub routes: Vec<Route>,
    /// All neighbours, sorted by interface and address.
    pub neighbors: Vec<Neighbor>,
}

/// Network interface of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Number of the interface, from 1.
    pub index: u32,
    /// Name of the interface.
    pub name: Word,
    /// Kind of the interface.
    pub kind: Kind,
    /// Ethernet address. None unless this is an Ethernet interface.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether the interface is up.
    pub up: bool,
    /// Whether the device has a link. None if there is no kernel device below.
    #[serde(default)]
    pub carrier: Option<bool>,
    /// Addresses, in the order in which they were added.
    pub addresses: Vec<Address>,
    /// Traffic since the start of the run.
    pub traffic: Traffic,
}

/// Kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `lo`, inside the stack.
    Loopback,
    /// Ethernet frames.
    Ethernet,
    /// IP packets without a link header.
    Ip,
}

/// Address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address with its prefix length.
    #[serde(with = "text")]
    pub address: Prefix,
    /// State of the address.
    pub state: AddressState,
    /// Origin of the address.
    pub origin: Origin,
    /// Valid lifetime in seconds; None means infinite.
    pub valid_s: Option<u64>,
    /// Preferred lifetime in seconds; None means infinite.
    pub preferred_s: Option<u64>,
}

/// State of an address (RFC 4862, RFC 4429).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressState {
    /// Duplicate address detection is in progress; the address is not used yet.
    Tentative,
    /// Duplicate address detection is in progress; the address is used with restrictions (RFC
    /// 4429).
    Optimistic,
    /// Usable without restriction.
    Preferred,
    /// Used by existing connections only.
    Deprecated,
    /// Unusable, because duplicate address detection found another host with the address.
    DadFailed,
}

/// Origin of an address or a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Configured by the operator.
    #[default]
    Static,
    /// Created by the stack itself: the route to an address's link, or a link-local address.
    Link,
    /// Learned from a router advertisement.
    Router,
}

/// Traffic counters of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets received. Merged packets count once.
    pub rx_packets: u64,
    /// Bytes received, including link headers.
    pub rx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets sent, counted as on the wire.
    pub tx_packets: u64,
    /// Bytes sent, including link headers.
    pub tx_bytes: u64,
    /// Outgoing packets that were dropped.
    pub tx_dropped: u64,
}

/// A route: existing, to be added, or a pattern for deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination prefix without host bits; 0.0.0.0/0 and ::/0 are the default routes.
    #[serde(with = "text")]
    pub to: Prefix,
    /// Address of the router. None: the destination is on-link; for deletion, any router.
    #[serde(default)]
    pub via: Option<IpAddr>,
    /// Outgoing interface. None: that of the router's link; for deletion, any interface.
    #[serde(default)]
    pub dev: Option<Word>,
    /// Metric. None: the default; for deletion, any metric.
    #[serde(default)]
    pub metric: Option<u32>,
    /// Kind of the route. None: unicast; for deletion, any kind. Routes that are not unicast have
    /// neither a router nor an interface.
    #[serde(default)]
    pub kind: Option<RouteKind>,
    /// Path MTU in bytes. None: that of the link; for deletion, any.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Weight among the next hops of a multipath route, 1 to 256. None: 1; for deletion, any.
    #[serde(default)]
    pub weight: Option<u16>,
    /// Origin of an existing route. Ignored in changes.
    #[serde(default)]
    pub origin: Origin,
}

/// The on-link IPv4 default route, as a base for struct update syntax.
impl Default for Route {
    fn default() -> Self {
        let (to, origin) = (Prefix::ALL_V4, Origin::Static);
        let (metric, kind, mtu, weight) = (None, None, None, None);
        Self { to, via: None, dev: None, metric, kind, mtu, weight, origin }
    }
}

impl Route {
    /// Returns whether both routes are next hops of the same multipath route, which ip-route(8)
    /// shows as one route.
    pub fn shares_with(&self, other: &Self) -> bool {
        let is_routed = |route: &Self| {
            route.via.is_some() && route.kind.is_none_or(|kind| kind == RouteKind::Unicast)
        };
        (self.to, self.metric, self.origin) == (other.to, other.metric, other.origin)
            && is_routed(self)
            && is_routed(other)
    }
}

/// Kind of a route, named as in ip-route(8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Packets are sent to the router, or on-link.
    #[default]
    Unicast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are rejected: host unreachable.
    Unreachable,
    /// Packets are rejected: communication prohibited.
    Prohibit,
}

/// Neighbour on a link (ARP or NDP).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbor {
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Interface of the link.
    pub dev: Word,
    /// Ethernet address, once known.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// State of the entry.
    pub state: NeighborState,
    /// Whether the neighbour is a router.
    pub router: bool,
}

/// State of a neighbour, named as in iproute2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighborState {
    /// Address resolution is in progress.
    Incomplete,
    /// Reachability was confirmed recently.
    Reachable,
    /// Reachability is unconfirmed.
    Stale,
    /// Used while unconfirmed; waiting for a confirmation by a connection.
    Delay,
    /// Used while unconfirmed; being probed.
    Probe,
    /// Configured by the operator.
    Permanent,
}

/// Change to the network configuration of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// Adds an address to an interface, and a route to its link.
    AddAddress {
        /// Name of the interface.
        dev: Word,
        /// The address with its prefix length.
        #[serde(with = "text")]
        address: Prefix,
    },
    /// Deletes an address.
    DeleteAddress {
        /// Name of the interface.
        dev: Word,
        /// The address.
        address: IpAddr,
        /// Prefix length, if it must match as well.
        #[serde(default)]
        length: Option<u8>,
    },
    /// Adds or replaces a route.
    SetRoute {
        /// The route.
        route: Route,
        /// Handling of an existing route to the same network with the same metric.
        how: How,
    },
    /// Deletes the best route that matches all given fields. Without a router, also deletes the
    /// other next hops of the same multipath route.
    DeleteRoute {
        /// Fields that must match.
        route: Route,
    },
    /// Adds a permanent neighbour entry.
    SetNeighbor {
        /// Interface of the link.
        dev: Word,
        /// IP address of the neighbour.
        address: IpAddr,
        /// Ethernet address of the neighbour.
        #[serde(with = "text")]
        mac: MacAddr,
        /// Handling of an existing entry.
        how: How,
    },
    /// Deletes a neighbour entry.
    DeleteNeighbor {
        /// Interface of the link.
        dev: Word,
        /// IP address of the neighbour.
        address: IpAddr,
    },
    /// Opens a device, and adds an interface that uses it. Must be the only change of a request,
    /// because an open device cannot be undone. Only routers support this.
    AddLink {
        /// Name of the new interface.
        name: Word,
        /// Device and addresses, as `towpath router --port` takes them after `NAME=`.
        device: String,
    },
    /// Deletes an interface with its addresses, routes and neighbours, and closes its device. Must
    /// be the only change of a request. Only routers support this.
    DeleteLink {
        /// Name of the interface.
        dev: Word,
    },
    /// Sets an interface up or down.
    SetLink {
        /// Name of the interface.
        dev: Word,
        /// Whether the interface should be up.
        up: bool,
    },
    /// Sets the MTU of an interface.
    SetMtu {
        /// Name of the interface.
        dev: Word,
        /// MTU in bytes, from 1280 to the maximum of the device.
        mtu: u32,
    },
}

/// Handling of an existing entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Fails if the entry exists.
    Add,
    /// Adds the route as a further next hop. Routes with the same metric through routers share the
    /// flows.
    Append,
    /// Replaces an existing entry, or adds a new one.
    Replace,
    /// Replaces the entry; fails if it does not exist.
    Change,
}
