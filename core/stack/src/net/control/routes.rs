//! Routing table with the routes of all origins: the operator, interface addresses and router
//! advertisements. The forwarding table [`Fib`], in which packets look up their routes, is built
//! from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::gateways::Gateways;
use crate::net::failures::GatewayId;
use crate::net::fib::{Fib, Way, Ways};
use crate::net::hash::Keyed;
use crate::net::iface::IfaceId;
use crate::net::messages::HopKey;
use crate::net::route::RouteEntry;

/// A route to a network, and its insertion number.
#[derive(Debug, Clone, Copy)]
struct Stored {
    entry: RouteEntry,
    gateway: Option<GatewayId>,
    /// Insertion number of the route, by which routes are listed.
    nth: u64,
}

/// Routes of both IP versions.
///
/// Only `gateways` stores whether a router is reachable. The failure of a router therefore takes
/// the same time for any number of routes. Changing a route costs time in proportion to the routes
/// to its network.
#[derive(Debug)]
pub(super) struct RouteTable {
    /// Routes by insertion number. A change copies the list if another thread still reads it.
    list: Arc<BTreeMap<u64, RouteEntry>>,
    /// Routes of each network, sorted by metric.
    networks: BTreeMap<Prefix, Vec<Stored>>,
    fib: Fib,
    /// Next-hop lists in `fib` without duplicates, each with the number of networks that use it.
    ways: BTreeMap<Ways, u32>,
    gateways: Gateways,
    /// Different MTUs of the routes, each with the number of routes that have it.
    mtus: BTreeMap<u16, u32>,
    /// Number of routes added so far.
    added: u64,
    generation: u64,
    /// Whether routes have changed since [`Self::take_changed`] was last called.
    changed: bool,
}

