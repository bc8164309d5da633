//! Where a packet goes: routes, longest prefix first.
//!
//! There is one hash table for each prefix length in use, so that a lookup costs as many probes as
//! there are lengths, however many routes or sockets there are. Equal prefixes are ordered by metric.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hashbrown::HashMap;
use towpath_tcp::Instant;
use towpath_wire::Prefix;

use super::hash::Cheap;
use super::iface::{IfaceId, Origin};

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
    /// Until when it exists; `None` for ever.
    pub expires: Option<Instant>,
    /// Its router does not answer: used only when there is no other (RFC 4861 §6.3.6).
    pub unreachable: bool,
}

impl RouteEntry {
    fn order(&self) -> (bool, u32) {
        (self.unreachable, self.metric)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix
            && self.next_hop == other.next_hop
            && self.iface == other.iface
            && self.origin == other.origin
    }
}

/// All routes of both families.
#[derive(Debug, Default)]
pub(super) struct RouteTable {
    v4: Family,
    v6: Family,
    /// In order of adding, for listing and expiry.
    entries: Vec<RouteEntry>,
    generation: u64,
}

/// Routes by network, for one prefix length.
type ByNetwork = HashMap<u128, Vec<RouteEntry>, Cheap>;

/// Longest prefix first.
#[derive(Debug, Default)]
struct Family(Vec<(u8, ByNetwork)>);

impl RouteTable {
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Something that routes depend on has changed: addresses, path MTUs, neighbours.
    pub(super) fn touch(&mut self) {
        self.generation += 1;
    }

    /// Adds a route, or replaces the same one's metric and lifetime.
    pub(super) fn add(&mut self, entry: RouteEntry) {
        let entry = RouteEntry { prefix: entry.prefix.trunc(), ..entry };
        self.entries.retain(|old| !old.is_same(&entry));
        self.entries.push(entry);
        self.rebuild(entry.prefix);
    }

    /// Removes the routes for which `gone` is true.
    pub(super) fn remove(&mut self, mut gone: impl FnMut(&RouteEntry) -> bool) -> usize {
        let mut prefixes = Vec::new();
        self.entries.retain(|entry| {
            let gone = gone(entry);
            if gone {
                prefixes.push(entry.prefix);
            }
            !gone
        });
        for prefix in &prefixes {
            self.rebuild(*prefix);
        }
        prefixes.len()
    }

    /// Says whether the router `next_hop` answers.
    pub(super) fn set_unreachable(&mut self, iface: IfaceId, next_hop: IpAddr, unreachable: bool) {
        let mut changed = Vec::new();
        for entry in &mut self.entries {
            let hit = entry.iface == iface && entry.next_hop == Some(next_hop);
            if hit && entry.unreachable != unreachable {
                entry.unreachable = unreachable;
                changed.push(entry.prefix);
            }
        }
        for prefix in changed {
            self.rebuild(prefix);
        }
    }

    /// The best route to `dst`, only through `iface` when one is given.
    pub(super) fn lookup(&self, dst: IpAddr, iface: Option<IfaceId>) -> Option<&RouteEntry> {
        let family = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        family.0.iter().find_map(|(len, by_network)| {
            let routes = by_network.get(&network_bits(dst, *len))?;
            match iface {
                Some(iface) => routes.iter().find(|route| route.iface == iface),
                None => routes.first(),
            }
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RouteEntry> {
        self.entries.iter()
    }

    /// Brings the tables for one prefix in line with `entries`.
    fn rebuild(&mut self, prefix: Prefix) {
        self.generation += 1;
        let mut routes: Vec<_> =
            self.entries.iter().filter(|entry| entry.prefix == prefix).copied().collect();
        routes.sort_by_key(RouteEntry::order);
        let family = if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        family.set(prefix, routes);
    }
}

impl Family {
    fn set(&mut self, prefix: Prefix, routes: Vec<RouteEntry>) {
        let network = network_bits(prefix.addr(), prefix.len());
        // Longest first: a length is before those that are shorter.
        let at = match self.0.binary_search_by(|(len, _)| prefix.len().cmp(len)) {
            Ok(at) => at,
            Err(_) if routes.is_empty() => return,
            Err(at) => {
                self.0.insert(at, (prefix.len(), ByNetwork::default()));
                at
            }
        };
        let by_network = &mut self.0[at].1;
        if routes.is_empty() {
            by_network.remove(&network);
        } else {
            by_network.insert(network, routes);
        }
        if by_network.is_empty() {
            self.0.remove(at);
        }
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
/// that do not need the policy of an operator, in their order). `deprecated` and `other_iface` say
/// what is known of the candidate.
pub(super) fn source_rank(
    src: IpAddr,
    dst: IpAddr,
    deprecated: bool,
    other_iface: bool,
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
        common_prefix_len(src, dst),
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

/// Rule 8; beyond the 64 bits of a link's prefix equal bits mean nothing.
fn common_prefix_len(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => common_v4(a, b),
        (IpAddr::V6(a), IpAddr::V6(b)) => common_v6(a, b).min(64),
        _ => 0,
    }
}

fn common_v4(a: Ipv4Addr, b: Ipv4Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
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
            expires: None,
            unreachable: false,
        }
    }

    fn hop(table: &RouteTable, dst: &str) -> Option<(u16, u32)> {
        table.lookup(dst.parse().unwrap(), None).map(|route| (route.iface.0, route.metric))
    }

    #[test]
    fn the_longest_prefix_wins_then_the_smallest_metric() {
        let mut table = RouteTable::default();
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
        assert_eq!(through.iface, IfaceId(1));
    }

    #[test]
    fn removing_and_unreachable_routers_uncover_the_next_best() {
        let mut table = RouteTable::default();
        table.add(entry("0.0.0.0/0", Some("10.0.0.1"), 1, 1));
        table.add(entry("0.0.0.0/0", Some("10.0.0.2"), 1, 2));
        let before = table.generation();
        table.set_unreachable(IfaceId(1), "10.0.0.1".parse().unwrap(), true);
        assert!(table.generation() > before);
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 2)));
        table.set_unreachable(IfaceId(1), "10.0.0.1".parse().unwrap(), false);
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 1)));
        assert_eq!(table.remove(|route| route.metric == 1), 1);
        assert_eq!(hop(&table, "8.8.8.8"), Some((1, 2)));
        assert_eq!(table.remove(|_| true), 1);
        assert_eq!(hop(&table, "8.8.8.8"), None);
        assert!(table.v4.0.is_empty());
    }

    #[test]
    fn a_route_added_again_replaces_itself() {
        let mut table = RouteTable::default();
        table.add(entry("10.0.0.0/8", None, 1, 1));
        table.add(entry("10.0.0.0/8", None, 1, 3));
        assert_eq!(hop(&table, "10.0.0.1"), Some((1, 3)));
        assert_eq!(table.iter().count(), 1);
    }

    #[test]
    fn sources_are_ranked_by_scope_then_state_then_prefix() {
        let rank = |src: &str, dst: &str| {
            source_rank(src.parse().unwrap(), dst.parse().unwrap(), false, false)
        };
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fe80::1", "2001:db8::2"));
        assert!(rank("fe80::1", "fe80::2") > rank("2001:db8::1", "fe80::2"));
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fd00::1", "2001:db8::2"));
        assert!(rank("fd00::1", "fd00::2") > rank("2001:db8::1", "fd00::2"));
        assert!(rank("10.0.0.1", "10.0.0.2") > rank("192.168.0.1", "10.0.0.2"));
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        assert!(source_rank(src, dst, false, true) > source_rank(src, dst, true, false));
    }
}
