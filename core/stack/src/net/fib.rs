//! The forwarding table (FIB): routes by the longest prefix of a destination. A `Fib` is a
//! snapshot: lookups in it never change, and share no mutable state with changes of the routes.

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

/// A way that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub way: Way,
    /// A better route was passed over, because its router does not answer.
    pub avoids: bool,
}

/// The part of a route that packets go by, the same for many networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub iface: IfaceId,
    /// The router; `None` when destinations are on the link.
    pub next_hop: Option<IpAddr>,
    pub kind: RouteKind,
    pub metric: u32,
    pub gateway: Option<GatewayId>,
    /// As of [`RouteEntry::mtu`].
    pub mtu: Option<u16>,
    /// As of [`RouteEntry::weight`].
    pub weight: u16,
}

impl Way {
    pub(super) fn of(entry: &RouteEntry, gateway: Option<GatewayId>) -> Self {
        let RouteEntry { next_hop, iface, metric, kind, mtu, weight, .. } = *entry;
        Self { iface, next_hop, kind, metric, gateway, mtu, weight }
    }

    /// Longest IP packet in bytes that goes this way over a link which takes `link_mtu`.
    #[inline]
    pub(super) fn limit(&self, link_mtu: u32) -> u32 {
        self.mtu.map_or(link_mtu, |mtu| link_mtu.min(mtu.into()))
    }

    /// Leads through a router that others with the same metric may share packets with.
    fn is_shared(&self) -> bool {
        self.kind == RouteKind::Unicast && self.next_hop.is_some()
    }
}

/// Ways to a network, those with the smallest metric in front. Networks with equal ways share them,
/// so that the ways of a million routes stay in a processor's cache.
pub(super) type Ways = Arc<[Way]>;

type Networks = Trie<Ways>;

/// All routes of both families, to look up in.
#[derive(Debug, Clone)]
pub(super) struct Fib {
    v4: Networks,
    v6: Networks,
    /// Copy of `v4` in which a router looks up: hosts keep their routes, and need none.
    flat: Option<Flat<Ways>>,
    /// Weighs ways for pairs of addresses, the same in all shards.
    weights: Keyed,
    /// Routers that do not answer.
    pub failures: Arc<UnreachableRouters>,
    /// No route has a smaller MTU, in bytes.
    pub mtu_least: u16,
}

impl Fib {
    /// No routes, of a host or of a router.
    pub(super) fn new(weights: Keyed, is_router: bool) -> Self {
        let (v4, v6) = (Networks::default(), Networks::default());
        let flat = is_router.then(Flat::default);
        let failures = Arc::default();
        Self { v4, v6, flat, weights, failures, mtu_least: u16::MAX }
    }

    /// Ends a list of calls of [`set`](Self::set), before anything is looked up.
    pub(super) fn finish(&mut self) {
        if let Some(flat) = &mut self.flat {
            flat.update(&self.v4);
        }
    }

    /// The best route for packets of this host to `dst`, only through `iface` when one is given. A
    /// destination has one of several equal routes, so that all look-ups for a connection find the
    /// same. Routes through the interface `near` come first: the packets' source is an address of
    /// it.
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
            // Without another one it is the best, whether its router answers or not.
            [way] => Some(Choice { way: *way, avoids: false }),
            ways => share(ways),
        }
    }

    /// Whether the best route to `src`, or one that is equal, leads out of `iface`; without one,
    /// whether it leads on at all.
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
    /// Chooses by round-robin: without an answering router, the one that failed longest ago. When
    /// it fails again it is the last.
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

    /// The best route for transit from `src` to `dst`.
    #[inline]
    pub(super) fn best_between(&self, src: IpAddr, dst: IpAddr) -> Option<Choice> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        self.choose_between(networks.longest(left_aligned(dst))?, (src, dst))
    }

    /// The ways to each of several destinations, which are looked up together.
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

    /// The way for transit between two addresses. Routes of one metric through several routers
    /// that answer share the pairs of addresses.
    #[inline]
    pub(super) fn choose_between(&self, ways: &Ways, ends: (IpAddr, IpAddr)) -> Option<Choice> {
        match &**ways {
            [way] => Some(Choice { way: *way, avoids: false }),
            ways => self.share(ways, ends, None, None),
        }
    }

    /// By the highest random weight (RFC 2991 section 4): a way that goes moves its own flows.
    /// The hash-threshold of RFC 2992 would move others as well. Addresses alone are hashed, as
    /// Linux does by default: fragments go the way of their flow. A way of weight `w` has as many
    /// flows as `w` ways would have.
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
        // Without an answering router, the one that failed longest ago.
        let Some(way) = best else { return Some(first) };
        let avoids = first.avoids || equal().any(|way| self.has_failed(&way));
        Some(Choice { way, avoids })
    }

    fn has_failed(&self, way: &Way) -> bool {
        way.gateway.is_some_and(|gateway| self.failures.failed_at(gateway).is_some())
    }

    /// The silent router that a packet to `dst` would go to, if a probe is due. A probe is one
    /// solicitation, at most once a minute (RFC 4191 §3.5). Without traffic no router is probed.
    pub(super) fn to_probe(&self, now: Instant, dst: IpAddr) -> Option<HopKey> {
        if now < self.failures.probe_at() {
            return None;
        }
        let mut answers = None;
        for route in self.matching(dst).next()? {
            // Behind a way that works, another metric is a worse one.
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

    /// The routes to each network that `dst` is in, the smallest network first.
    fn matching(&self, dst: IpAddr) -> impl Iterator<Item = &[Way]> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        networks.matching(left_aligned(dst)).map(|ways| &**ways)
    }

    /// The ways to one network.
    pub(super) fn to(&self, prefix: Prefix) -> Option<&Ways> {
        let networks = if prefix.addr().is_ipv4() { &self.v4 } else { &self.v6 };
        networks.get(bits_of(prefix))
    }

    /// Gives a network other ways, or none.
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

/// Length of an exponential interval of rate `weight`, drawn by a hash: the least of several ones
/// falls on each in proportion to its weight. Equal weights leave the order to the hash.
fn cost(hash: u64, weight: u16) -> u64 {
    let hash = hash | 1;
    let zeros = u64::from(hash.leading_zeros());
    // 1 + x, in 32 bits behind the point.
    let x = ((hash << zeros) << 1) >> 32;
    // log2(1 + x) to within 0.008: x + 0.344 x (1 - x).
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
