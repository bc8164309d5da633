//! Forwarding table (FIB), in which destinations are looked up by longest-prefix match. A `Fib` is
//! a snapshot: later changes of routes do not affect lookups in it.

use core::cmp::Reverse;
use core::hash::BuildHasher;
use core::net::IpAddr;
use std::sync::Arc;

use towpath_lpm::{Bits, Flat, Trie};
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::failures::{GatewayId, UnreachableRouters};
use super::hash::Keyed;
use super::iface::IfaceId;
use super::messages::HopKey;
use super::route::{RouteEntry, RouteKind};

/// Result of a route lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub way: Way,
    /// Whether a better route was skipped, because its router does not answer.
    pub avoids: bool,
}

/// Interface, next hop and other properties of a route that are needed to send packets. Many
/// networks can share one `Way`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub iface: IfaceId,
    /// Router to which packets are sent; `None` if the destinations are on the link.
    pub next_hop: Option<IpAddr>,
    pub kind: RouteKind,
    pub metric: u32,
    pub gateway: Option<GatewayId>,
    /// MTU of the route in bytes, see [`RouteEntry::mtu`].
    pub mtu: Option<u16>,
    /// Weight of the route in a multipath route, see [`RouteEntry::weight`].
    pub weight: u16,
}

impl Way {
    pub(super) fn of(entry: &RouteEntry, gateway: Option<GatewayId>) -> Self {
        let RouteEntry { next_hop, iface, metric, kind, mtu, weight, .. } = *entry;
        Self { iface, next_hop, kind, metric, gateway, mtu, weight }
    }

    /// Returns the maximum length in bytes of an IP packet for this route, on a link with the MTU
    /// `link_mtu`.
    #[inline]
    pub(super) fn limit(&self, link_mtu: u32) -> u32 {
        self.mtu.map_or(link_mtu, |mtu| link_mtu.min(mtu.into()))
    }

    /// Returns whether this route can be a part of a multipath route, together with routes of the
    /// same metric.
    fn is_shared(&self) -> bool {
        self.kind == RouteKind::Unicast && self.next_hop.is_some()
    }
}

/// Routes to one network, sorted by metric. Networks with equal routes share one list. The lists of
/// a million routes therefore fit in a processor's cache.
pub(super) type Ways = Arc<[Way]>;

type Networks = Trie<Ways>;

/// Forwarding table for IPv4 and IPv6.
#[derive(Debug, Clone)]
pub(super) struct Fib {
    v4: Networks,
    v6: Networks,
    /// Copy of `v4` in which a router looks up routes fast. `None` if the stack does not forward
    /// packets. Connections cache their routes, so such a stack needs few lookups.
    flat: Option<Flat<Ways>>,
    /// Key of the hash that chooses a next hop of a multipath route for a pair of addresses. All
    /// shards use the same key.
    weights: Keyed,
    /// Routers that do not answer. Lookups avoid routes through these routers.
    pub failures: Arc<UnreachableRouters>,
    /// Lower bound in bytes of the MTUs that routes set.
    pub mtu_least: u16,
}

impl Fib {
    /// Creates an empty forwarding table, for a router or for a stack that does not forward
    /// packets.
    pub(super) fn new(weights: Keyed, is_router: bool) -> Self {
        let (v4, v6) = (Networks::default(), Networks::default());
        let flat = is_router.then(Flat::default);
        let failures = Arc::default();
        Self { v4, v6, flat, weights, failures, mtu_least: u16::MAX }
    }

    /// Completes the changes made by [`set`](Self::set). Must be called before a lookup.
    pub(super) fn finish(&mut self) {
        if let Some(flat) = &mut self.flat {
            flat.update(&self.v4);
        }
    }

