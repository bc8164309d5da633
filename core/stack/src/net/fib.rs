//! Where packets go: routes by the longest prefix that a destination begins with. A snapshot: what was looked up in one
//! stays as it was found, and who looks up shares nothing that changes with those who change routes.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_lpm::{Bits, Trie};
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::failures::{Failures, GatewayId};
use super::iface::IfaceId;
use super::route::RouteEntry;
use super::told::HopKey;

/// A way that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub entry: RouteEntry,
    /// A better route was passed over, because its router does not answer.
    pub avoids: bool,
}

/// An entry in its network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub entry: RouteEntry,
    pub gateway: Option<GatewayId>,
    /// How many were added before it, for listing.
    pub nth: u64,
}

/// Routes by network, those to a network by metric.
type Networks = Trie<Arc<[Stored]>>;

/// All routes of both families, to look up in.
#[derive(Debug, Clone, Default)]
pub(super) struct Fib {
    v4: Networks,
    v6: Networks,
    /// Routers that do not answer.
    pub failures: Arc<Failures>,
}

impl Fib {
    /// The best route to `dst`, only through `iface` when one is given.
    pub(super) fn lookup(&self, dst: IpAddr, iface: Option<IfaceId>) -> Option<Choice> {
        if iface.is_none() {
            return self.best(dst);
        }
        self.matching(dst).find_map(|routes| self.choose(routes, iface))
    }

    /// The best route to `dst`, through any interface: some route of the smallest network leads on.
    #[inline]
    pub(super) fn best(&self, dst: IpAddr) -> Option<Choice> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        match &**networks.longest(left_aligned(dst))? {
            // Without another one it is the best, whether its router answers or not.
            [Stored { entry, .. }] => Some(Choice { entry: *entry, avoids: false }),
            routes => self.choose(routes, None),
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
    fn choose(&self, routes: &[Stored], iface: Option<IfaceId>) -> Option<Choice> {
        let mut failed: Option<(Instant, RouteEntry)> = None;
        for route in routes.iter().filter(|route| iface.is_none_or(|i| i == route.entry.iface)) {
            let entry = route.entry;
            match route.gateway.and_then(|gateway| self.failures.failed_at(gateway)) {
                None => return Some(Choice { entry, avoids: failed.is_some() }),
                Some(at) if failed.is_none_or(|(first, _)| at < first) => {
                    failed = Some((at, entry))
                }
                Some(_) => {}
            }
        }
        failed.map(|(_, entry)| Choice { entry, avoids: false })
    }

    /// A router that may be asked whether it answers again, because a packet goes to `dst` that would go to it:
    /// by one solicitation, and at most once a minute (RFC 4191 §3.5). Without traffic nobody is asked.
    pub(super) fn to_probe(&self, now: Instant, dst: IpAddr) -> Option<HopKey> {
        if now < self.failures.probe_at() {
            return None;
        }
        for route in self.matching(dst).next()?.iter() {
            // What follows a router that answers is worse than it.
            let gateway = route.gateway.filter(|id| self.failures.failed_at(*id).is_some())?;
            if self.failures.is_due(now, gateway) {
                return route.entry.next_hop.map(|hop| (route.entry.iface, hop));
            }
        }
        None
    }

    /// The routes to each network that `dst` is in, the smallest network first.
    fn matching(&self, dst: IpAddr) -> impl Iterator<Item = &[Stored]> {
        let networks = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        networks.matching(left_aligned(dst)).map(|routes| &**routes)
    }

    /// The routes to one network.
    pub(super) fn to(&self, prefix: Prefix) -> Option<&[Stored]> {
        let networks = if prefix.addr().is_ipv4() { &self.v4 } else { &self.v6 };
        networks.get(bits_of(prefix)).map(|routes| &**routes)
    }

    /// Gives a network other routes.
    pub(super) fn set(&mut self, prefix: Prefix, routes: Vec<Stored>) {
        let networks = if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        match routes.is_empty() {
            true => networks.remove(bits_of(prefix)),
            false => networks.set(bits_of(prefix), routes.into()),
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