impl RouteTable {
    pub(super) fn new(keys: Keyed, is_router: bool) -> Self {
        Self {
            list: Arc::default(),
            networks: BTreeMap::new(),
            ways: BTreeMap::new(),
            fib: Fib::new(keys, is_router),
            gateways: Gateways::new(keys),
            mtus: BTreeMap::new(),
            added: 0,
            generation: 0,
            changed: false,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the current forwarding table. Later changes do not affect the returned table, so a
    /// configuration snapshot can keep it.
    pub(super) fn fib(&mut self) -> Fib {
        self.fib.finish();
        let mut fib = self.fib.clone();
        fib.failures = Arc::clone(self.gateways.failures());
        fib.mtu_least = self.mtus.keys().next().copied().unwrap_or(u16::MAX);
        fib
    }

    /// Invalidates routes that connections have cached, because addresses or the MTU or state of a
    /// link have changed.
    pub(super) fn touch(&mut self) {
        self.generation += 1;
        self.changed = true;
    }

    /// Returns whether routes have changed since the last call of this method.
    pub(super) fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// Adds a route, or updates the metric of an existing route to the same network through the
    /// same router. If an identical route exists, nothing changes, so that repeated router
    /// advertisements do not invalidate cached routes. Returns false if the router limit is
    /// reached.
    pub(super) fn add(&mut self, entry: RouteEntry) -> bool {
        let entry = RouteEntry { prefix: entry.prefix.trunc(), ..entry };
        let mut routes = self.to(entry.prefix);
        let known = routes.iter().position(|route| route.entry.is_same(&entry));
        if known.is_some_and(|at| routes[at].entry == entry) {
            return true;
        }
        let known = known.map(|at| routes.remove(at));
        let mtu_before = known.and_then(|known| known.entry.mtu);
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
        release_mtu(&mut self.mtus, mtu_before);
        entry.mtu.into_iter().for_each(|mtu| *self.mtus.entry(mtu).or_insert(0) += 1);
        let place = routes.partition_point(|route| route.entry.metric <= entry.metric);
        routes.insert(place, Stored { entry, gateway, nth });
        self.set(entry.prefix, routes);
        Arc::make_mut(&mut self.list).insert(nth, entry);
        self.touch();
        true
    }

    /// Removes the routes to `prefix` for which `gone` returns true. Returns the number of removed
    /// routes.
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
                Arc::make_mut(&mut self.list).remove(&route.nth);
                route.gateway.into_iter().for_each(|gateway| self.gateways.release(gateway));
                release_mtu(&mut self.mtus, route.entry.mtu);
            }
            !gone
        });
        let count = before - routes.len();
        if count > 0 {
            self.set(prefix, routes);
            self.touch();
        }
        count
    }

    /// Returns the routes to a network, the best first.
    pub(super) fn to_network(&self, prefix: Prefix) -> Vec<RouteEntry> {
        self.to(prefix).iter().map(|stored| stored.entry).collect()
    }

    fn to(&self, prefix: Prefix) -> Vec<Stored> {
        self.networks.get(&prefix).cloned().unwrap_or_default()
    }

    /// Replaces all routes to a network.
    fn set(&mut self, prefix: Prefix, routes: Vec<Stored>) {
        let ways: Vec<Way> =
            routes.iter().map(|stored| Way::of(&stored.entry, stored.gateway)).collect();
        let ways = (!ways.is_empty()).then(|| self.hold_ways(ways));
        let before = self.fib.to(prefix).cloned();
        self.fib.set(prefix, ways);
        before.iter().for_each(|ways| self.release_ways(ways));
        match routes.is_empty() {
            true => self.networks.remove(&prefix),
            false => self.networks.insert(prefix, routes),
        };
    }

    /// Returns a shared copy of a next-hop list, and counts its use. All networks with equal lists
    /// share one copy.
    fn hold_ways(&mut self, ways: Vec<Way>) -> Ways {
        let shared = match self.ways.get_key_value(&ways[..]) {
            Some((shared, _)) => Arc::clone(shared),
            None => ways.into(),
        };
        *self.ways.entry(Arc::clone(&shared)).or_insert(0) += 1;
        shared
    }

    /// Releases a network's reference to its shared next-hop list.
    fn release_ways(&mut self, ways: &Ways) {
        let Some(uses) = self.ways.get_mut(ways) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.ways.remove(ways);
        }
    }

    /// Returns the number of routers that can still be added to the table.
    pub(super) fn room_for_routers(&self) -> usize {
        self.gateways.room()
    }

    /// Returns whether at least one route uses the router `hop`.
    pub(super) fn leads_through(&self, hop: &HopKey) -> bool {
        self.gateways.holds(hop)
    }

    /// Returns whether `hop` is a router that has failed.
    pub(super) fn has_failed(&self, hop: &HopKey) -> bool {
        self.gateways.has_failed(hop)
    }

    /// Marks `hop` as failed, if a route uses it as router.
    pub(super) fn on_hop_failed(&mut self, now: Instant, hop: &HopKey) {
        if self.gateways.on_failed(now, hop) {
            self.touch();
        }
    }

    /// Marks `hop` as reachable, if a route uses it as router.
    pub(super) fn on_hop_known(&mut self, hop: &HopKey) {
        if self.gateways.on_known(hop) {
            self.touch();
        }
    }

    /// Records that the interface `iface` has lost or regained its carrier. Without carrier, its
    /// routers count as failed.
    pub(super) fn set_carrier(&mut self, now: Instant, iface: IfaceId, carrier: bool) {
        self.gateways.set_carrier(now, iface, carrier);
        self.touch();
    }

    /// Returns whether a failed router must be probed now, and schedules the next probe in this
    /// case.
    pub(super) fn take_probe(&mut self, now: Instant, hop: &HopKey) -> bool {
        let due = self.gateways.take_probe(now, hop);
        // Publish a new snapshot for the next probe time, but keep the routes that connections have
        // cached.
        self.changed |= due;
        due
    }

    /// Returns all routes, in the order of insertion.
    pub(super) fn list(&self) -> Arc<BTreeMap<u64, RouteEntry>> {
        Arc::clone(&self.list)
    }
}

