//! Types of the control protocol for the network configuration of a run, and for changes to it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_wire::{MacAddr, Prefix};

use crate::sockets::Word;
use crate::text;

/// Network configuration of a run: interfaces, routes and neighbors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// All interfaces. The loopback interface is first.
    pub interfaces: Vec<Interface>,
    /// All routes, in the order in which they were added.
    pub routes: Vec<Route>,
    /// All neighbors, sorted by interface and address.
    pub neighbors: Vec<Neighbor>,
}

/// Network interface of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Number of the interface, counted from 1.
    pub index: u32,
    /// Name of the interface.
    pub name: Word,
    /// Kind of the interface.
    pub kind: Kind,
    /// Ethernet address; `None` unless this is an Ethernet interface.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether the device has a link (carrier); `None` if no kernel device is below the interface.
    #[serde(default)]
    pub carrier: Option<bool>,
    /// Addresses of the interface, in the order in which they were added.
    pub addresses: Vec<Address>,
    /// Traffic counters since the start of the run.
    pub traffic: Traffic,
}

/// Kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The interface `lo` inside the stack.
    Loopback,
    /// Interface whose packets have Ethernet headers.
    Ethernet,
    /// Interface whose packets have no link header.
    Ip,
}

/// Address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address with its prefix length.
    #[serde(with = "text")]
    pub address: Prefix,
    /// State of duplicate address detection and lifetime.
    pub state: AddressState,
    /// How the address was created.
    pub origin: Origin,
    /// Remaining valid lifetime in seconds; `None` if infinite.
    pub valid_s: Option<u64>,
    /// Remaining preferred lifetime in seconds; `None` if infinite.
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
    /// Usable without restrictions.
    Preferred,
    /// Used only by existing connections, because the preferred lifetime has ended.
    Deprecated,
    /// Unusable, because duplicate address detection found another host with the address.
    DadFailed,
}

/// How an address or a route was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Configured by the operator.
    #[default]
    Static,
    /// Created by the stack itself: the route to the network of an address, or a link-local
    /// address.
    Link,
    /// Learned from a router advertisement.
    Router,
    /// Taken over from the host's kernel, with the number of a protocol that
    /// [`protocol_name`] knows, or 0.
    Kernel(u8),
}

/// Numbers and names of the kernel's routing protocols, as in iproute2's `rt_protos`. The first one
/// is used for protocols that are not in this table.
const PROTOCOLS: [(u8, &str); 13] = [
    (0, "kernel-sync"),
    (4, "static"),
    (11, "zebra"),
    (12, "bird"),
    (16, "dhcp"),
    (18, "keepalived"),
    (42, "babel"),
    (84, "openr"),
    (186, "bgp"),
    (187, "isis"),
    (188, "ospf"),
    (189, "rip"),
    (192, "eigrp"),
];

impl Origin {
    /// Returns the origin of a route of the kernel. Protocols without a name become 0.
    pub fn of_kernel(protocol: u8) -> Self {
        // FRR has a number of its own for static routes.
        let protocol = if protocol == 196 { 4 } else { protocol };
        let is_named = PROTOCOLS.iter().any(|(number, _)| *number == protocol);
        Self::Kernel(if is_named { protocol } else { 0 })
    }

    /// Returns the origin of routes that have the routing protocol `name` in the kernel.
    pub fn of_protocol(name: &str) -> Option<Self> {
        PROTOCOLS.iter().find(|(_, known)| *known == name).map(|(number, _)| Self::Kernel(*number))
    }
}

/// Returns the name of a protocol of the kernel's routes.
pub fn protocol_name(protocol: u8) -> &'static str {
    let known = PROTOCOLS.iter().find(|(number, _)| *number == protocol);
    known.map_or(PROTOCOLS[0].1, |(_, name)| name)
}

/// Traffic counters of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets received. Several packets that were merged into one count once.
    pub rx_packets: u64,
    /// Bytes received, including link-layer headers.
    pub rx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets sent, counted after segmentation.
    pub tx_packets: u64,
    /// Bytes sent, including link-layer headers.
    pub tx_bytes: u64,
    /// Packets to be sent that were dropped.
    pub tx_dropped: u64,
}

