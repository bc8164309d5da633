//! Compares two states of the network configuration, and reports their differences.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use towpath_wire::Prefix;

use crate::net::{Address, Interface, Neighbor, Origin, Route, RouteKind};
use crate::sockets::Word;
use crate::subscription::{InterfaceAddress, ReportTopic, RunReport, Subscription};

/// Maximum number of deletions and of additions that are reported for each topic at once. The
/// shortest reports of so many changes exceed the memory for a client's unsent reports.
const REPORTS_MAX: usize = 32_768;

/// Network configuration of a run at one time. Parts that have not changed are shared with the
/// previous state.
#[derive(Debug, Clone, Default)]
pub struct NetView {
    /// Interfaces with their addresses.
    pub interfaces: Arc<Vec<Interface>>,
    /// Routes, in the order in which they were added.
    pub routes: Arc<Vec<Route>>,
    /// Entries of the neighbor table.
    pub neighbors: Arc<Vec<Neighbor>>,
}

impl NetView {
    /// Returns a report for each difference between this state and the later state `after`, limited
    /// to the topics of a subscription.
    ///
    /// Deletions come first, and the link comes last among them, as the kernel reports them. A
    /// change that was undone between both states has no report. If there are too many changes, the
    /// last report has the number of those that were left out, as [`RunReport::lost`].
    #[must_use]
    pub fn changes(&self, after: &Self, wanted: &Subscription) -> Vec<RunReport> {
        let mut found = Differences::default();
        if wanted.has(ReportTopic::Neighbors) {
            let (before, after) = (by_host(&self.neighbors), by_host(&after.neighbors));
            found.compare(&before, &after, PartialEq::ne, |known| RunReport {
                neighbor: Some((*known).clone()),
                ..RunReport::default()
            });
        }
        if wanted.has(ReportTopic::Routes) && !Arc::ptr_eq(&self.routes, &after.routes) {
            let (before, after) = (by_network(&self.routes), by_network(&after.routes));
            found.compare(&before, &after, PartialEq::ne, |hops| RunReport {
                route: Some(hops.iter().map(|hop| (*hop).clone()).collect()),
                ..RunReport::default()
            });
        }
        if wanted.has(ReportTopic::Addresses) {
            let (before, after) = (by_address(&self.interfaces), by_address(&after.interfaces));
            let is_changed = |old: &HeldAddress<'_>, new: &HeldAddress<'_>| {
                has_changed(old.address, new.address)
            };
            found.compare(&before, &after, is_changed, |held| RunReport {
                address: Some(held.report()),
                ..RunReport::default()
            });
        }
        if wanted.has(ReportTopic::Links) {
            let (before, after) = (by_name(&self.interfaces), by_name(&after.interfaces));
            found.compare(
                &before,
                &after,
                |old, new| is_other_link(old, new),
                |link| RunReport { link: Some((*link).clone()), ..RunReport::default() },
            );
        }
        found.reports()
    }
}

/// Reports about differences: deletions, and for each topic the entries that were added or changed.
#[derive(Default)]
struct Differences {
    deleted: Vec<RunReport>,
    set: Vec<Vec<RunReport>>,
    /// Number of differences beyond [`REPORTS_MAX`].
    lost: usize,
}

impl Differences {
    fn compare<K: Ord, V>(
        &mut self,
        before: &BTreeMap<K, V>,
        after: &BTreeMap<K, V>,
        is_changed: impl Fn(&V, &V) -> bool,
        report: impl Fn(&V) -> RunReport,
    ) {
        let mut gone = before.iter().filter(|(key, _)| !after.contains_key(key));
        let deleted = gone.by_ref().take(REPORTS_MAX);
        self.deleted.extend(deleted.map(|(_, old)| RunReport { deleted: true, ..report(old) }));
        let is_new = |(key, new): &(&K, &V)| before.get(key).is_none_or(|old| is_changed(old, new));
        let mut new = after.iter().filter(is_new);
        self.set.push(new.by_ref().take(REPORTS_MAX).map(|(_, new)| report(new)).collect());
        self.lost += gone.count() + new.count();
    }

    /// Returns all reports in their order. New entries are reported in the reverse order of the
    /// topics, because an address needs its link, and a route its address.
    fn reports(self) -> Vec<RunReport> {
        let lost = (self.lost > 0)
            .then(|| RunReport { lost: Some(self.lost as u64), ..RunReport::default() });
        self.deleted.into_iter().chain(self.set.into_iter().rev().flatten()).chain(lost).collect()
    }
}

fn by_host(neighbors: &[Neighbor]) -> BTreeMap<(&str, IpAddr), &Neighbor> {
    neighbors.iter().map(|known| ((known.dev.as_str(), known.address), known)).collect()
}

