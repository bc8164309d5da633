//! Routes, as the owner lists them and as sockets keep them.

use core::net::IpAddr;
use core::num::NonZeroU16;

use towpath_wire::Prefix;

use super::iface::{IfaceId, Origin};

/// Metric of a route to `prefix` for which none is given: that of Linux, IP6_RT_PRIO_USER
/// (ipv6_route.h) for IPv6.
pub fn metric_unless_given(prefix: Prefix) -> u32 {
    if prefix.addr().is_ipv4() { 0 } else { 1024 }
}

/// The way to a destination, to be kept by a connection while [`Route::generation`] is that of
/// [`super::Net::route_generation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Out of which interface; loopback for destinations that are this host.
    pub iface: IfaceId,
    /// The neighbour: a router, or the destination itself.
    pub next_hop: IpAddr,
    /// The address to send from.
    pub src: IpAddr,
    /// Longest IP packet in bytes that gets through, as far as datagrams know.
    pub mtu: u32,
    /// Longest IP packet in bytes that the link takes, and the route.
    pub link_mtu: u32,
    /// A link of the path takes less than packets are cut to: routers have to do it, and DF stays
    /// clear.
    pub needs_fragments: bool,
    /// State of the tables that this was found in.
    pub generation: u64,
    /// The destination is a broadcast address of the link.
    pub broadcast: bool,
    /// There is a better router, which does not answer: sending this way asks it now and then.
    pub avoids: bool,
    /// The place of `next_hop`, for a caller that keeps the route ([`super::Net::route_to_keep`]).
    pub hop: Option<HopId>,
}

/// Why there is no way to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// No route matches.
    NoRoute,
    /// The interface has no address to send from, or the given one is of the other family.
    NoSource,
    /// Nothing can be sent there: unspecified, loopback through another interface, class E.
    BadDestination,
    /// There is no such interface.
    NoInterface,
    /// The given source is of 127.0.0.0/8, and the destination is not this host.
    LoopbackSource,
    /// The route is a blackhole.
    Blackhole,
    /// The route says that the destination is unreachable.
    Unreachable,
    /// The route prohibits it.
    Prohibited,
}

/// An entry of the routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destinations it is for.
    pub prefix: Prefix,
    /// The router; `None` when the destinations are on the link.
    pub next_hop: Option<IpAddr>,
    /// Out of which interface.
    pub iface: IfaceId,
    /// Preference: the route with the smallest metric is used among those of equal prefix.
    pub metric: u32,
    /// Origin of the route.
    pub origin: Origin,
    /// Fate of packets that take it.
    pub kind: RouteKind,
    /// Longest IP packet in bytes that takes it, where that is less than the link's.
    pub mtu: Option<u16>,
    /// Share of flows among routes to the same network, 1 to 256.
    pub weight: u16,
}

/// Fate of packets to the destinations of a route. The kinds are those of ip-route(8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    /// Packets are sent to the next hop.
    #[default]
    Unicast,
    /// Packets are dropped in silence.
    Blackhole,
    /// Packets are dropped; their sender gets the ICMP error that the host is unreachable.
    Unreachable,
    /// Packets are dropped; their sender gets the ICMP error that communication is prohibited.
    Prohibit,
}

impl RouteEntry {
    /// Whether packets to the same network are shared out between both: through routers, and of one
    /// metric.
    pub fn shares_with(&self, other: &Self) -> bool {
        let leads_on = |route: &Self| route.kind == RouteKind::Unicast && route.next_hop.is_some();
        (self.prefix, self.metric, self.origin) == (other.prefix, other.metric, other.origin)
            && leads_on(self)
            && leads_on(other)
    }

    /// Whether both are one route, which may have another MTU or weight. Routes of routers and
    /// links may have another metric as well. With it a route of the operator is one more.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.next_hop == other.next_hop
            && self.iface == other.iface
            && self.origin == other.origin
            && self.kind == other.kind
            && (self.origin != Origin::Static || self.metric == other.metric)
    }
}

/// Version of a table of next hops, which counts changes that can invalidate a kept route. A route
/// would have to lie unused through 2³² of these to be mistaken for a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epoch(u32);

impl Epoch {
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How long ago it was.
    pub(super) fn age(self, now: Self) -> u32 {
        now.0.wrapping_sub(self.0)
    }
}

/// Names a next hop. When its place is given to another one, the id is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopId {
    /// Place in the table of next hops, plus one.
    pub(crate) place: NonZeroU16,
    /// When it was looked up.
    pub(crate) epoch: Epoch,
}
