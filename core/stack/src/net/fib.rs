//! Where packets go: routes by the longest prefix that a destination begins with. A snapshot: what was looked up in one
//! stays as it was found, and who looks up shares nothing that changes with those who change routes.

use core::hash::BuildHasher;
use core::net::IpAddr;
use std::sync::Arc;

use towpath_lpm::{Bits, Flat, Trie};
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::failures::{Failures, GatewayId};
use super::hash::Keyed;
use super::iface::IfaceId;
use super::route::{RouteEntry, RouteKind};
use super::told::HopKey;

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
}

impl Way {
    pub(super) fn of(entry: &RouteEntry, gateway: Option<GatewayId>) -> Self {
        let RouteEntry { next_hop, iface, metric, kind, .. } = *entry;
        Self { iface, next_hop, kind, metric, gateway }
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
    pub failures: Arc<Failures>,
}

impl Fib {
    /// No routes, of a host or of a router.
    pub(super) fn new(weights: Keyed, is_router: bool) -> Self {
        let (v4, v6) = (Networks::default(), Networks::default());
        let flat = is_router.then(Flat::default);
        Self { v4, v6, flat, weights, failures: Arc::default() }
    }

    /// Ends a list of calls of [`set`](Self::set), before anything is looked up.
    pub(super) fn finish(&mut self) {
        if let Some(flat) = &mut self.flat {
            flat.update(&self.v4);
        }
    }

    /// The best route to `dst`, only through `iface` when one is given.
    pub(super) fn lookup(&self, dst: IpAddr, iface: Option<IfaceId>) -> Option<Choice> {
        if iface.is_none() {
            return self.best(dst);
        }
        self.matching(dst).find_map(|ways| self.choose(ways, iface))
    }

    /// The best route to `dst`, through any interface: some route of the smallest network leads on.
    #[inline]
    pub(super) fn best(&self, dst: IpAddr) -> Option<Choice> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        match &**networks.longest(left_aligned(dst))? {
            // Without another one it is the best, whether its router answers or not.
            [way] => Some(Choice { way: *way, avoids: false }),
            ways => self.choose(ways, None),
        }
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
    /// Round-robin: that which failed longest ago. When it fails again it is the last.
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
            ways => self.share(ways, ends.0, ends.1),
        }
    }

    /// By the highest random weight (RFC 2991 section 4): a way that goes moves its own flows.
    /// The hash-threshold of RFC 2992 would move others as well. Addresses alone are hashed, as
    /// Linux does by default: fragments go the way of their flow.
    fn share(&self, ways: &[Way], src: IpAddr, dst: IpAddr) -> Option<Choice> {
        let first = self.choose(ways, None)?;
        if !first.way.is_shared() {
            return Some(first);
        }
        let equal =
            || ways.iter().filter(|way| way.metric == first.way.metric && way.is_shared()).copied();
        let weight = |way: &Way| self.weights.hash_one((src, dst, way.iface.0, way.next_hop));
        let best = equal().filter(|way| !self.has_failed(way)).max_by_key(weight);
        // Without one that answers it is that which failed longest ago.
        let Some(way) = best else { return Some(first) };
        let avoids = first.avoids || equal().any(|way| self.has_failed(&way));
        Some(Choice { way, avoids })
    }

    fn has_failed(&self, way: &Way) -> bool {
        way.gateway.is_some_and(|gateway| self.failures.failed_at(gateway).is_some())
    }

    /// A router that may be asked whether it answers again, because a packet goes to `dst` that would go to it:
    /// by one solicitation, and at most once a minute (RFC 4191 §3.5). Without traffic nobody is asked.
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

fn bits_of(prefix: Prefix) -> Bits {
    (left_aligned(prefix.network()), prefix.len())
}

fn left_aligned(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