/// Identity of a route: next hops of one multipath route have equal keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RouteKey<'a> {
    to: Prefix,
    metric: Option<u32>,
    /// Number of the origin, and for routes of the kernel of their protocol.
    origin: (u8, u8),
    /// Interface, unless the route may be a next hop of a multipath route.
    alone_on: Option<&'a str>,
}

fn by_network(routes: &[Route]) -> BTreeMap<RouteKey<'_>, Vec<&Route>> {
    let mut all = BTreeMap::<RouteKey<'_>, Vec<&Route>>::new();
    for route in routes {
        let origin = match route.origin {
            Origin::Static => (0, 0),
            Origin::Link => (1, 0),
            Origin::Router => (2, 0),
            Origin::Kernel(protocol) => (3, protocol),
        };
        let is_routed =
            route.via.is_some() && route.kind.is_none_or(|kind| kind == RouteKind::Unicast);
        let dev = route.dev.as_ref().map_or("", Word::as_str);
        let alone_on = (!is_routed).then_some(dev);
        let key = RouteKey { to: route.to, metric: route.metric, origin, alone_on };
        all.entry(key).or_default().push(route);
    }
    all
}

/// An address and its interface.
struct HeldAddress<'a> {
    interface: &'a Interface,
    address: &'a Address,
}

impl HeldAddress<'_> {
    fn report(&self) -> InterfaceAddress {
        let Interface { index, name, .. } = self.interface;
        InterfaceAddress { index: *index, dev: name.clone(), address: self.address.clone() }
    }
}

fn by_address(interfaces: &[Interface]) -> BTreeMap<(&str, Prefix), HeldAddress<'_>> {
    let all = interfaces.iter().flat_map(|interface| {
        let name = interface.name.as_str();
        let held = move |address| ((name, prefix_of(address)), HeldAddress { interface, address });
        interface.addresses.iter().map(held)
    });
    all.collect()
}

fn prefix_of(address: &Address) -> Prefix {
    address.address
}

/// Returns whether an address has changed. Remaining lifetimes always decrease, so only a longer
/// one is a change: the address was renewed.
fn has_changed(old: &Address, new: &Address) -> bool {
    let is_renewed = |old: Option<u64>, new: Option<u64>| match (old, new) {
        (Some(old), Some(new)) => new > old,
        (old, new) => old != new,
    };
    (old.state, old.origin) != (new.state, new.origin)
        || is_renewed(old.valid_s, new.valid_s)
        || is_renewed(old.preferred_s, new.preferred_s)
}

fn by_name(interfaces: &[Interface]) -> BTreeMap<&str, &Interface> {
    interfaces.iter().map(|interface| (interface.name.as_str(), interface)).collect()
}

