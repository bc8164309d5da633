//! Where packets go: routes by the longest prefix that a destination begins with. A snapshot: what was looked up in one
//! stays as it was found, and who looks up shares nothing that changes with those who change routes.

use core::net::IpAddr;
use std::sync::Arc;

use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::gateways::{Failures, GatewayId};
use super::iface::IfaceId;
use super::next_hop::HopKey;
use super::route::RouteEntry;
use super::trie::{Bits, Trie};

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
        self.matching(dst).find_map(|routes| self.choose(routes, iface))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hash::Keyed;
    use super::super::iface::Origin;
    use super::super::route::RouteTable;
    use super::*;

    fn entry(prefix: &str, next_hop: Option<&str>, iface: u16, metric: u32) -> RouteEntry {
        RouteEntry {
            prefix: prefix.parse().unwrap(),
            next_hop: next_hop.map(|hop| hop.parse().unwrap()),
            iface: IfaceId(iface),
            metric,
            origin: Origin::Static,
        }
    }

    fn table() -> RouteTable {
        RouteTable::new(Keyed([1, 2]))
    }

    fn hop(table: &RouteTable, dst: &str) -> Option<(u16, u32)> {
        let found = table.fib().lookup(dst.parse().unwrap(), None);
        found.map(|found| (found.entry.iface.0, found.entry.metric))
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
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 5)));
        assert_eq!(hop(&table, "10.2.0.1"), Some((2, 9)));
        assert_eq!(hop(&table, "10.1.0.1"), Some((4, 6)));
        assert_eq!(hop(&table, "10.1.1.1"), Some((5, 1)));
        assert_eq!(hop(&table, "2001:db8::1"), Some((6, 1)));
        let through = table.fib().lookup("10.1.0.1".parse().unwrap(), Some(IfaceId(1))).unwrap();
        assert_eq!(through.entry.iface, IfaceId(1));
        let metrics: Vec<_> = table.iter().map(|entry| entry.metric).collect();
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
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 2)));
        table.on_hop_known(&router("10.0.0.1"));
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 1)));
        let all = "0.0.0.0/0".parse().unwrap();
        assert_eq!(table.remove(all, |route| route.metric == 1), 1);
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 2)));
        assert_eq!(table.remove(all, |_| true), 1);
        assert_eq!(hop(&table, "8.8.8.8"), None);
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
            let found = table.fib().lookup(dst, None).unwrap();
            turns.push((found.entry.metric, found.avoids));
            table.on_hop_failed(Instant(n), &(IfaceId(1), found.entry.next_hop.unwrap()));
        }
        let (known, failed) = ([(1, false), (2, true), (3, true)], [1, 2, 3, 1]);
        assert_eq!(turns[..3], known);
        assert_eq!(turns[3..], failed.map(|metric| (metric, false)));
    }

    #[test]
    fn a_route_added_again_replaces_itself() {
        let mut table = table();
        table.add(entry("10.0.0.0/8", None, 1, 1));
        table.add(entry("10.0.0.0/8", None, 1, 3));
        assert_eq!(hop(&table, "10.0.0.1"), Some((1, 3)));
        assert_eq!(table.iter().count(), 1);
        // What changes nothing makes nobody look again.
        let before = table.generation();
        table.add(entry("10.0.0.0/8", None, 1, 3));
        assert_eq!((table.generation(), table.iter().count()), (before, 1));
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
            RouteEntry { prefix, next_hop, iface, metric, origin: Origin::Static }
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
                let there = table.iter().filter(|route| route.prefix == prefix.trunc()).count();
                prop_assert_eq!(table.remove(*prefix, |_| true), there);
            }
            let fib = table.fib();
            let known = added.iter().map(|route| route.prefix);
            for dst in asked.into_iter().chain(known).map(|prefix| prefix.addr()) {
                for iface in [None, Some(IfaceId(1)), Some(IfaceId(2)), Some(IfaceId(3))] {
                    // The longest prefix, of these the smallest metric, and of equals the first.
                    let matching: Vec<_> = table.iter().filter(|route| {
                        route.prefix.contains(dst) && iface.is_none_or(|i| i == route.iface)
                    }).collect();
                    let rank = |route: &RouteEntry| (u8::MAX - route.prefix.len(), route.metric);
                    let best = matching.iter().map(|route| rank(route)).min();
                    let found = fib.lookup(dst, iface).map(|choice| choice.entry);
                    prop_assert_eq!(found.as_ref().map(rank), best);
                    prop_assert!(found.is_none_or(|found| matching.contains(&&found)));
                }
            }
        }
    }
}