    /// Returns the best route for packets of this host to `dst`; if `iface` is given, only routes
    /// through this interface are considered. Among equal routes, a hash of the destination chooses
    /// one, so that all lookups of a connection have the same result. Routes through `near`, the
    /// interface that has the source address, are preferred.
    #[inline]
    pub(super) fn lookup(
        &self,
        dst: IpAddr,
        iface: Option<IfaceId>,
        near: impl Fn() -> Option<IfaceId>,
    ) -> Option<Choice> {
        let share = |ways: &[Way]| self.share(ways, (dst, dst), iface, near());
        if iface.is_some() {
            return self.matching(dst).find_map(share);
        }
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        match &**networks.longest(left_aligned(dst))? {
            // There is only one route, so it is the best one even if its router does not answer.
            [way] => Some(Choice { way: *way, avoids: false }),
            ways => share(ways),
        }
    }

    /// Returns whether the best route to `src`, or an equally good one, is unicast and uses the
    /// interface `iface`. If `iface` is `None`, any interface is accepted. Used for reverse path
    /// filtering.
    pub(super) fn leads_back(&self, src: IpAddr, iface: Option<IfaceId>) -> bool {
        let Some(ways) = self.matching(src).next() else { return false };
        let Some(best) = self.choose(ways, None) else { return false };
        ways.iter().any(|way| {
            way.metric == best.way.metric
                && way.kind == RouteKind::Unicast
                && iface.is_none_or(|iface| way.iface == iface)
        })
    }

    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.6
    //# 1) Routers that are reachable or probably reachable (i.e., in any
    //# state other than INCOMPLETE) SHOULD be preferred over routers
    //# whose reachability is unknown or suspect
    //= https://www.rfc-editor.org/rfc/rfc4861#section-6.3.6
    //# 2) When no routers on the list are known to be reachable or
    //# probably reachable, routers SHOULD be selected in a round-robin
    //# fashion
    ///
    /// Chooses a route whose router answers. If no router answers, chooses the router that failed
    /// the longest time ago. Since a router that fails again is chosen last, this tries the routers
    /// in round-robin order.
    fn choose(&self, ways: &[Way], iface: Option<IfaceId>) -> Option<Choice> {
        let mut failed: Option<(Instant, Way)> = None;
        for way in ways.iter().filter(|way| iface.is_none_or(|i| i == way.iface)).copied() {
            match way.gateway.and_then(|gateway| self.failures.failed_at(gateway)) {
                None => return Some(Choice { way, avoids: failed.is_some() }),
                Some(at) if failed.is_none_or(|(first, _)| at < first) => failed = Some((at, way)),
                Some(_) => {}
            }
        }
        failed.map(|(_, way)| Choice { way, avoids: false })
    }