/// Returns whether two states of a link differ in more than their addresses and traffic.
fn is_other_link(old: &Interface, new: &Interface) -> bool {
    let Interface { index, kind, mac, mtu, up, carrier, .. } = old;
    (*index, *kind, *mac, *mtu, *up, *carrier)
        != (new.index, new.kind, new.mac, new.mtu, new.up, new.carrier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{AddressState, Kind, NeighborState, Traffic};

    fn address(text: &str, valid_s: Option<u64>) -> Address {
        Address {
            address: text.parse().unwrap(),
            state: AddressState::Preferred,
            origin: Origin::Static,
            valid_s,
            preferred_s: valid_s,
        }
    }

    fn interface(name: &'static str, addresses: Vec<Address>) -> Interface {
        Interface {
            index: 2,
            name: Word::known(name),
            kind: Kind::Ethernet,
            mac: None,
            mtu: 1500,
            up: true,
            carrier: None,
            addresses,
            traffic: Traffic::default(),
        }
    }

    fn route(to: &str, via: Option<&str>) -> Route {
        let via = via.map(|via| via.parse().unwrap());
        Route { to: to.parse().unwrap(), via, dev: Some(Word::known("a")), ..Route::default() }
    }

    fn neighbor(state: NeighborState) -> Neighbor {
        let (dev, address) = (Word::known("a"), "10.0.0.9".parse().unwrap());
        Neighbor { address, dev, mac: None, state, router: false }
    }

    fn view(interfaces: Vec<Interface>, routes: Vec<Route>, neighbors: Vec<Neighbor>) -> NetView {
        let (interfaces, routes) = (Arc::new(interfaces), Arc::new(routes));
        NetView { interfaces, routes, neighbors: Arc::new(neighbors) }
    }

    const ALL: [ReportTopic; 4] =
        [ReportTopic::Links, ReportTopic::Addresses, ReportTopic::Routes, ReportTopic::Neighbors];

    /// Formats reports as words, such as `-route` for a deletion.
    fn words(reports: &[RunReport]) -> Vec<String> {
        let word = |report: &RunReport| {
            let sign = if report.deleted { '-' } else { '+' };
            let name = match report {
                RunReport { link: Some(_), .. } => "link",
                RunReport { address: Some(_), .. } => "address",
                RunReport { route: Some(_), .. } => "route",
                RunReport { neighbor: Some(_), .. } => "neighbor",
                _ => "nothing",
            };
            format!("{sign}{name}")
        };
        reports.iter().map(word).collect()
    }

    #[test]
    fn additions_begin_with_the_link_and_deletions_end_with_it() {
        let none = view(vec![], vec![], vec![]);
        let all = view(
            vec![interface("a", vec![address("10.0.0.1/24", None)])],
            vec![route("10.0.0.0/24", None)],
            vec![neighbor(NeighborState::Reachable)],
        );
        let wanted = Subscription::to(&ALL);
        let added = words(&none.changes(&all, &wanted));
        assert_eq!(added, ["+link", "+address", "+route", "+neighbor"]);
        let deleted = words(&all.changes(&none, &wanted));
        assert_eq!(deleted, ["-neighbor", "-route", "-address", "-link"]);
        assert!(all.changes(&all.clone(), &wanted).is_empty());
        for (topic, name) in ALL.iter().zip(["+link", "+address", "+route", "+neighbor"]) {
            assert_eq!(words(&none.changes(&all, &Subscription::to(&[*topic]))), [name]);
        }
    }

    #[test]
    fn traffic_and_passing_time_are_no_changes() {
        let before =
            view(vec![interface("a", vec![address("fd00::1/64", Some(60))])], vec![], vec![]);
        let mut moved = interface("a", vec![address("fd00::1/64", Some(59))]);
        moved.traffic.rx_packets = 7;
        let wanted = Subscription::to(&ALL);
        assert!(before.changes(&view(vec![moved.clone()], vec![], vec![]), &wanted).is_empty());
        moved.addresses[0].valid_s = Some(600);
        let renewed = before.changes(&view(vec![moved.clone()], vec![], vec![]), &wanted);
        assert_eq!(words(&renewed), ["+address"]);
        (moved.up, moved.addresses[0].valid_s) = (false, Some(60));
        assert_eq!(words(&before.changes(&view(vec![moved], vec![], vec![]), &wanted)), ["+link"]);
    }

    #[test]
    fn changes_beyond_the_limit_are_counted() {
        let routes = (0..REPORTS_MAX as u32 + 2)
            .map(|n| Route { metric: Some(n), ..route("10.9.0.0/16", Some("10.0.0.2")) });
        let (none, all) = (NetView::default(), view(vec![], routes.collect(), vec![]));
        let wanted = Subscription::to(&[ReportTopic::Routes]);
        for (reports, deleted) in
            [(none.changes(&all, &wanted), false), (all.changes(&none, &wanted), true)]
        {
            assert_eq!(reports.len(), REPORTS_MAX + 1);
            let (last, before) = reports.split_last().unwrap();
            assert_eq!(*last, RunReport { lost: Some(2), ..RunReport::default() });
            assert!(before.iter().all(|report| report.route.is_some()));
            assert!(before.iter().all(|report| report.deleted == deleted));
        }
    }

    #[test]
    fn a_route_is_reported_with_all_its_next_hops() {
        let hops = ["10.0.0.2", "10.0.0.3"].map(|via| route("10.9.0.0/16", Some(via)));
        let one = view(vec![], hops[..1].to_vec(), vec![]);
        let two = view(vec![], hops.to_vec(), vec![]);
        let wanted = Subscription::to(&[ReportTopic::Routes]);
        let grown = one.changes(&two, &wanted);
        assert_eq!(words(&grown), ["+route"]);
        assert_eq!(grown[0].route.as_deref(), Some(&hops[..]));
        let gone = two.changes(&NetView::default(), &wanted);
        assert_eq!(
            (words(&gone), gone[0].route.as_deref()),
            (vec!["-route".into()], Some(&hops[..]))
        );
        let replaced = view(vec![], vec![route("10.9.0.0/16", Some("10.0.0.4"))], vec![]);
        assert_eq!(words(&one.changes(&replaced, &wanted)), ["+route"], "as of ip(8): no deletion");
        let other = view(vec![], vec![Route { metric: Some(5), ..hops[0].clone() }], vec![]);
        assert_eq!(words(&one.changes(&other, &wanted)), ["-route", "+route"]);
    }
}
