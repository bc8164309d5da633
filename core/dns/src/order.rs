//! Sorts the addresses of a name (RFC 6724 §6), by the source address that the stack would use for
//! each.
//!
//! The rules and the policy tables are those of glibc (gai.conf(5)). The tables of glibc are older
//! than RFC 6724.

use std::cmp::Ordering::{self, Equal};
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of addresses that callers should pass to be sorted. Each address needs a route
/// lookup, and is compared with all others.
pub const ADDRESSES_MAX: usize = 256;
/// Scopes of RFC 4007. RFC 6724 §3.1 assigns them to unicast addresses as well.
const LINK_LOCAL: u32 = 2;
const SITE_LOCAL: u32 = 5;
const GLOBAL: u32 = 14;

/// A destination address, and the source address that the stack would use for it.
#[derive(Debug, Clone, Copy)]
pub struct Routed {
    /// Destination: one of the addresses of a name.
    pub destination: IpAddr,
    /// Source address; `None` if there is no route to the destination.
    pub source: Option<IpAddr>,
    /// Prefix length of the network of `source`, in bits.
    pub prefix_len: u32,
}

/// A policy table. Its entries are a prefix, the prefix length in bits, and a value; the longest
/// prefix comes first.
type Table = Vec<(u128, u32, u32)>;

/// Policy tables of gai.conf(5), which determine the order of destination addresses.
#[derive(Debug)]
pub struct Policy {
    labels: Table,
    precedences: Table,
    v4_scopes: Table,
}

impl Policy {
    /// Parses the text of gai.conf(5). If the text has at least one line for a policy table, the
    /// default entries of that table are not used.
    pub fn new(text: &str) -> Self {
        let mut tables = [Table::new(), Table::new(), Table::new()];
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let table = match words.next() {
                Some("label") => 0,
                Some("precedence") => 1,
                Some("scopev4") => 2,
                _ => continue,
            };
            let entry = words.next().and_then(prefix).zip(words.next());
            let entry =
                entry.and_then(|((bits, len), value)| Some((bits, len, value.parse().ok()?)));
            tables[table].extend(entry);
        }
        let [labels, precedences, v4_scopes] = tables;
        let defaults = |given: Table, own: &[(&str, u32)], rest: u32| {
            let own = own
                .iter()
                .filter_map(|(text, value)| prefix(text).map(|(bits, len)| (bits, len, *value)));
            let mut table: Table = if given.is_empty() { own.collect() } else { given };
            table.push((0, 0, rest));
            // The sort is stable: of several lines for the same prefix, the first one remains in
            // front.
            table.sort_by_key(|(_, len, _)| std::cmp::Reverse(*len));
            table
        };
        Self {
            labels: defaults(labels, LABELS, 1),
            precedences: defaults(precedences, PRECEDENCES, 40),
            v4_scopes: defaults(v4_scopes, V4_SCOPES, GLOBAL),
        }
    }

    /// Returns the indices of `all` in the order in which a program should try the destinations.
    ///
    /// The function uses an insertion sort, because the order is not total: rule 9 compares only
    /// addresses of the same family. The sorts of the standard library may panic for such an order.
    pub fn sort(&self, all: &[Routed]) -> Vec<usize> {
        let mut order: Vec<usize> = Vec::with_capacity(all.len());
        for place in 0..all.len() {
            let behind = order.iter().rposition(|at| self.compare(&all[*at], &all[place]).is_le());
            order.insert(behind.map_or(0, |at| at + 1), place);
        }
        order
    }

    /// Compares two destinations by the rules of RFC 6724 §6. Rules on address states that the
    /// stack does not have are left out.
    fn compare(&self, a: &Routed, b: &Routed) -> Ordering {
        let scope = |ip: IpAddr| self.scope(ip);
        let fits_scope = |r: &Routed| r.source.map(scope) == Some(scope(r.destination));
        let label = |ip: IpAddr| value(&self.labels, ip);
        let fits_label = |r: &Routed| r.source.map(label) == Some(label(r.destination));
        let precedence = |r: &Routed| value(&self.precedences, r.destination);
        // Rules 1, 2, 5 and 6 prefer the destination with the larger value, and rule 8 prefers the
        // smaller scope. Rule 9 applies only to addresses of the same family.
        let first = b.source.is_some().cmp(&a.source.is_some());
        first
            .then_with(|| fits_scope(b).cmp(&fits_scope(a)))
            .then_with(|| fits_label(b).cmp(&fits_label(a)))
            .then_with(|| precedence(b).cmp(&precedence(a)))
            .then_with(|| scope(a.destination).cmp(&scope(b.destination)))
            .then_with(|| if is_v4(a) == is_v4(b) { common(b).cmp(&common(a)) } else { Equal })
    }

    fn scope(&self, ip: IpAddr) -> u32 {
        match ip.to_canonical() {
            ip @ IpAddr::V4(_) => value(&self.v4_scopes, ip),
            IpAddr::V6(ip) if ip.is_multicast() => u32::from(ip.octets()[1] & 15),
            IpAddr::V6(ip) if ip.is_loopback() || ip.is_unicast_link_local() => LINK_LOCAL,
            IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => SITE_LOCAL,
            IpAddr::V6(_) => GLOBAL,
        }
    }
}

fn is_v4(routed: &Routed) -> bool {
    routed.destination.to_canonical().is_ipv4()
}

/// Returns the number of leading bits that a destination has in common with its source address.
///
/// As in glibc, bits of an IPv4 address count only if it is in the source's network. Otherwise
/// sorting would undo round-robin DNS, which distributes clients among servers.
fn common(routed: &Routed) -> u32 {
    let Some(source) = routed.source else { return 0 };
    let (a, b) = (mapped(routed.destination), mapped(source));
    let bits = (a ^ b).leading_zeros();
    if is_v4(routed) && bits < 96 + routed.prefix_len { 0 } else { bits }
}

