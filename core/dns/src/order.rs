//! Sorts the addresses of a name (RFC 6724 §6), by the source addresses that a stack would use.
//!
//! Rules and tables are those of glibc (gai.conf(5)), whose tables are older than RFC 6724.

use std::cmp::Ordering::{self, Equal};
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of addresses that should be sorted, because each needs a look-up of its route and
/// is compared with all others.
pub const ADDRESSES_MAX: usize = 256;
/// Scopes of RFC 4007, which RFC 6724 §3.1 applies to unicast addresses as well.
const LINK_LOCAL: u32 = 2;
const SITE_LOCAL: u32 = 5;
const GLOBAL: u32 = 14;

/// A destination, and the source address by which the stack reaches it.
#[derive(Debug, Clone, Copy)]
pub struct Routed {
    /// An address of the name.
    pub destination: IpAddr,
    /// Source address; `None` without a route to the destination.
    pub source: Option<IpAddr>,
    /// Prefix length of the network of `source`, in bits.
    pub prefix_len: u32,
}

/// Entries of prefix, prefix length and value, the longest prefix first.
type Table = Vec<(u128, u32, u32)>;

/// Policy tables of gai.conf(5).
#[derive(Debug)]
pub struct Policy {
    labels: Table,
    precedences: Table,
    v4_scopes: Table,
}

impl Policy {
    /// Parses gai.conf(5). If the file has a line for a table, the default entries of that table do
    /// not apply.
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
            // The stable sort keeps the first of several lines for the same prefix in front.
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
    /// Sorts by insertion, because std's sorts may panic. The order is not total, since rule 9
    /// compares only addresses of the same family.
    pub fn sort(&self, all: &[Routed]) -> Vec<usize> {
        let mut order: Vec<usize> = Vec::with_capacity(all.len());
        for place in 0..all.len() {
            let behind = order.iter().rposition(|at| self.compare(&all[*at], &all[place]).is_le());
            order.insert(behind.map_or(0, |at| at + 1), place);
        }
        order
    }

    /// Compares two destinations by RFC 6724 §6, without the rules on address states that the stack
    /// does not have.
    fn compare(&self, a: &Routed, b: &Routed) -> Ordering {
        let scope = |ip: IpAddr| self.scope(ip);
        let fits_scope = |r: &Routed| r.source.map(scope) == Some(scope(r.destination));
        let label = |ip: IpAddr| value(&self.labels, ip);
        let fits_label = |r: &Routed| r.source.map(label) == Some(label(r.destination));
        let precedence = |r: &Routed| value(&self.precedences, r.destination);
        // Rules 1, 2, 5 and 6 prefer the larger value, rule 8 the smaller scope. Rule 9 applies to
        // addresses of the same family.
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

/// Returns the number of leading bits that a destination shares with its source. As in glibc, bits
/// of IPv4 addresses count only inside the source's network. Elsewhere they would undo the order by
/// which a nameserver distributes its clients.
fn common(routed: &Routed) -> u32 {
    let Some(source) = routed.source else { return 0 };
    let (a, b) = (mapped(routed.destination), mapped(source));
    let bits = (a ^ b).leading_zeros();
    if is_v4(routed) && bits < 96 + routed.prefix_len { 0 } else { bits }
}

/// Returns an address as IPv6 bits; IPv4 addresses become `::ffff:a.b.c.d`.
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

/// glibc's default tables (gai.conf(5) of Debian), without the entries for all other addresses.
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

    /// Destinations with their sources ("" for none), in the order that comes of it.
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

    /// The examples of RFC 6724 §10.2 that glibc's tables agree with.
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
        // A host of the stack's own network comes first.
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

    /// An order that is not total ends, and keeps every address.
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
