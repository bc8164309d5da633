//! Advertisements of a link's routers: the default router list and the prefix list of RFC 4861
//! §5.1, with the routes of RFC 4191.
//!
//! Any host on the link can advertise, without end. Routers, the routes of each and prefixes
//! therefore have limits of their own. A new router or prefix displaces the one that was heard of
//! longest ago. Routers repeat advertisements, so a displaced router that works comes back, and a
//! flood cannot lock out later ones.

use core::net::Ipv6Addr;
use core::time::Duration;

use towpath_tcp::Instant;
use towpath_wire::Prefix;

use crate::net::limits::{ROUTER_PREFIXES_MAX, ROUTER_ROUTES_MAX, ROUTERS_MAX};

/// Routes and prefixes of one link that routers advertised.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    routers: Vec<Router>,
    prefixes: Vec<Lasting>,
}

/// A router, as long as it is one for some destination.
#[derive(Debug)]
struct Router {
    addr: Ipv6Addr,
    heard: Instant,
    routes: Vec<Lasting>,
}

/// A prefix with the end of its lifetime.
#[derive(Debug, Clone, Copy)]
struct Lasting {
    prefix: Prefix,
    heard: Instant,
    /// `None` for ever.
    expires: Option<Instant>,
}

/// A destination: a prefix on the link, or behind a router.
pub(super) type Destination = (Prefix, Option<Ipv6Addr>);

/// Outcome of learning an advertised router, route or prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Learning {
    /// The entry is in the list, new or not.
    Known,
    /// The entry is in the list, and these destinations were displaced for it.
    Displaced(Vec<Destination>),
    /// The router has as many routes as it may.
    Refused,
}

impl Learnt {
    /// Keeps an advertisement of the time `now`. `failed` says which routers do not answer: they
    /// make room first.
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

    /// Forgets one destination.
    pub(super) fn forget(&mut self, (prefix, router): Destination) {
        self.retain(|of, lasting| (lasting.prefix, of) != (prefix, router));
    }

    /// Forgets all that `router` advertised of itself, and returns it.
    pub(super) fn forget_router(&mut self, router: Ipv6Addr) -> Vec<Destination> {
        self.take(|of, _| of == Some(router))
    }

    /// Forgets expired entries, and returns them.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Destination> {
        self.take(|_, lasting| lasting.expires.is_some_and(|end| end <= now))
    }

    /// The first end of a lifetime.
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

/// When a lifetime in seconds ends; all ones mean never.
pub(super) fn lifetime_end(now: Instant, seconds: u32) -> Option<Instant> {
    (seconds != u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}
