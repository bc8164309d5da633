//! Where a packet goes: routes, longest prefix first.
//!
//! There is one hash table for each prefix length in use, so that a lookup costs as many probes as
//! there are lengths, however many routes or sockets there are. Equal prefixes are ordered by metric.
//! Whether a router answers is known once, in `gateways`, and not in each route through it: what a
//! neighbour says costs the same however many routes there are.

use core::net::{IpAddr, Ipv6Addr};

use hashbrown::HashMap;
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::gateways::{GatewayId, Gateways};
use super::hash::{Cheap, Keyed};
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

/// A way that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub entry: RouteEntry,
    /// A better route was passed over, because its router does not answer.
    pub avoids: bool,
}

/// All routes of both families.
#[derive(Debug)]
pub(super) struct RouteTable {
    v4: Family,
    v6: Family,
    gateways: Gateways,
    /// Routes added so far.
    added: u64,
    generation: u64,
}

/// An entry in its table.
#[derive(Debug)]
struct Stored {
    entry: RouteEntry,
    gateway: Option<GatewayId>,
    /// How many were added before it, for listing.
    nth: u64,
}

/// Routes by network, for one prefix length, those to a network by metric.
type ByNetwork = HashMap<u128, Vec<Stored>, Cheap>;

/// Longest prefix first.
#[derive(Debug, Default)]
struct Family(Vec<(u8, ByNetwork)>);

impl RouteTable {
    pub(super) fn new(keys: Keyed) -> Self {
        Self {
            v4: Family::default(),
            v6: Family::default(),
            gateways: Gateways::new(keys),
            added: 0,
            generation: 0,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Something that routes depend on has changed: addresses, path MTUs, neighbours.
    pub(super) fn touch(&mut self) {
        self.generation += 1;
    }

    /// Adds a route, or replaces the same one's metric. One that is there already changes nothing, so that
    /// what routers repeat makes nobody look for routes again.
    pub(super) fn add(&mut self, entry: RouteEntry) {
        let entry = RouteEntry { prefix: entry.prefix.trunc(), ..entry };
        let family = if entry.prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        let routes = family.routes_mut(entry.prefix);
        let known = routes.iter().position(|route| route.entry.is_same(&entry));
        if known.is_some_and(|at| routes[at].entry == entry) {
            return;
        }
        let gateway = entry.next_hop.map(|hop| self.gateways.hold((entry.iface, hop)));
        let mut nth = self.added;
        if let Some(old) = known.map(|at| routes.remove(at)) {
            nth = old.nth;
            old.gateway.into_iter().for_each(|gateway| self.gateways.release(gateway));
        }
        let place = routes.partition_point(|route| route.entry.metric <= entry.metric);
        routes.insert(place, Stored { entry, gateway, nth });
        self.added += 1;
        self.generation += 1;
    }

    /// Removes the routes to `prefix` for which `gone` is true.
    pub(super) fn remove(
        &mut self,
        prefix: Prefix,
        mut gone: impl FnMut(&RouteEntry) -> bool,
    ) -> usize {
        let family = if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        let mut count = 0;
        family.retain(prefix.trunc(), |route| {
            let gone = gone(&route.entry);
            if gone {
                count += 1;
                route.gateway.into_iter().for_each(|gateway| self.gateways.release(gateway));
            }
            !gone
        });
        self.generation += count as u64;
        count
    }

    /// Whether `hop` is a router that does not answer.
    pub(super) fn has_failed(&self, hop: &HopKey) -> bool {
        self.gateways.has_failed(hop)
    }

    /// A neighbour does not answer.
    pub(super) fn on_hop_failed(&mut self, now: Instant, hop: &HopKey) {
        self.generation += u64::from(self.gateways.on_failed(now, hop));
    }

    /// A neighbour answers (again).
    pub(super) fn on_hop_known(&mut self, hop: &HopKey) {
        self.generation += u64::from(self.gateways.on_known(hop));
    }

    /// The best route to `dst`, only through `iface` when one is given.
    pub(super) fn lookup(&self, dst: IpAddr, iface: Option<IfaceId>) -> Option<Choice> {
        let family = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        family.matching(dst).find_map(|routes| self.choose(routes, iface))
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
            match route.gateway.and_then(|gateway| self.gateways.failed_at(gateway)) {
                None => return Some(Choice { entry, avoids: failed.is_some() }),
                Some(at) if failed.is_none_or(|(first, _)| at < first) => {
                    failed = Some((at, entry))
                }
                Some(_) => {}
            }
        }
        failed.map(|(_, entry)| Choice { entry, avoids: false })
    }

    /// A router to be asked whether it answers again, because a packet goes to `dst` that would go to it:
    /// by one solicitation, and at most once a minute (RFC 4191 §3.5). Without traffic nobody is asked.
    pub(super) fn take_probe(&mut self, now: Instant, dst: IpAddr) -> Option<HopKey> {
        if now < self.gateways.probe_at() {
            return None;
        }
        let family = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        for route in family.matching(dst).next()? {
            // What follows a router that answers is worse than it.
            let gateway = route.gateway.filter(|id| self.gateways.failed_at(*id).is_some())?;
            if let Some(key) = self.gateways.take_probe(now, gateway) {
                return Some(key);
            }
        }
        None
    }

    /// All routes, in order of adding.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        let networks = self.v4.0.iter().chain(&self.v6.0).flat_map(|(_, by)| by.values());
        let mut all: Vec<_> = networks.flatten().collect();
        all.sort_by_key(|route| route.nth);
        all.into_iter().map(|route| &route.entry)
    }
}