/// Removes the MTU of a removed route from the table of MTUs, unless another route has the same
/// MTU.
fn release_mtu(mtus: &mut BTreeMap<u16, u32>, mtu: Option<u16>) {
    let Some((mtu, count)) = mtu.and_then(|mtu| Some((mtu, mtus.get_mut(&mtu)?))) else { return };
    *count -= 1;
    if *count == 0 {
        mtus.remove(&mtu);
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::net::iface::Origin;
    use crate::net::route::RouteKind;

    fn entry(prefix: &str, next_hop: Option<&str>, iface: u16, metric: u32) -> RouteEntry {
        RouteEntry {
            prefix: prefix.parse().unwrap(),
            next_hop: next_hop.map(|hop| hop.parse().unwrap()),
            iface: IfaceId(iface),
            metric,
            origin: Origin::Static,
            kind: RouteKind::Unicast,
            mtu: None,
            weight: 1,
        }
    }

    fn table() -> RouteTable {
        RouteTable::new(Keyed([1, 2]), true)
    }

    fn hop(table: &mut RouteTable, dst: &str) -> Option<(u16, u32)> {
        let found = table.fib().lookup(dst.parse().unwrap(), None, || None);
        found.map(|found| (found.way.iface.0, found.way.metric))
    }

    /// Returns the next hops for fifty pairs of remote addresses, and for packets of the host
    /// itself to fifty destinations.
    fn spread(table: &mut RouteTable) -> Vec<Way> {
        let fib = table.fib();
        let src = "198.51.100.7".parse().unwrap();
        let to = |n: u8| {
            let dst = IpAddr::from([203, 0, 113, n]);
            [fib.best_between(src, dst), fib.lookup(dst, None, || None)].map(|way| way.unwrap().way)
        };
        (0..50).flat_map(to).collect()
    }

    #[test]
    fn equal_routes_share_flows_and_worse_ones_have_none() {
        let mut table = table();
        for n in 1..=4 {
            table.add(entry("0.0.0.0/0", Some(&format!("10.0.0.{n}")), 1, 5));
        }
        table.add(entry("0.0.0.0/0", Some("10.0.0.9"), 1, 6));
        let ways = spread(&mut table);
        for n in 1..=4 {
            let hop: IpAddr = IpAddr::from([10, 0, 0, n]);
            let count = ways.iter().filter(|way| way.next_hop == Some(hop)).count();
            assert!((10..45).contains(&count), "{hop}: {count} of 100");
        }
        assert!(ways.iter().all(|way| way.metric == 5));
        // A failed router gets no flows, and it is probed.
        table.on_hop_failed(Instant(1), &router("10.0.0.3"));
        let (src, dst) = ("198.51.100.7".parse().unwrap(), "203.0.113.1".parse().unwrap());
        assert!(table.fib().best_between(src, dst).unwrap().avoids);
        let later = Instant::FAR;
        assert_eq!(table.fib().to_probe(later, dst), Some(router("10.0.0.3")));
        // If all four routers have failed, the route with the larger metric is used.
        for n in [1, 2, 4] {
            table.on_hop_failed(Instant(2), &router(&format!("10.0.0.{n}")));
        }
        assert!(spread(&mut table).iter().all(|way| way.metric == 6));
    }

    #[test]
    fn flows_follow_weights() {
        let mut table = table();
        for (n, weight) in [(1, 1), (2, 3), (3, 12)] {
            let route = entry("0.0.0.0/0", Some(&format!("10.0.0.{n}")), 1, 5);
            table.add(RouteEntry { weight, ..route });
        }
        let counts = |table: &mut RouteTable| {
            let fib = table.fib();
            let mut counts = [0; 3];
            for n in 0..16_000u32 {
                let src = IpAddr::from(n.to_be_bytes());
                let way = fib.best_between(src, "203.0.113.1".parse().unwrap()).unwrap().way;
                let Some(IpAddr::V4(hop)) = way.next_hop else { panic!("a router") };
                counts[usize::from(hop.octets()[3]) - 1] += 1;
            }
            counts
        };
        let near = |found: i32, wanted: i32| (found - wanted).abs() < 200;
        let [one, three, twelve] = counts(&mut table);
        assert!(near(one, 1000) && near(three, 3000) && near(twelve, 12_000));
        // The router 10.0.0.3 fails, and its flows are distributed among the other routers by their
        // weights.
        table.on_hop_failed(Instant(1), &router("10.0.0.3"));
        let [one, three, none] = counts(&mut table);
        assert!(near(one, 4000) && near(three, 12_000) && none == 0);
    }

    #[test]
    fn a_host_has_one_way_to_each_destination_by_the_interface_of_its_source() {
        let mut table = table();
        for (hop, iface) in [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.9.0.1", 2), ("10.9.0.2", 2)] {
            table.add(entry("0.0.0.0/0", Some(hop), iface, 5));
        }
        let fib = table.fib();
        let mut counts = std::collections::BTreeMap::new();
        for n in 0..200u8 {
            let dst = IpAddr::from([203, 0, 113, n]);
            let way = |near, iface| fib.lookup(dst, iface, || near).unwrap().way;
            let first = way(None, None);
            *counts.entry(first.next_hop).or_insert(0) += 1;
            // The first lookup determines the source address. Later lookups pass the interface of
            // this address, and must find the same route.
            assert_eq!(way(Some(first.iface), None), first);
            assert_eq!(way(None, Some(first.iface)), first);
            let other = IfaceId(3 - first.iface.0);
            assert_eq!(way(Some(other), None).iface, other);
            assert_eq!(way(Some(other), None), way(None, Some(other)));
            assert_eq!(way(Some(IfaceId(7)), None), first, "a source that is nowhere is no reason");
        }
        assert!(counts.len() == 4 && counts.values().all(|n| (25..85).contains(n)), "{counts:?}");
        // If all routers of a connection's interface have failed, the connection uses another
        // interface.
        for (iface, hop) in [(1, "10.0.0.1"), (1, "10.0.0.2")] {
            table.on_hop_failed(Instant(1), &(IfaceId(iface), hop.parse().unwrap()));
        }
        let dst = "203.0.113.1".parse().unwrap();
        let found = table.fib().lookup(dst, None, || Some(IfaceId(1))).unwrap();
        assert_eq!((found.way.iface, found.avoids), (IfaceId(2), true));
    }

    #[test]
    fn sources_are_behind_each_of_equal_routes() {
        let mut table = table();
        table.add(entry("10.0.0.0/8", Some("192.0.2.1"), 1, 5));
        table.add(entry("10.0.0.0/8", Some("198.51.100.1"), 2, 5));
        table.add(entry("10.0.0.0/8", Some("203.0.113.1"), 3, 6));
        let hole = RouteEntry { kind: RouteKind::Blackhole, ..entry("10.9.0.0/16", None, 0, 0) };
        table.add(hole);
        let fib = table.fib();
        let leads = |src: &str, iface| fib.leads_back(src.parse().unwrap(), iface);
        for (iface, expected) in [(1, true), (2, true), (3, false), (4, false)] {
            assert_eq!(leads("10.1.1.1", Some(IfaceId(iface))), expected, "{iface}");
        }
        assert!(leads("10.1.1.1", None) && !leads("10.9.1.1", None) && !leads("11.1.1.1", None));
    }

    /// Returns whether a next hop belongs to a route. The identifier of the router is not compared.
    fn is_by(way: &Way, route: &RouteEntry) -> bool {
        *way == Way::of(route, way.gateway) && way.gateway.is_some() == route.next_hop.is_some()
    }

    fn router(addr: &str) -> HopKey {
        (IfaceId(1), addr.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_wins_then_the_smallest_metric() {
        let mut table = table();
        table.add(entry("0.0.0.0/0", Some("10.0.0.1"), 1, 5));
        table.add(entry("10.0.0.0/8", None, 2, 9));
        table.add(entry("10.1.2.3/16", Some("10.0.0.2"), 3, 7));
        table.add(entry("10.1.0.0/16", Some("10.0.0.3"), 4, 6));
        table.add(entry("10.1.1.1/32", None, 5, 1));
        table.add(entry("::/0", Some("fe80::1"), 6, 1));
        assert_eq!(hop(&mut table, "8.8.8.8"), Some((1, 5)));
        assert_eq!(hop(&mut table, "10.2.0.1"), Some((2, 9)));
        assert_eq!(hop(&mut table, "10.1.0.1"), Some((4, 6)));
        assert_eq!(hop(&mut table, "10.1.1.1"), Some((5, 1)));
        assert_eq!(hop(&mut table, "2001:db8::1"), Some((6, 1)));
        let through =
            table.fib().lookup("10.1.0.1".parse().unwrap(), Some(IfaceId(1)), || None).unwrap();
        assert_eq!(through.way.iface, IfaceId(1));
        let metrics: Vec<_> = table.list.values().map(|entry| entry.metric).collect();
        assert_eq!(metrics, [5, 9, 7, 6, 1, 1]);
    }

    #[test]
    fn removing_and_unreachable_routers_uncover_the_next_best() {
        let mut table = table();
        table.add(entry("0.0.0.0/0", Some("10.0.0.1"), 1, 1));
        table.add(entry("0.0.0.0/0", Some("10.0.0.2"), 1, 2));
        let before = table.generation();
        table.on_hop_failed(Instant(1), &router("10.0.0.1"));
        assert!(table.generation() > before);
        assert_eq!(hop(&mut table, "8.8.8.8"), Some((1, 2)));
        table.on_hop_known(&router("10.0.0.1"));
        assert_eq!(hop(&mut table, "8.8.8.8"), Some((1, 1)));
        let all = "0.0.0.0/0".parse().unwrap();
        assert_eq!(table.remove(all, |route| route.metric == 1), 1);
        assert_eq!(hop(&mut table, "8.8.8.8"), Some((1, 2)));
        assert_eq!(table.remove(all, |_| true), 1);
        assert_eq!(hop(&mut table, "8.8.8.8"), None);
        table.on_hop_failed(Instant(1), &router("10.0.0.2"));
        assert!(!table.has_failed(&router("10.0.0.2")), "no route leads through it");
    }

    #[test]
    fn of_routers_that_do_not_answer_each_has_its_turn() {
        let mut table = table();
        for metric in 1..=3 {
            table.add(entry("0.0.0.0/0", Some(&format!("10.0.0.{metric}")), 1, metric));
        }
        let dst = "8.8.8.8".parse().unwrap();
        let mut turns = Vec::new();
        for n in 0..7 {
            let found = table.fib().lookup(dst, None, || None).unwrap();
            turns.push((found.way.metric, found.avoids));
            table.on_hop_failed(Instant(n), &(IfaceId(1), found.way.next_hop.unwrap()));
        }
        let (known, failed) = ([(1, false), (2, true), (3, true)], [1, 2, 3, 1]);
        assert_eq!(turns[..3], known);
        assert_eq!(turns[3..], failed.map(|metric| (metric, false)));
    }

    #[test]
    fn a_route_added_again_replaces_itself() {
        let mut table = table();
        let told =
            |metric| RouteEntry { origin: Origin::Router, ..entry("10.0.0.0/8", None, 1, metric) };
        table.add(told(1));
        table.add(told(3));
        assert_eq!(hop(&mut table, "10.0.0.1"), Some((1, 3)));
        assert_eq!(table.list.values().count(), 1);
        // Adding an identical route leaves the generation unchanged. Otherwise connections would
        // look up their cached routes again.
        let before = table.generation();
        table.add(told(3));
        assert_eq!((table.generation(), table.list.values().count()), (before, 1));
        // Static routes with different metrics are distinct.
        table.add(entry("10.0.0.0/8", None, 1, 5));
        table.add(entry("10.0.0.0/8", None, 1, 7));
        assert_eq!(table.list.values().count(), 3);
    }

    fn prefixes() -> impl Strategy<Value = Prefix> {
        let v4 = (0u32..8, 0u8..=32).prop_map(|(high, len)| {
            Prefix::new(IpAddr::from((high << 29 | high << 7).to_be_bytes()), len).unwrap()
        });
        let v6 = (0u128..8, 0u8..=128).prop_map(|(high, len)| {
            Prefix::new(IpAddr::from((high << 125 | high << 61).to_be_bytes()), len).unwrap()
        });
        prop_oneof![v4, v6]
    }

    fn routes() -> impl Strategy<Value = RouteEntry> {
        (prefixes(), 1u16..3, 1u32..4, any::<bool>()).prop_map(|(prefix, iface, metric, routed)| {
            let router = match prefix.addr() {
                IpAddr::V4(_) => IpAddr::from([10, 0, 0, 1]),
                IpAddr::V6(_) => "fe80::1".parse().unwrap(),
            };
            let (iface, next_hop) = (IfaceId(iface), routed.then_some(router));
            RouteEntry {
                prefix,
                next_hop,
                iface,
                metric,
                origin: Origin::Static,
                kind: RouteKind::Unicast,
                mtu: None,
                weight: 1,
            }
        })
    }

    proptest! {
        #[test]
        fn finds_what_a_look_at_all_routes_finds(
            added in prop::collection::vec(routes(), 1..60),
            removed in prop::collection::vec(prefixes(), 0..6),
            asked in prop::collection::vec(prefixes(), 20),
        ) {
            let mut table = table();
            for route in &added {
                prop_assert!(table.add(*route));
            }
            for prefix in removed.iter().chain(added.first().map(|route| &route.prefix)) {
                let there =
                    table.list.values().filter(|route| route.prefix == prefix.trunc()).count();
                prop_assert_eq!(table.remove(*prefix, |_| true), there);
            }
            // Networks share next-hop lists, and a list is freed with the last network that uses
            // it.
            let uses: u32 = table.ways.values().sum();
            prop_assert_eq!(uses as usize, table.networks.len());
            let fib = table.fib();
            let known = added.iter().map(|route| route.prefix);
            for dst in asked.into_iter().chain(known).map(|prefix| prefix.addr()) {
                for iface in [None, Some(IfaceId(1)), Some(IfaceId(2)), Some(IfaceId(3))] {
                    // Expect the longest prefix, then the smallest metric, then the first route.
                    let matching: Vec<_> = table.list.values().filter(|route| {
                        route.prefix.contains(dst) && iface.is_none_or(|i| i == route.iface)
                    }).collect();
                    let rank = |route: &RouteEntry| (u8::MAX - route.prefix.len(), route.metric);
                    let best = matching.iter().map(|route| rank(route)).min();
                    let found = fib.lookup(dst, iface, || None).map(|choice| choice.way);
                    prop_assert_eq!(found.is_some(), best.is_some());
                    if let (IpAddr::V4(v4), None) = (dst, iface) {
                        let mut flat = [None];
                        fib.find_all(&[v4.to_bits()], &mut flat);
                        // The flows are distributed among equal routes, so the lookup may find any
                        // of them.
                        let is_there = |way| flat[0].is_some_and(|ways: &Ways| ways.contains(&way));
                        prop_assert_eq!(flat[0].is_some(), found.is_some());
                        prop_assert!(found.is_none_or(is_there));
                    }
                    let is_it = |route: &&RouteEntry| {
                        Some(rank(route)) == best && found.is_some_and(|way| is_by(&way, route))
                    };
                    prop_assert!(best.is_none() || matching.into_iter().any(|route| is_it(&route)));
                }
            }
        }
    }
    proptest! {
        /// Tests that a flow changes its next hop only if this next hop is removed, or to use a
        /// next hop that was added.
        #[test]
        fn flows_stay_while_other_ways_come_and_go(
            steps in prop::collection::vec((0u8..4, 1u8..7), 1..40),
        ) {
            let mut table = table();
            table.add(entry("0.0.0.0/0", Some("10.0.0.99"), 1, 5));
            for (n, (what, router)) in steps.into_iter().enumerate() {
                let hop = IpAddr::from([10, 0, 0, router]);
                let before = spread(&mut table);
                match what {
                    0 => {
                        table.add(entry("0.0.0.0/0", Some(&hop.to_string()), 1, 5));
                    }
                    1 => {
                        let all = "0.0.0.0/0".parse().unwrap();
                        table.remove(all, |route| route.next_hop == Some(hop));
                    }
                    2 => table.on_hop_failed(Instant(n as u64 + 1), &(IfaceId(1), hop)),
                    _ => table.on_hop_known(&(IfaceId(1), hop)),
                }
                for (before, after) in before.iter().zip(spread(&mut table)) {
                    let moved = before.next_hop != after.next_hop;
                    let is_its_own = [before.next_hop, after.next_hop].contains(&Some(hop));
                    prop_assert!(!moved || is_its_own, "{before:?} {after:?}");
                }
            }
        }
    }
    proptest! {
        /// The lookup finds the same route as a search of all routes, while routers fail and
        /// recover, and routes are added, changed and removed. Older snapshots remain unchanged.
        #[test]
        fn failures_and_changes_lead_where_a_look_at_all_routes_leads(
            steps in prop::collection::vec((0u8..6, routes(), 0u8..4), 1..150),
        ) {
            let mut table = table();
            let mut naive: Vec<(u64, RouteEntry)> = Vec::new();
            let mut failed: std::collections::BTreeMap<HopKey, Instant> = Default::default();
            let mut nth = 0u64;
            let mut old: Vec<(Fib, IpAddr, Option<Way>)> = Vec::new();
            for (n, (what, route, router)) in steps.into_iter().enumerate() {
                let hop = match route.prefix.addr() {
                    IpAddr::V4(_) => IpAddr::from([10, 0, 0, router]),
                    IpAddr::V6(_) => format!("fe80::{router}").parse().unwrap(),
                };
                let route = RouteEntry {
                    prefix: route.prefix.trunc(),
                    next_hop: route.next_hop.map(|_| hop),
                    ..route
                };
                let key = (route.iface, hop);
                let leads = |naive: &Vec<(u64, RouteEntry)>, key: HopKey| {
                    naive.iter().any(|(_, r)| r.next_hop.map(|hop| (r.iface, hop)) == Some(key))
                };
                match what {
                    0..=2 => {
                        prop_assert!(table.add(route));
                        if let Some((_, known)) =
                            naive.iter_mut().find(|(_, r)| r.is_same(&route))
                        {
                            // A route that gets a new metric is inserted after the routes with the
                            // same metric.
                            if known.metric != route.metric {
                                let at = naive.iter().position(|(_, r)| r.is_same(&route)).unwrap();
                                naive.remove(at);
                                nth += 1;
                                naive.push((nth, route));
                            }
                        } else {
                            nth += 1;
                            naive.push((nth, route));
                        }
                    }
                    3 => {
                        table.remove(route.prefix, |r| r.iface == route.iface);
                        naive.retain(|(_, r)| r.prefix != route.prefix || r.iface != route.iface);
                    }
                    4 => {
                        table.on_hop_failed(Instant(n as u64 + 1), &key);
                        if leads(&naive, key) {
                            failed.insert(key, Instant(n as u64 + 1));
                        }
                    }
                    _ => {
                        table.on_hop_known(&key);
                        failed.remove(&key);
                    }
                }
                failed.retain(|key, _| leads(&naive, *key));
                let fib = table.fib();
                for dst in
                    naive.iter().map(|(_, r)| r.prefix.addr()).chain([route.prefix.addr(), hop])
                {
                    let mut matching: Vec<_> =
                        naive.iter().filter(|(_, r)| r.prefix.contains(dst)).collect();
                    let longest = matching.iter().map(|(_, r)| r.prefix.len()).max();
                    matching.retain(|(_, r)| Some(r.prefix.len()) == longest);
                    matching.sort_by_key(|(nth, r)| (r.metric, *nth));
                    let at = |r: &RouteEntry| {
                        r.next_hop.and_then(|hop| failed.get(&(r.iface, hop)).copied())
                    };
                    let works = matching.iter().position(|(_, r)| at(r).is_none());
                    let (expected, avoided) = match works {
                        Some(place) => {
                            let first = matching[place].1;
                            let equal = matching.iter().map(|(_, r)| *r);
                            let equal = equal.filter(|r| r.shares_with(&first));
                            let (answer, not): (Vec<_>, Vec<_>) =
                                equal.partition(|r| at(r).is_none());
                            let one = if answer.is_empty() { vec![first] } else { answer };
                            (one, place > 0 || !not.is_empty())
                        }
                        None => {
                            let oldest = matching.iter().min_by_key(|(_, r)| at(r));
                            (oldest.iter().map(|(_, r)| *r).collect(), false)
                        }
                    };
                    let found = fib.lookup(dst, None, || None);
                    let found = found.map(|found| (found.way, found.avoids));
                    let is_expected = match found {
                        Some((way, avoids)) => {
                            expected.iter().any(|route| is_by(&way, route)) && avoids == avoided
                        }
                        None => expected.is_empty(),
                    };
                    prop_assert!(is_expected, "to {}: {:?}, not {:?}", dst, found, expected);
                    if let IpAddr::V4(v4) = dst {
                        let mut flat = [None];
                        fib.find_all(&[v4.to_bits()], &mut flat);
                        prop_assert_eq!(flat[0].is_none(), expected.is_empty());
                    }
                    if n % 7 == 0 && old.len() < 20 {
                        old.push((fib.clone(), dst, found.map(|found| found.0)));
                    }
                }
                for (fib, dst, found) in &old {
                    prop_assert_eq!(fib.lookup(*dst, None, || None).map(|found| found.way), *found);
                }
            }
        }
    }
}
