//! State of the kernel, and the differences from the state that the engine has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use towpath_netlink::{
    AddressMessage, KernelMessage, KernelObject, LinkMessage, MessageAction, NeighborMessage,
    NextHopMessage, RouteMessage,
};
use towpath_stack::IfaceId;
use towpath_stack::net::{KernelRoute, KernelRoutes};
use towpath_wire::{MacAddr, Prefix};

use crate::hosts::KernelHosts;
use crate::resolve::{KernelHops, kind};

/// An interface of the engine, and the interface of the kernel for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkBinding {
    /// Name of the kernel's interface.
    pub link: String,
    /// Interface of the engine.
    pub iface: IfaceId,
}

/// All objects of the kernel at one moment.
#[derive(Debug, Default)]
pub struct KernelDump {
    links: Vec<LinkMessage>,
    addresses: BTreeSet<(u32, IpAddr, u8)>,
    neighbors: BTreeMap<(u32, IpAddr), [u8; 6]>,
    objects: BTreeMap<u32, NextHopMessage>,
    routes: BTreeMap<Prefix, Vec<RouteMessage>>,
}

impl KernelDump {
    /// Adds an object of a dump. Routes of tables other than `table` are ignored, because an old
    /// kernel dumps all tables.
    pub fn add(&mut self, table: u32, message: KernelMessage) {
        match message.object {
            KernelObject::Link(link) => self.links.push(link),
            KernelObject::Address(AddressMessage { link, address, prefix_len }) => {
                self.addresses.insert((link, address, prefix_len));
            }
            KernelObject::Neighbor(neighbor) => self.set_neighbor(MessageAction::Set, &neighbor),
            KernelObject::NextHop(object) => drop(self.objects.insert(object.id, object)),
            KernelObject::Route(route) => {
                let is_wanted = route.table == table && kind(&route).is_some();
                if let Some(prefix) = prefix_of(&route).filter(|_| is_wanted) {
                    self.routes.entry(prefix).or_default().push(route);
                }
            }
        }
    }

    fn set_neighbor(&mut self, action: MessageAction, neighbor: &NeighborMessage) {
        let key = (neighbor.link, neighbor.address);
        let mac = neighbor.mac.filter(|_| neighbor.is_permanent && action != MessageAction::Delete);
        match mac {
            Some(mac) => self.neighbors.insert(key, mac),
            None => self.neighbors.remove(&key),
        };
    }
}

/// State of a kernel, translated to the interfaces of an engine.
#[derive(Debug)]
pub struct KernelModel {
    /// Routing table to follow.
    table: u32,
    bindings: Vec<LinkBinding>,
    known: KernelDump,
    next_hops: KernelHops,
    /// Routes that were passed to the engine.
    passed: BTreeMap<Prefix, Vec<KernelRoute>>,
    /// Networks whose routes may differ from the passed ones.
    dirty: BTreeSet<Prefix>,
    /// Whether the state is incomplete until the next dump.
    is_stale: bool,
}

impl KernelModel {
    /// Creates the model of a kernel without any objects, which is stale.
    pub fn new(table: u32, bindings: Vec<LinkBinding>) -> Self {
        Self {
            table,
            bindings,
            known: KernelDump::default(),
            next_hops: KernelHops::default(),
            passed: BTreeMap::new(),
            dirty: BTreeSet::new(),
            is_stale: true,
        }
    }

    /// Returns whether a dump is needed.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Records that changes were lost.
    pub fn set_stale(&mut self) {
        self.is_stale = true;
    }

    /// Returns the number of networks that the engine has routes to.
    pub fn networks(&self) -> usize {
        self.passed.len()
    }

    /// Replaces the whole state.
    pub fn replace(&mut self, dump: KernelDump) {
        let bound = dump.links.iter().filter_map(|link| Some((link.index, self.binding(link)?)));
        let interfaces = bound.collect();
        self.next_hops = KernelHops { interfaces, objects: dump.objects.clone() };
        self.dirty.extend(self.passed.keys().chain(dump.routes.keys()));
        self.known = dump;
        self.is_stale = false;
    }

