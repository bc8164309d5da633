//! Routes as they are made: by the operator, from the addresses of interfaces, and as routers say. Of these [`Fib`] is
//! made, in which destinations are looked up.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::fib::{Fib, Stored};
use super::gateways::Gateways;
use super::hash::Keyed;
use super::iface::{IfaceId, Origin};
use super::next_hop::{HopId, HopKey};

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
    /// Longest IP packet in bytes that the link takes.
    pub link_mtu: u32,
    /// A link of the path takes less than packets are cut to: routers have to do it, and DF stays clear.
    pub needs_fragments: bool,
    /// State of the tables that this was found in.
    pub generation: u64,
    /// The destination is a broadcast address of the link.
    pub broadcast: bool,
    /// There is a better router, which does not answer: sending this way asks it now and then.
    pub avoids: bool,
    /// The place of `next_hop`, for who keeps the route ([`super::Net::route_to_keep`]).
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
    /// Of equal prefixes, the one with the smallest metric is used.
    pub metric: u32,
    /// Who made it.
    pub origin: Origin,
}

impl RouteEntry {
    fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.next_hop == other.next_hop
            && self.iface == other.iface
            && self.origin == other.origin
    }
}

/// All routes of both families.
///
/// Whether a router answers is known once, in `gateways`, and not in each route through it: what a neighbour says costs
/// the same however many routes there are. So does a change of one route, but for those to the same network.
#[derive(Debug)]
pub(super) struct RouteTable {
    /// In order of adding.
    list: BTreeMap<u64, RouteEntry>,
    fib: Fib,
    gateways: Gateways,
    /// Routes added so far.
    added: u64,
    generation: u64,
    /// There is something that the last [`Fib`] does not have.
    changed: bool,
}

impl RouteTable {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            list: BTreeMap::new(),
            fib: Fib::default(),
            gateways: Gateways::new(keys),
            added: 0,
            generation: 0,
            changed: false,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// What destinations are looked up in. It stays what it is, whatever becomes of the routes.
    pub(super) fn fib(&self) -> Fib {
        let mut fib = self.fib.clone();
        fib.failures = Arc::clone(self.gateways.failures());
        fib
    }

    /// Something that routes depend on has changed: addresses, what a link takes.
    pub(super) fn touch(&mut self) {
        self.generation += 1;
        self.changed = true;
    }

    /// Whether there is something new since last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// Adds a route, or replaces the same one's metric. One that is there already changes nothing, so that
    /// what routers repeat makes nobody look for routes again. False when there are as many routers as may be.
    pub(super) fn add(&mut self, entry: RouteEntry) -> bool {
        let entry = RouteEntry { prefix: entry.prefix.trunc(), ..entry };
        let mut routes = self.to(entry.prefix);
        let known = routes.iter().position(|route| route.entry.is_same(&entry));
        if known.is_some_and(|at| routes[at].entry == entry) {
            return true;
        }
        let known = known.map(|at| routes.remove(at));
        let (nth, gateway) = match known {
            Some(Stored { nth, gateway, .. }) => (nth, gateway),
            None => {
                let key = entry.next_hop.map(|hop| (entry.iface, hop));
                let gateway = key.map(|key| self.gateways.hold(key));
                if gateway.is_some_and(|held| held.is_none()) {
                    return false;
                }
                self.added += 1;
                (self.added, gateway.flatten())
            }
        };
        let place = routes.partition_point(|route| route.entry.metric <= entry.metric);
        routes.insert(place, Stored { entry, gateway, nth });
        self.fib.set(entry.prefix, routes);
        self.list.insert(nth, entry);
        self.touch();
        true
    }

    /// Removes the routes to `prefix` for which `gone` is true.
    pub(super) fn remove(
        &mut self,
        prefix: Prefix,
        mut gone: impl FnMut(&RouteEntry) -> bool,
    ) -> usize {
        let prefix = prefix.trunc();
        let mut routes = self.to(prefix);
        let before = routes.len();
        routes.retain(|route| {
            let gone = gone(&route.entry);
            if gone {
                self.list.remove(&route.nth);
                route.gateway.into_iter().for_each(|gateway| self.gateways.release(gateway));
            }
            !gone
        });
        let count = before - routes.len();
        if count > 0 {
            self.fib.set(prefix, routes);
            self.touch();
        }
        count
    }

    fn to(&self, prefix: Prefix) -> Vec<Stored> {
        self.fib.to(prefix).map(<[Stored]>::to_vec).unwrap_or_default()
    }

    /// Whether `hop` is a router that does not answer.
    pub(super) fn has_failed(&self, hop: &HopKey) -> bool {
        self.gateways.has_failed(hop)
    }

    /// A neighbour does not answer.
    pub(super) fn on_hop_failed(&mut self, now: Instant, hop: &HopKey) {
        if self.gateways.on_failed(now, hop) {
            self.touch();
        }
    }

    /// A neighbour answers (again).
    pub(super) fn on_hop_known(&mut self, hop: &HopKey) {
        if self.gateways.on_known(hop) {
            self.touch();
        }
    }

    /// Whether it is time to ask a router that does not answer whether it does again; from now on that is for the next
    /// interval.
    pub(super) fn take_probe(&mut self, now: Instant, hop: &HopKey) -> bool {
        let due = self.gateways.take_probe(now, hop);
        // Nobody's way is another one for that.
        self.changed |= due;
        due
    }

    /// All routes, in order of adding.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        self.list.values()
    }
}