/// Returns the bits of an address as those of an IPv6 address; an IPv4 address becomes
/// `::ffff:a.b.c.d`.
fn mapped(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn value(table: &Table, ip: IpAddr) -> u32 {
    let ip = mapped(ip);
    let is_in = |bits: u128, len: u32| len == 0 || (ip ^ bits) >> (128 - len) == 0;
    table.iter().find(|(bits, len, _)| is_in(*bits, *len)).map_or(0, |(.., value)| *value)
}

fn prefix(text: &str) -> Option<(u128, u32)> {
    let (ip, len) = text.split_once('/').unwrap_or((text, "128"));
    let (ip, len): (Ipv6Addr, u32) = (ip.parse().ok()?, len.parse().ok()?);
    (len <= 128).then_some((ip.to_bits(), len))
}

/// Default tables of glibc (gai.conf(5) of Debian). The value for addresses without an entry is not
/// in the tables.
const LABELS: &[(&str, u32)] = &[
    ("::1/128", 0),
    ("2002::/16", 2),
    ("::/96", 3),
    ("::ffff:0:0/96", 4),
    ("fec0::/10", 5),
    ("fc00::/7", 6),
    ("2001:0::/32", 7),
];
const PRECEDENCES: &[(&str, u32)] =
    &[("::1/128", 50), ("2002::/16", 30), ("::/96", 20), ("::ffff:0:0/96", 10)];
const V4_SCOPES: &[(&str, u32)] =
    &[("::ffff:169.254.0.0/112", LINK_LOCAL), ("::ffff:127.0.0.0/104", LINK_LOCAL)];

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorts destinations, each given with its source address ("" if it has no route), and returns
    /// the sorted destinations.
    fn sorted<'a>(gai: &str, rows: &[(&'a str, &str)]) -> Vec<&'a str> {
        let routed: Vec<_> = rows
            .iter()
            .map(|(to, from)| Routed {
                destination: to.parse().unwrap(),
                source: from.parse().ok(),
                prefix_len: 24,
            })
            .collect();
        let places = Policy::new(gai).sort(&routed);
        places.into_iter().map(|place| rows[place].0).collect()
    }

    /// Tests those examples of RFC 6724 §10.2 whose result is the same with glibc's tables.
    #[test]
    fn examples_of_the_rfc() {
        let v6 = ("2001:db8:1::1", "2001:db8:1::2");
        let rows = [
            (vec![("198.51.100.121", "198.51.100.117"), v6], "2001:db8:1::1"),
            (vec![v6, ("198.51.100.121", "")], "2001:db8:1::1"),
            (
                vec![("2001:db8:1::1", "fe80::1"), ("198.51.100.121", "198.51.100.117")],
                "198.51.100.121",
            ),
            (vec![("2001:db8:1::1", "2001:db8:1::2"), ("fe80::1", "fe80::2")], "fe80::1"),
            (vec![("2002:c633:6401::1", "2002:c633:6401::2"), v6], "2001:db8:1::1"),
            (vec![("2001:db8:3ffe::1", "2001:db8:1::2"), v6], "2001:db8:1::1"),
            (vec![("2001:db8:1::1", "fd00::2"), ("10.1.2.3", "10.1.2.4")], "10.1.2.3"),
            (vec![("198.51.100.121", "198.51.100.117"), ("2001:db8:1::1", "")], "198.51.100.121"),
        ];
        for (destinations, first) in rows {
            assert_eq!(sorted("", &destinations)[0], first, "{destinations:?}");
            let mut turned = destinations.clone();
            turned.reverse();
            assert_eq!(sorted("", &turned)[0], first, "{turned:?}");
        }
    }

    #[test]
    fn the_nameservers_order_is_left() {
        let from = "192.0.2.100";
        let spread = [("198.51.100.9", from), ("192.0.3.1", from), ("198.51.100.1", from)];
        assert_eq!(sorted("", &spread), ["198.51.100.9", "192.0.3.1", "198.51.100.1"]);
        // A destination in the source address's own network comes first.
        let near = [("198.51.100.9", from), ("192.0.2.1", from)];
        assert_eq!(sorted("", &near), ["192.0.2.1", "198.51.100.9"]);
    }

    #[test]
    fn the_users_tables_count() {
        let rows = [("2001:db8:1::1", "2001:db8:1::2"), ("198.51.100.1", "198.51.100.117")];
        assert_eq!(sorted("# precedence ::ffff:0:0/96 100\n", &rows)[0], "2001:db8:1::1");
        assert_eq!(sorted("precedence ::ffff:0:0/96  100\n", &rows)[0], "198.51.100.1");
        assert_eq!(sorted("label 2001:db8:1::2/128 9\n", &rows)[0], "198.51.100.1");
        let scopes = [("198.51.100.1", "198.51.100.2"), ("10.0.0.1", "10.0.0.2")];
        assert_eq!(sorted("scopev4 ::ffff:10.0.0.0/104 5\n", &scopes)[0], "10.0.0.1");
    }

    /// If the comparison is circular, the sort still ends, and returns every address.
    #[test]
    fn circles_end() {
        let rows = [
            ("2001:db8::1", "2001:db8:8000::1"),
            ("198.51.100.1", "198.51.100.2"),
            ("2001:db8:8000::2", "2001:db8:8000::1"),
        ];
        let equal = "precedence ::/0 1\nlabel ::/0 1\n";
        assert_eq!(sorted(equal, &rows).len(), 3);
    }
}
