//! The net of a run, and changes of it, as they are written in JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_wire::{MacAddr, Prefix};

use crate::sockets::Word;
use crate::text;

/// Interfaces, routes and neighbours of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// All interfaces, the loopback interface first.
    pub interfaces: Vec<Interface>,
    /// All routes, in order of adding.
    pub routes: Vec<Route>,
    /// All neighbours, by interface and address.
    pub neighbors: Vec<Neighbor>,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Number of the interface, from 1.
    pub index: u32,
    /// Its name.
    pub name: Word,
    /// Its kind.
    pub kind: Kind,
    /// Its Ethernet address; none unless it is an Ethernet interface.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether its device has a link; none where no device of the kernel is below.
    #[serde(default)]
    pub carrier: Option<bool>,
    /// Its addresses, in order of adding.
    pub addresses: Vec<Address>,
    /// Its traffic since the run began.
    pub traffic: Traffic,
}

/// Kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `lo`, within the stack.
    Loopback,
    /// Frames with Ethernet addresses.
    Ethernet,
    /// IP packets without a link header.
    Ip,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address with the length of its network.
    #[serde(with = "text")]
    pub address: Prefix,
    /// How far it may be used.
    pub state: AddressState,
    /// Its maker.
    pub origin: Origin,
    /// Seconds for which it exists; none: for ever.
    pub valid_s: Option<u64>,
    /// Seconds for which new connections should use it; none: for ever.
    pub preferred_s: Option<u64>,
}

/// How far an address may be used (RFC 4862, RFC 4429).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressState {
    /// Duplicate address detection has not finished: not at all.
    Tentative,
    /// Duplicate address detection has not finished: it is used all the same.
    Optimistic,
    /// In use.
    Preferred,
    /// For connections that have it.
    Deprecated,
    /// Not at all: duplicate address detection found another host that has it.
    DadFailed,
}

/// Maker of an address or a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The operator, when the run began or since.
    #[default]
    Static,
    /// The stack itself: the link of an address, or `fe80::`.
    Link,
    /// The advertisement of a router.
    Router,
}

/// Packets and bytes of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets received, each as one if it was merged of several.
    pub rx_packets: u64,
    /// Bytes received, with link headers.
    pub rx_bytes: u64,
    /// Packets dropped after they came in.
    pub rx_dropped: u64,
    /// Packets sent, as they are on the wire.
    pub tx_packets: u64,
    /// Bytes sent, with link headers.
    pub tx_bytes: u64,
    /// Packets dropped on their way out.
    pub tx_dropped: u64,
}

/// A route: as it is, as it shall be, or as much of it as names the one to delete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destinations, without host bits; 0.0.0.0/0 and ::/0 are the default routes.
    #[serde(with = "text")]
    pub to: Prefix,
    /// The router; none: the destinations are on the link, or, to delete, any router.
    #[serde(default)]
    pub via: Option<IpAddr>,
    /// The interface; none: that of the router's link, or, to delete, any.
    #[serde(default)]
    pub dev: Option<Word>,
    /// The metric; none: the default, or, to delete, any.
    #[serde(default)]
    pub metric: Option<u32>,
    /// Fate of packets that take it; none: unicast, or, to delete, any. Routes that are not unicast
    /// have neither a router nor an interface.
    #[serde(default)]
    pub kind: Option<RouteKind>,
    /// Longest IP packet in bytes that takes it; none: that of the link, or, to delete, any.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Share of flows among routes to the same network, 1 to 256; none: 1, or, to delete, any.
    #[serde(default)]
    pub weight: Option<u16>,
    /// The maker of a route that is there. Changes do not look at it.
    #[serde(default)]
    pub origin: Origin,
}

/// The IPv4 default route without a router, of which each field can be set.
impl Default for Route {
    fn default() -> Self {
        let (to, origin) = (Prefix::ALL_V4, Origin::Static);
        let (metric, kind, mtu, weight) = (None, None, None, None);
        Self { to, via: None, dev: None, metric, kind, mtu, weight, origin }
    }
}

impl Route {
    /// Whether packets to the same network are shared out between both, so that ip-route(8) shows
    /// them as one route with several next hops.
    pub fn shares_with(&self, other: &Self) -> bool {
        let is_routed = |route: &Self| {
            route.via.is_some() && route.kind.is_none_or(|kind| kind == RouteKind::Unicast)
        };
        (self.to, self.metric, self.origin) == (other.to, other.metric, other.origin)
            && is_routed(self)
            && is_routed(other)
    }
}

/// Fate of packets that take a route, as ip-route(8) names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Sent to the router, or on the link.
    #[default]
    Unicast,
    /// Dropped in silence.
    Blackhole,
    /// Refused: the host is unreachable.
    Unreachable,
    /// Refused: communication is prohibited.
    Prohibit,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbor {
    /// Its IP address.
    pub address: IpAddr,
    /// The interface of its link.
    pub dev: Word,
    /// Its Ethernet address, once known.
    #[serde(with = "text::option")]
    pub mac: Option<MacAddr>,
    /// How sure that is.
    pub state: NeighborState,
    /// Whether it forwards packets.
    pub router: bool,
}

/// State of a neighbour, as iproute2 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighborState {
    /// Being asked for.
    Incomplete,
    /// Confirmed not long ago.
    Reachable,
    /// Known and not confirmed.
    Stale,
    /// In use; a connection may still confirm it.
    Delay,
    /// In use and being asked.
    Probe,
    /// Given by the operator.
    Permanent,
}

/// A change of the net of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// Gives an interface an address, and the route to its link.
    AddAddress {
        /// The interface.
        dev: Word,
        /// The address with the length of its network.
        #[serde(with = "text")]
        address: Prefix,
    },
    /// Takes an address away.
    DeleteAddress {
        /// The interface.
        dev: Word,
        /// The address.
        address: IpAddr,
        /// Length of its network, where that has to be right, too.
        #[serde(default)]
        length: Option<u8>,
    },
    /// Adds or replaces a route.
    SetRoute {
        /// The route.
        route: Route,
        /// Meaning of a route to the same network with the same metric that is there.
        how: How,
    },
    /// Deletes the best route that has everything that is given. Without a router given, those
    /// that share its flows go as well.
    DeleteRoute {
        /// As much as is known of it.
        route: Route,
    },
    /// Says where a neighbour is, for ever.
    SetNeighbor {
        /// The interface of its link.
        dev: Word,
        /// Its IP address.
        address: IpAddr,
        /// Its Ethernet address.
        #[serde(with = "text")]
        mac: MacAddr,
        /// Meaning of an entry that is there.
        how: How,
    },
    /// Deletes the entry of a neighbour.
    DeleteNeighbor {
        /// The interface of its link.
        dev: Word,
        /// Its IP address.
        address: IpAddr,
    },
    /// Sets an interface up or down.
    SetLink {
        /// The interface.
        dev: Word,
        /// Up, or down.
        up: bool,
    },
    /// Sets the longest IP packet that an interface sends.
    SetMtu {
        /// The interface.
        dev: Word,
        /// Bytes, 1280 to what its device takes.
        mtu: u32,
    },
}

/// Meaning of an entry that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// A fault.
    Add,
    /// The route is one more beside those: routes of one metric through routers share the flows.
    Append,
    /// The entry is replaced.
    Replace,
    /// The entry is replaced, and a fault if it is missing.
    Change,
}