impl Family {
    /// The routes to each network that `dst` is in, the smallest network first.
    fn matching(&self, dst: IpAddr) -> impl Iterator<Item = &[Stored]> {
        let lengths = self.0.iter();
        lengths.filter_map(move |(len, by)| by.get(&network_bits(dst, *len)).map(Vec::as_slice))
    }

    /// The routes to a network, whose table is made if need be.
    fn routes_mut(&mut self, prefix: Prefix) -> &mut Vec<Stored> {
        let at = match self.find(prefix) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (prefix.len(), ByNetwork::default()));
                at
            }
        };
        self.0[at].1.entry(network_bits(prefix.addr(), prefix.len())).or_default()
    }

    fn retain(&mut self, prefix: Prefix, keep: impl FnMut(&Stored) -> bool) {
        let Ok(at) = self.find(prefix) else { return };
        let by_network = &mut self.0[at].1;
        let network = network_bits(prefix.addr(), prefix.len());
        let Some(routes) = by_network.get_mut(&network) else { return };
        routes.retain(keep);
        if routes.is_empty() {
            by_network.remove(&network);
        }
        if by_network.is_empty() {
            self.0.remove(at);
        }
    }

    /// Where the table of a prefix length is or would be. Longest first: a length is before those that are
    /// shorter.
    fn find(&self, prefix: Prefix) -> Result<usize, usize> {
        self.0.binary_search_by(|(len, _)| prefix.len().cmp(len))
    }
}

fn network_bits(addr: IpAddr, len: u8) -> u128 {
    match addr {
        IpAddr::V4(addr) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            u128::from(addr.to_bits() & mask)
        }
        IpAddr::V6(addr) => {
            addr.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
        }
    }
}

/// How well `src` suits as a source for `dst`: the greater, the better (RFC 6724 §5, the rules
/// that do not need the policy of an operator, in their order). `deprecated`, `other_iface` and `near` say
/// what is known of the candidate; `near`: the next hop is in its subnet.
pub(super) fn source_rank(
    src: IpAddr,
    dst: IpAddr,
    deprecated: bool,
    other_iface: bool,
    near: bool,
) -> impl Ord {
    let (src_scope, dst_scope) = (scope(src), scope(dst));
    //= https://www.rfc-editor.org/rfc/rfc6724#section-5
    //# Rule 2: Prefer appropriate scope.
    //# If Scope(SA) < Scope(SB): If Scope(SA) < Scope(D), then prefer SB and
    //# otherwise prefer SA.
    let reaches = src_scope >= dst_scope;
    let scope_rank = if reaches { -i16::from(src_scope) } else { i16::from(src_scope) - 256 };
    (
        src == dst,
        reaches,
        scope_rank,
        !deprecated,
        !other_iface,
        label(src) == label(dst),
        // IPv4's addresses say nothing about where networks are: their common bits are chance.
        src.is_ipv4() && near,
        common_prefix_len(src, dst),
        near,
    )
}

/// Scope as in the multicast address's field: 2 link, 5 site, 14 global.
fn scope(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_link_local() => 2,
        IpAddr::V4(_) => 14,
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0x0f,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 14,
    }
}

/// Labels of the default policy table (RFC 6724 §2.1), as far as they tell sources apart.
fn label(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 4,
        IpAddr::V6(v6) if v6.is_loopback() => 0,
        IpAddr::V6(v6) if v6.is_unique_local() => 13,
        IpAddr::V6(v6) if v6.segments()[0] == 0x2002 => 2,
        IpAddr::V6(v6) if v6.segments()[..2] == [0x2001, 0] => 5,
        IpAddr::V6(_) => 1,
    }
}

/// Rule 8, for IPv6; beyond the 64 bits of a link's prefix equal bits mean nothing.
fn common_prefix_len(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V6(a), IpAddr::V6(b)) => common_v6(a, b).min(64),
        _ => 0,
    }
}

fn common_v6(a: Ipv6Addr, b: Ipv6Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
}

#[cfg(test)]
mod tests {
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
        let found = table.lookup(dst.parse().unwrap(), None);
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
        let through = table.lookup("10.1.0.1".parse().unwrap(), Some(IfaceId(1))).unwrap();
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
        assert!(table.v4.0.is_empty());
        assert!(!table.gateways.on_failed(Instant(1), &router("10.0.0.2")));
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
            let found = table.lookup(dst, None).unwrap();
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

    #[test]
    fn sources_are_ranked_by_scope_then_state_then_prefix() {
        let rank = |src: &str, dst: &str| {
            let dst = dst.parse().unwrap();
            let src: Prefix = format!("{src}/24").parse().unwrap();
            source_rank(src.addr(), dst, false, false, src.contains(dst))
        };
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fe80::1", "2001:db8::2"));
        assert!(rank("fe80::1", "fe80::2") > rank("2001:db8::1", "fe80::2"));
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fd00::1", "2001:db8::2"));
        assert!(rank("fd00::1", "fd00::2") > rank("2001:db8::1", "fd00::2"));
        assert!(rank("10.0.0.1", "10.0.0.2") > rank("192.168.0.1", "10.0.0.2"));
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let rank = |deprecated, other| source_rank(src, dst, deprecated, other, false);
        assert!(rank(false, true) > rank(true, false));
    }
}