/// A route: an existing one, one to be added, or a pattern for routes to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination prefix without host bits; 0.0.0.0/0 and ::/0 are the default routes.
    #[serde(with = "text")]
    pub to: Prefix,
    /// Address of the next router; `None` if the destination is on the link. In a deletion, `None`
    /// matches any router.
    #[serde(default)]
    pub via: Option<IpAddr>,
    /// Outgoing interface; `None` for the interface with the router's network. In a deletion,
    /// `None` matches any interface.
    #[serde(default)]
    pub dev: Option<Word>,
    /// Metric; `None` for the default. In a deletion, `None` matches any metric.
    #[serde(default)]
    pub metric: Option<u32>,
    /// Kind of the route; `None` for unicast. In a deletion, `None` matches any kind. A route that
    /// is not unicast has neither a router nor an interface.
    #[serde(default)]
    pub kind: Option<RouteKind>,
    /// Path MTU in bytes; `None` for that of the link. In a deletion, `None` matches any MTU.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Weight among the next hops of a multipath route, from 1 to 256; `None` for 1. In a deletion,
    /// `None` matches any weight.
    #[serde(default)]
    pub weight: Option<u16>,
    /// How an existing route was created. Ignored in changes.
    #[serde(default)]
    pub origin: Origin,
}

/// Returns an IPv4 default route without a router, as a base for struct update syntax.
impl Default for Route {
    fn default() -> Self {
        let (to, origin) = (Prefix::ALL_V4, Origin::Static);
        let (metric, kind, mtu, weight) = (None, None, None, None);
        Self { to, via: None, dev: None, metric, kind, mtu, weight, origin }
    }
}

impl Route {
    /// Returns whether both routes are next hops of one multipath route. ip-route(8) shows them as
    /// one route.
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
    /// Packets are sent to the router, or directly to the destination if there is no router.
    #[default]
    Unicast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are rejected with the ICMP error "host unreachable".
    Unreachable,
    /// Packets are rejected with the ICMP error "communication administratively prohibited".
    Prohibit,
}

/// Entry of the neighbor table (ARP or NDP) of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbor {
    /// IP address of the neighbor.
    pub address: IpAddr,
    /// Interface through which the neighbor is reached.
    pub dev: Word,
    /// Ethernet address; `None` while it is not known.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// State of the entry, as in RFC 4861.
    pub state: NeighborState,
    /// Whether the neighbor is a router.
    pub router: bool,
}

/// State of a neighbor entry, named as in iproute2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighborState {
    /// Address resolution is in progress, and the Ethernet address is not known.
    Incomplete,
    /// The neighbor was recently confirmed to be reachable.
    Reachable,
    /// Whether the neighbor is still reachable is unknown. No packet was sent to it since it was
    /// last confirmed.
    Stale,
    /// Packets are sent, although reachability is not confirmed. A connection may soon confirm it.
    Delay,
    /// Packets are sent while probes check whether the neighbor is reachable.
    Probe,
    /// Configured by the operator. Does not expire.
    Permanent,
}

/// Change to the network configuration of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// Adds an address to an interface, and a route to the address's network.
    AddAddress {
        /// Name of the interface.
        dev: Word,
        /// The address with its prefix length.
        #[serde(with = "text")]
        address: Prefix,
    },
    /// Deletes an address from an interface.
    DeleteAddress {
        /// Name of the interface.
        dev: Word,
        /// The address.
        address: IpAddr,
        /// Prefix length that the address must have; `None` for any.
        #[serde(default)]
        length: Option<u8>,
    },
    /// Adds or replaces a route.
    SetRoute {
        /// The new route.
        route: Route,
        /// Action if a route to the same prefix with the same metric exists.
        how: How,
    },
    /// Deletes the route with the lowest metric that matches all given fields. If no router is
    /// given, also deletes the other next hops of the same multipath route.
    DeleteRoute {
        /// Pattern of the route: fields that are set must match.
        route: Route,
    },
    /// Adds a permanent entry to the neighbor table.
    SetNeighbor {
        /// Interface on whose link the neighbor is.
        dev: Word,
        /// IP address of the neighbor.
        address: IpAddr,
        /// Ethernet address of the neighbor.
        #[serde(with = "text")]
        mac: MacAddr,
        /// Action if an entry for the address exists.
        how: How,
    },
    /// Deletes an entry of the neighbor table.
    DeleteNeighbor {
        /// Interface on whose link the neighbor is.
        dev: Word,
        /// IP address of the neighbor.
        address: IpAddr,
    },
    /// Opens a device, and adds an interface that uses it. Must be the only change of a request,
    /// because opening a device cannot be undone if another change fails. Only routers support
    /// this.
    AddLink {
        /// Name of the new interface.
        name: Word,
        /// Device and addresses, in the syntax of `towpath router --port` after `NAME=`.
        device: String,
    },
    /// Deletes an interface with its addresses, routes and neighbors, and closes its device. Must
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

/// Action if an entry (a route or neighbor) exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Adds the entry. Fails if it exists.
    Add,
    /// Adds the route as a further next hop of an existing route. Flows are distributed among the
    /// next hops of routes with the same prefix and metric.
    Append,
    /// Replaces an existing entry, or adds a new one.
    Replace,
    /// Replaces an existing entry, or fails if there is none.
    Change,
}
