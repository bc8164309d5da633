//! Default router list and prefix list of a link (RFC 4861 §5.1), with the routes of RFC 4191.
//!
//! Any host on the link can send any number of router advertisements. The numbers of routers, of
//! routes per router, and of prefixes are therefore limited. A new router or prefix evicts the
//! least recently advertised one. Routers repeat their advertisements, so a router that was evicted
//! is added again. A flood of advertisements can therefore not exclude a router permanently.

use core::net::Ipv6Addr;
use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::Prefix;

use crate::net::limits::{ROUTER_PREFIXES_MAX, ROUTER_ROUTES_MAX, ROUTERS_MAX};

/// Routes and prefixes that routers advertise on one link.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    routers: Vec<Router>,
    prefixes: Vec<Lasting>,
}

/// A router that advertises at least one route, and its routes.
#[derive(Debug)]
struct Router {
    addr: Ipv6Addr,
    heard: Instant,
    routes: Vec<Lasting>,
}

/// An advertised prefix, with the time at which its lifetime ends.
#[derive(Debug, Clone, Copy)]
struct Lasting {
    prefix: Prefix,
    heard: Instant,
    /// Time at which the lifetime ends; `None` if it never ends.
    expires: Option<Instant>,
}

/// An advertised destination: a prefix, and the router that leads to it. The router is `None` for a
/// prefix on the link.
pub(super) type Destination = (Prefix, Option<Ipv6Addr>);

/// Result of storing an advertised router, route or prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Learning {
    /// The route or prefix is stored, and nothing was evicted. Possibly it was already stored
    /// before.
    Known,
    /// The entry is stored, and the given destinations were evicted to make room.
    Displaced(Vec<Destination>),
    /// The entry is not stored, because the router has the maximum number of routes.
    Refused,
}

impl Learnt {
    /// Stores an advertised route or prefix, received at the time `now`. If a router must be
    /// evicted, those for which `failed` returns true are evicted first.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        (prefix, router): Destination,
        expires: Option<Instant>,
        failed: impl Fn(Ipv6Addr) -> bool,
    ) -> Learning {
        let new = Lasting { prefix, heard: now, expires };
        let Some(addr) = router else { return learn_prefix(&mut self.prefixes, new) };
        if let Some(router) = self.routers.iter_mut().find(|router| router.addr == addr) {
            router.heard = now;
            return learn_route(&mut router.routes, new);
        }
        let mut gone = Vec::new();
        if self.routers.len() >= ROUTERS_MAX {
            let worth = |router: &Router| (!failed(router.addr), router.heard);
            let least = (0..self.routers.len()).min_by_key(|at| worth(&self.routers[*at]));
            let router = self.routers.remove(least.expect("there are as many as may be"));
            gone.extend(router.routes.iter().map(|route| (route.prefix, Some(router.addr))));
        }
        self.routers.push(Router { addr, heard: now, routes: vec![new] });
        if gone.is_empty() { Learning::Known } else { Learning::Displaced(gone) }
    }

    /// Removes one advertised destination.
    pub(super) fn forget(&mut self, (prefix, router): Destination) {
        self.retain(|of, lasting| (lasting.prefix, of) != (prefix, router));
    }

    /// Removes and returns all routes through `router`.
    pub(super) fn forget_router(&mut self, router: Ipv6Addr) -> Vec<Destination> {
        self.take(|of, _| of == Some(router))
    }

    /// Removes and returns the destinations whose lifetime has ended.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Destination> {
        self.take(|_, lasting| lasting.expires.is_some_and(|end| end <= now))
    }

    /// Returns the earliest time at which a lifetime ends; `None` if none ever ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let routes = self.routers.iter().flat_map(|router| &router.routes);
        routes.chain(&self.prefixes).filter_map(|lasting| lasting.expires).min()
    }

    fn take(&mut self, taken: impl Fn(Option<Ipv6Addr>, &Lasting) -> bool) -> Vec<Destination> {
        let mut gone = Vec::new();
        self.retain(|router, lasting| {
            let taken = taken(router, lasting);
            gone.extend(taken.then_some((lasting.prefix, router)));
            !taken
        });
        gone
    }

    fn retain(&mut self, mut keep: impl FnMut(Option<Ipv6Addr>, &Lasting) -> bool) {
        self.prefixes.retain(|prefix| keep(None, prefix));
        for router in &mut self.routers {
            router.routes.retain(|route| keep(Some(router.addr), route));
        }
        self.routers.retain(|router| !router.routes.is_empty());
    }
}

fn learn_prefix(prefixes: &mut Vec<Lasting>, new: Lasting) -> Learning {
    if let Some(known) = prefixes.iter_mut().find(|known| known.prefix == new.prefix) {
        *known = new;
        return Learning::Known;
    }
    let mut gone = Vec::new();
    if prefixes.len() >= ROUTER_PREFIXES_MAX {
        let oldest = (0..prefixes.len()).min_by_key(|at| prefixes[*at].heard);
        let oldest = prefixes.remove(oldest.expect("there are as many as may be"));
        gone.push((oldest.prefix, None));
    }
    prefixes.push(new);
    if gone.is_empty() { Learning::Known } else { Learning::Displaced(gone) }
}

fn learn_route(routes: &mut Vec<Lasting>, new: Lasting) -> Learning {
    if let Some(known) = routes.iter_mut().find(|known| known.prefix == new.prefix) {
        *known = new;
        return Learning::Known;
    }
    if routes.len() >= ROUTER_ROUTES_MAX {
        return Learning::Refused;
    }
    routes.push(new);
    Learning::Known
}

/// Returns the time at which a lifetime of the given seconds ends; `None` for `u32::MAX`, which is
/// infinite.
pub(super) fn lifetime_end(now: Instant, seconds: u32) -> Option<Instant> {
    (seconds != u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}