    fn binding(&self, link: &LinkMessage) -> Option<IfaceId> {
        let found = self.bindings.iter().find(|known| known.link == link.name);
        found.map(|known| known.iface)
    }

    /// Handles a change.
    pub fn on_change(&mut self, message: KernelMessage) {
        match message.object {
            KernelObject::Link(link) => self.on_link(message.action, &link),
            KernelObject::Address(AddressMessage { link, address, prefix_len }) => {
                let key = (link, address, prefix_len);
                if message.action == MessageAction::Delete {
                    self.known.addresses.remove(&key);
                    // The kernel does not report the routes that end with an address.
                    self.is_stale = true;
                } else {
                    self.known.addresses.insert(key);
                }
            }
            KernelObject::Neighbor(neighbor) => self.known.set_neighbor(message.action, &neighbor),
            KernelObject::NextHop(object) => self.on_next_hop(message.action, object),
            KernelObject::Route(route) => self.on_route(message.action, route),
        }
    }

    /// Handles a change of a next-hop object. The kernel does not report all routes that change
    /// with their object, but no route has used a new one yet.
    fn on_next_hop(&mut self, action: MessageAction, object: NextHopMessage) {
        let objects = &mut self.next_hops.objects;
        if action == MessageAction::Delete {
            self.is_stale = true;
        } else {
            let known = objects.entry(object.id).or_insert_with(|| object.clone());
            self.is_stale |= *known != object;
        }
    }

    /// Handles a change of an interface. The kernel does not report IPv4 routes that end because
    /// their interface goes down.
    fn on_link(&mut self, action: MessageAction, link: &LinkMessage) {
        let is_known = self.known.links.contains(link);
        // An interface that was renamed is still bound by its index.
        let is_bound =
            self.binding(link).is_some() || self.next_hops.interfaces.contains_key(&link.index);
        self.is_stale |= is_bound && (action == MessageAction::Delete || !is_known);
    }

    fn on_route(&mut self, action: MessageAction, route: RouteMessage) {
        if route.table != self.table {
            return;
        }
        if kind(&route).is_none() {
            // A route that the engine has no type for may have replaced another one.
            self.is_stale |= action == MessageAction::Replace && !route.is_partial;
            return;
        }
        let Some(prefix) = prefix_of(&route) else { return };
        let routes = self.known.routes.entry(prefix).or_default();
        let is_clear = match (action, route.network.is_ipv4()) {
            (MessageAction::Delete, true) => delete_v4(routes, &route),
            (MessageAction::Delete, false) => delete_v6(routes, &route),
            (MessageAction::Set, true) => add_v4(routes, route),
            (MessageAction::Set, false) => add_v6(routes, route),
            (MessageAction::Replace, _) => replace(routes, route),
        };
        if routes.is_empty() {
            self.known.routes.remove(&prefix);
        }
        self.is_stale |= !is_clear;
        self.dirty.insert(prefix);
    }

    /// Returns the routes of up to `max` networks that the engine does not have as the kernel has
    /// them. The caller passes them to the engine.
    pub fn take_updates(&mut self, max: usize) -> Vec<KernelRoutes> {
        let mut updates = Vec::new();
        while updates.len() < max
            && let Some(prefix) = self.dirty.pop_first()
        {
            let known = self.known.routes.get(&prefix).map_or(&[][..], Vec::as_slice);
            let routes = self.used_of(known);
            if self.passed.get(&prefix).map_or(&[][..], Vec::as_slice) == routes {
                continue;
            }
            match routes.is_empty() {
                true => drop(self.passed.remove(&prefix)),
                false => drop(self.passed.insert(prefix, routes.clone())),
            }
            updates.push(KernelRoutes { prefix, routes });
        }
        updates
    }

