//! Routes, as listed for the owner and as cached by sockets.

use core::net::IpAddr;
use core::num::NonZeroU16;

use towpath_wire::Prefix;

use super::iface::{IfaceId, Origin};

/// Returns the default metric for a route to `prefix`, as on Linux: 0 for IPv4, 1024 for IPv6
/// (IP6_RT_PRIO_USER of ipv6_route.h).
pub fn metric_unless_given(prefix: Prefix) -> u32 {
    if prefix.addr().is_ipv4() { 0 } else { 1024 }
}

/// Result of a route lookup. A connection may cache it while [`Route::generation`] equals
/// [`super::Net::route_generation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Outgoing interface; loopback if the destination is this host.
    pub iface: IfaceId,
    /// Address of the next hop: a router, or the destination itself.
    pub next_hop: IpAddr,
    /// Source address for packets to the destination.
    pub src: IpAddr,
    /// Path MTU in bytes: minimum of `link_mtu` and the path MTU that datagrams have learnt.
    pub mtu: u32,
    /// MTU in bytes of the outgoing link or of the route, whichever is smaller.
    pub link_mtu: u32,
    /// The path MTU is below the minimum that this host accepts. Packets are sent without DF, so
    /// that routers can fragment them.
    pub needs_fragments: bool,
    /// Generation of the routes in which this route was found.
    pub generation: u64,
    /// The destination is a broadcast address of the link.
    pub broadcast: bool,
    /// A better route exists, but its router does not answer. Packets on this route probe that
    /// router at intervals.
    pub avoids: bool,
    /// Next-hop entry of `next_hop`, only for a caller that caches the route
    /// ([`super::Net::route_to_keep`]).
    pub hop: Option<HopId>,
}

/// Reason why a route lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// No route matches the destination.
    NoRoute,
    /// The outgoing interface has no source address, or the given source is of the other address
    /// family.
    NoSource,
    /// The destination is invalid: unspecified, class E, or loopback through another interface.
    BadDestination,
    /// The given interface does not exist.
    NoInterface,
    /// The given source is in 127.0.0.0/8, but the destination is not this host.
    LoopbackSource,
    /// The matching route is of type blackhole.
    Blackhole,
    /// The matching route is of type unreachable.
    Unreachable,
    /// The matching route is of type prohibit.
    Prohibited,
}

/// Entry of the routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Network of the destinations.
    pub prefix: Prefix,
    /// Router; `None` if the destinations are on the link.
    pub next_hop: Option<IpAddr>,
    /// Outgoing interface.
    pub iface: IfaceId,
    /// Metric: among routes to the same network, the one with the smallest metric is preferred.
    pub metric: u32,
    /// Origin of the route: operator, interface address or router advertisement.
    pub origin: Origin,
    /// Type of the route.
    pub kind: RouteKind,
    /// MTU of the route in bytes; `None`: the MTU of the link.
    pub mtu: Option<u16>,
    /// Weight among multipath routes to the same network, 1 to 256.
    pub weight: u16,
}

/// Type of a route, with the names of ip-route(8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    /// Packets are sent to the next hop.
    #[default]
    Unicast,
    /// Packets are dropped without an ICMP error.
    Blackhole,
    /// Packets are dropped, and their sender gets the ICMP error "host unreachable".
    Unreachable,
    /// Packets are dropped, and their sender gets the ICMP error "communication administratively
    /// prohibited".
    Prohibit,
}

impl RouteEntry {
    /// Returns whether both routes share flows as one multipath route: to the same network, with
    /// one metric, and through routers.
    pub fn shares_with(&self, other: &Self) -> bool {
        let leads_on = |route: &Self| route.kind == RouteKind::Unicast && route.next_hop.is_some();
        (self.prefix, self.metric, self.origin) == (other.prefix, other.metric, other.origin)
            && leads_on(self)
            && leads_on(other)
    }

    /// Returns whether both entries are the same route, so that one replaces the other. MTU and
    /// weight may differ. Only routes of the operator with different metrics are different routes.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.next_hop == other.next_hop
            && self.iface == other.iface
            && self.origin == other.origin
            && self.kind == other.kind
            && (self.origin != Origin::Static || self.metric == other.metric)
    }
}

/// Counter of changes that invalidate cached next hops. A stale route would be taken for a current
/// one only if unused for 2³² changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epoch(u32);

impl Epoch {
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the number of changes from this epoch to `now`.
    pub(super) fn age(self, now: Self) -> u32 {
        now.0.wrapping_sub(self.0)
    }
}

/// Reference to an entry of the next-hop table. Invalid once the entry is reused for another next
/// hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopId {
    /// Index in the next-hop table, plus one.
    pub(crate) place: NonZeroU16,
    /// Epoch of the lookup.
    pub(crate) epoch: Epoch,
}