    /// Returns the best route to forward a packet from `src` to `dst`.
    #[inline]
    pub(super) fn best_between(&self, src: IpAddr, dst: IpAddr) -> Option<Choice> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        self.choose_between(networks.longest(left_aligned(dst))?, (src, dst))
    }

    /// Looks up several IPv4 destinations at the same time, and returns the routes to each of them.
    #[inline]
    pub(super) fn find_all<'a>(&'a self, all: &[u32], found: &mut [Option<&'a Ways>]) {
        match &self.flat {
            Some(flat) => flat.find_all(all, found),
            None => {
                let look = |dst: &u32| self.v4.longest(u128::from(*dst) << 96);
                found.iter_mut().zip(all).for_each(|(found, dst)| *found = look(dst));
            }
        }
    }

    /// Chooses the route by which packets between two addresses are forwarded. Flows are
    /// distributed among the routes with the lowest metric whose routers answer.
    #[inline]
    pub(super) fn choose_between(&self, ways: &Ways, ends: (IpAddr, IpAddr)) -> Option<Choice> {
        match &**ways {
            [way] => Some(Choice { way: *way, avoids: false }),
            ways => self.share(ways, ends, None, None),
        }
    }

    /// Chooses a next hop of a multipath route by highest random weight (RFC 2991 section 4). If a
    /// next hop is removed, only its flows move to other next hops. Hash-threshold (RFC 2992) would
    /// move other flows as well. As on Linux, only addresses are hashed, so fragments take the
    /// route of their flow. A next hop of weight `w` gets as many flows as `w` next hops of weight
    /// 1.
    fn share(
        &self,
        ways: &[Way],
        ends: (IpAddr, IpAddr),
        iface: Option<IfaceId>,
        near: Option<IfaceId>,
    ) -> Option<Choice> {
        let first = self.choose(ways, iface)?;
        if !first.way.is_shared() {
            return Some(first);
        }
        let is_by = |way: &Way, iface: Option<IfaceId>| iface.is_none_or(|it| it == way.iface);
        let equal = || {
            let equal = ways.iter().filter(|way| way.metric == first.way.metric && way.is_shared());
            equal.filter(|way| is_by(way, iface)).copied()
        };
        let rank = |way: &Way| {
            let hash = self.weights.hash_one((ends, way.iface.0, way.next_hop));
            (Reverse(cost(hash, way.weight)), hash)
        };
        let best_by = |iface| {
            let answer = equal().filter(|way| !self.has_failed(way) && is_by(way, iface));
            answer.max_by_key(rank)
        };
        let best = near.and_then(|near| best_by(Some(near))).or_else(|| best_by(None));
        // If no router answers, choose the router that failed the longest time ago.
        let Some(way) = best else { return Some(first) };
        let avoids = first.avoids || equal().any(|way| self.has_failed(&way));
        Some(Choice { way, avoids })
    }

    fn has_failed(&self, way: &Way) -> bool {
        way.gateway.is_some_and(|gateway| self.failures.failed_at(gateway).is_some())
    }

    /// Returns the failed router of the best route to `dst`, if it must be probed now. A probe is a
    /// single solicitation, and is sent at most once a minute (RFC 4191 §3.5). Routers are probed
    /// only when a packet would use them.
    pub(super) fn to_probe(&self, now: Instant, dst: IpAddr) -> Option<HopKey> {
        if now < self.failures.probe_at() {
            return None;
        }
        let mut answers = None;
        for route in self.matching(dst).next()? {
            // A route with a larger metric is not better than the route whose router answers, so
            // its router need not be probed.
            if answers.is_some_and(|metric| metric != route.metric) {
                return None;
            }
            match route.gateway.filter(|id| self.failures.failed_at(*id).is_some()) {
                Some(gateway) if self.failures.is_due(now, gateway) => {
                    return route.next_hop.map(|hop| (route.iface, hop));
                }
                Some(_) => {}
                None => answers = Some(route.metric),
            }
        }
        None
    }

    /// Returns the routes to each network that contains `dst`, the longest prefix first.
    fn matching(&self, dst: IpAddr) -> impl Iterator<Item = &[Way]> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        networks.matching(left_aligned(dst)).map(|ways| &**ways)
    }

    /// Returns the routes to exactly the network `prefix`.
    pub(super) fn to(&self, prefix: Prefix) -> Option<&Ways> {
        let networks = if prefix.addr().is_ipv4() { &self.v4 } else { &self.v6 };
        networks.get(bits_of(prefix))
    }

    /// Replaces the routes to a network; `None` removes the network.
    pub(super) fn set(&mut self, prefix: Prefix, ways: Option<Ways>) {
        if let Some(flat) = self.flat.as_mut().filter(|_| prefix.addr().is_ipv4()) {
            flat.note(bits_of(prefix));
        }
        let networks = if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        match ways {
            None => networks.remove(bits_of(prefix)),
            Some(ways) => networks.set(bits_of(prefix), ways),
        }
    }
}

/// Computes a number from `hash` that is exponentially distributed with rate `weight`. The route
/// with the lowest number is chosen. Each route is therefore chosen in proportion to its weight.
/// With equal weights, only `hash` decides.
fn cost(hash: u64, weight: u16) -> u64 {
    let hash = hash | 1;
    let zeros = u64::from(hash.leading_zeros());
    // Compute the mantissa 1 + x of the hash; x is a fixed-point number with 32 fractional bits.
    let x = ((hash << zeros) << 1) >> 32;
    // Approximate log2(1 + x) by x + 0.344 x (1 - x), with an error below 0.008.
    let bend = (x * ((1 << 32) - x)) >> 32;
    let log = x + ((bend * 352) >> 10);
    ((((zeros + 1) << 32) - log) << 16) / u64::from(weight.max(1))
}

fn bits_of(prefix: Prefix) -> Bits {
    (left_aligned(prefix.network()), prefix.len())
}

fn left_aligned(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