    /// Returns the routes of the engine for the kernel's routes to a network. The kernel uses only
    /// the first one of IPv4 routes with the same metric.
    fn used_of(&self, known: &[RouteMessage]) -> Vec<KernelRoute> {
        let (mut used, mut metrics) = (Vec::new(), BTreeSet::new());
        for route in known {
            let resolved = self.next_hops.resolve(route);
            if resolved.is_empty() || metrics.insert(route.metric) || !route.network.is_ipv4() {
                used.extend(resolved);
            }
        }
        used
    }

    /// Returns the addresses and permanent neighbours of the bound interfaces.
    pub(crate) fn hosts(&self) -> KernelHosts {
        let iface = |link: &u32| self.next_hops.interfaces.get(link).copied();
        let address = |(link, address, len): &(u32, IpAddr, u8)| {
            let is_global = match address {
                IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
                IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
            };
            Some((iface(link)?, Prefix::new(*address, *len)?)).filter(|_| is_global)
        };
        let neighbor = |((link, address), mac): (&(u32, IpAddr), &[u8; 6])| {
            Some(((iface(link)?, *address), MacAddr(*mac)))
        };
        KernelHosts {
            addresses: self.known.addresses.iter().filter_map(address).collect(),
            neighbors: self.known.neighbors.iter().filter_map(neighbor).collect(),
        }
    }
}

fn prefix_of(route: &RouteMessage) -> Option<Prefix> {
    Prefix::new(route.network, route.prefix_len).map(|prefix| prefix.trunc())
}

// The functions below return false if the message does not determine the kernel's routes.

/// Adds an IPv4 route. The kernel uses the first of several routes with the same metric, and the
/// message does not tell the place of the new one.
fn add_v4(routes: &mut Vec<RouteMessage>, route: RouteMessage) -> bool {
    if routes.contains(&route) {
        return true;
    }
    let is_alone = routes.iter().all(|known| known.metric != route.metric);
    routes.push(route);
    is_alone
}

/// Adds next hops of an IPv6 route. The message has all next hops with the metric of the route.
fn add_v6(routes: &mut Vec<RouteMessage>, route: RouteMessage) -> bool {
    let known = routes.iter().filter(|known| known.metric == route.metric);
    let has_all = known
        .flat_map(|known| &known.hops)
        .all(|hop| route.hops.iter().any(|new| (new.link, new.gateway) == (hop.link, hop.gateway)));
    replace(routes, route) && has_all
}

/// Replaces the route with the metric of `route`, or adds one.
fn replace(routes: &mut Vec<RouteMessage>, route: RouteMessage) -> bool {
    let is_rival = |known: &RouteMessage| known.metric == route.metric;
    let count = routes.iter().filter(|known| is_rival(known)).count();
    match routes.iter_mut().find(|known| is_rival(known)) {
        Some(known) => *known = route,
        None => routes.push(route),
    }
    count <= 1
}

/// Deletes an IPv4 route with all its next hops.
fn delete_v4(routes: &mut Vec<RouteMessage>, route: &RouteMessage) -> bool {
    let same = routes.iter().position(|known| known == route);
    let of_metric = || {
        let mut places =
            routes.iter().enumerate().filter(|(_, known)| known.metric == route.metric);
        let first = places.next();
        first.filter(|_| places.next().is_none()).map(|(place, _)| place)
    };
    let place = same.or_else(of_metric);
    place.into_iter().for_each(|place| drop(routes.remove(place)));
    place.is_some()
}

/// Deletes next hops of an IPv6 route; the route ends with its last one.
fn delete_v6(routes: &mut Vec<RouteMessage>, route: &RouteMessage) -> bool {
    let same = |a: &RouteMessage| a.metric == route.metric;
    let Some(place) = routes.iter().position(same) else { return false };
    let is_gone =
        |link, gateway| route.hops.iter().any(|gone| (gone.link, gone.gateway) == (link, gateway));
    let known = &mut routes[place];
    let before = known.hops.len();
    known.hops.retain(|hop| !is_gone(hop.link, hop.gateway));
    let is_clear = before - known.hops.len() == route.hops.len();
    if known.hops.is_empty() {
        routes.remove(place);
    }
    is_clear
}
