//! Types of routes: those that the owner of the stack can list, and those that sockets cache.

use core::net::IpAddr;
use core::num::NonZeroU16;

use towpath_wire::Prefix;

use super::iface::{IfaceId, Origin};

/// Returns the default metric for a route to `prefix`, as on Linux: 0 for IPv4, 1024 for IPv6
/// (IP6_RT_PRIO_USER of ipv6_route.h).
pub fn metric_unless_given(prefix: Prefix) -> u32 {
    if prefix.addr().is_ipv4() { 0 } else { 1024 }
}

/// Result of a route lookup. A connection may cache it as long as [`Route::generation`] equals
/// [`super::Net::route_generation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Outgoing interface. The interface is loopback if the destination is this host.
    pub iface: IfaceId,
    /// Address of the next hop: a router, or the destination itself.
    pub next_hop: IpAddr,
    /// Source address for packets to the destination.
    pub src: IpAddr,
    /// Path MTU in bytes: the smaller of `link_mtu` and the path MTU that routers have reported for
    /// datagrams.
    pub mtu: u32,
    /// Minimum of the MTUs of the outgoing link and of the route, in bytes.
    pub link_mtu: u32,
    /// Whether the path MTU is below the minimum that this host accepts. If so, packets are sent
    /// without DF, so that routers can fragment them.
    pub needs_fragments: bool,
    /// Generation number of the routes in which this route was looked up.
    pub generation: u64,
    /// Whether the destination is a broadcast address of the link.
    pub broadcast: bool,
    /// Whether there is a better route, whose router does not answer. Packets on this route cause
    /// the router of the better route to be probed from time to time.
    pub avoids: bool,
    /// Reference to the entry of `next_hop` in the next-hop table. Set only for a caller that
    /// caches the route ([`super::Net::route_to_keep`]).
    pub hop: Option<HopId>,
}

/// Reason why a route lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// No route matches the destination.
    NoRoute,
    /// The outgoing interface has no source address for the route, or the given source address is
    /// of the other IP version.
    NoSource,
    /// The destination is invalid: unspecified, class E, or loopback through another interface.
    BadDestination,
    /// The interface that the caller specified does not exist.
    NoInterface,
    /// The source address that the caller specified is in 127.0.0.0/8, but the destination is not
    /// this host.
    LoopbackSource,
    /// The route to the destination is of type blackhole.
    Blackhole,
    /// The route to the destination is of type unreachable.
    Unreachable,
    /// The route to the destination is of type prohibit.
    Prohibited,
}

/// An entry of the routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destination network of the route.
    pub prefix: Prefix,
    /// Router to which packets are sent; `None` if the destinations are on the link.
    pub next_hop: Option<IpAddr>,
    /// Interface by which packets are sent.
    pub iface: IfaceId,
    /// Metric of the route. Among routes to the same network, the one with the smallest metric is
    /// preferred.
    pub metric: u32,
    /// Origin of the route: operator, interface address, router advertisement or the host's kernel.
    pub origin: Origin,
    /// Type of the route, such as unicast or blackhole.
    pub kind: RouteKind,
    /// MTU of the route in bytes; `None` for the MTU of the link.
    pub mtu: Option<u16>,
    /// Weight of the route among the parts of a multipath route, 1 to 256.
    pub weight: u16,
}

/// Type of a route. The names are those of ip-route(8).
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
    /// Returns whether two routes are parts of one multipath route. Both must be to the same
    /// network, have the same metric and origin, and lead to a router.
    pub fn shares_with(&self, other: &Self) -> bool {
        let leads_on = |route: &Self| route.kind == RouteKind::Unicast && route.next_hop.is_some();
        (self.prefix, self.metric, self.origin) == (other.prefix, other.metric, other.origin)
            && leads_on(self)
            && leads_on(other)
    }

    /// Returns whether two entries are the same route, so that one replaces the other. Their MTU
    /// and weight may differ. A different metric makes a different route only for routes of the
    /// operator and the kernel.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.next_hop == other.next_hop
            && self.iface == other.iface
            && self.origin == other.origin
            && self.kind == other.kind
            && (matches!(self.origin, Origin::Link | Origin::Router) || self.metric == other.metric)
    }
}

/// Counter of the changes that invalidate cached next hops. The counter wraps after 2³² changes, so
/// a route that was cached exactly that long ago would wrongly count as current.
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

/// Reference to an entry of the next-hop table. The reference becomes invalid when the entry is
/// reused for another next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopId {
    /// Index of the entry in the next-hop table, plus one.
    pub(crate) place: NonZeroU16,
    /// Epoch in which the entry was looked up.
    pub(crate) epoch: Epoch,
}
