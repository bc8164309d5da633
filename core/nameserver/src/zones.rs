//! Zones whose names are never sent to upstream servers: special-use names (RFC 6761), and reverse
//! lookups of addresses without meaning in the Internet (RFC 6303).

use std::collections::BTreeMap;

use towpath_dns::Name;

/// Treatment of the names in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneKind {
    /// All names are those of the loopback addresses (RFC 6761 §6.3).
    Localhost,
    /// The zone contains only local names.
    Empty,
    /// As [`Self::Empty`], except that DS records are looked up upstream, which prove that the zone
    /// is not signed (RFC 8375 §4).
    Unsigned,
}

/// Domain names with a special meaning. `local` belongs to multicast DNS (RFC 6762 §22.1), `onion`
/// to Tor (RFC 7686), `resolver.arpa` to the next resolver (RFC 9462 §8.2).
const NAMES: &[(&str, ZoneKind)] = &[
    ("localhost", ZoneKind::Localhost),
    ("invalid", ZoneKind::Empty),
    ("test", ZoneKind::Empty),
    ("local", ZoneKind::Empty),
    ("onion", ZoneKind::Empty),
    ("resolver.arpa", ZoneKind::Empty),
    ("home.arpa", ZoneKind::Unsigned),
];

/// Reverse zones in `in-addr.arpa` (RFC 6303 §4.1 to 4.2). `private_v4` adds those with many parts.
const REVERSE_V4: &[&str] = &[
    "10",
    "168.192",
    "0",
    "127",
    "254.169",
    "2.0.192",
    "100.51.198",
    "113.0.203",
    "255.255.255.255",
];

/// Reverse zones in `ip6.arpa` (RFC 6303 §4.3 to 4.6).
const REVERSE_V6: &[&str] = &["d.f", "8.e.f", "9.e.f", "a.e.f", "b.e.f", "8.b.d.0.1.0.0.2"];

/// Zones that are answered locally.
#[derive(Debug)]
pub struct LocalZones(BTreeMap<Box<[u8]>, ZoneKind>);

/// A zone that contains a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundZone {
    /// Treatment of the zone's names.
    pub kind: ZoneKind,
    /// Offset of the zone's name in the encoded name.
    pub at: usize,
}

impl LocalZones {
    /// Creates the zones, to which `domain` is added.
    pub fn new(domain: Option<&Name>) -> Self {
        let named = NAMES.iter().map(|(name, kind)| ((*name).to_owned(), *kind));
        let v4 = REVERSE_V4.iter().map(|zone| format!("{zone}.in-addr.arpa")).chain(private_v4());
        let v6 = REVERSE_V6.iter().map(|zone| format!("{zone}.ip6.arpa"));
        // The addresses :: and ::1.
        let single = ["0", "1"].map(|last| format!("{last}.{}ip6.arpa", "0.".repeat(31)));
        let reverse = v4.chain(v6).chain(single).map(|name| (name, ZoneKind::Empty));
        let encoded = |(name, kind): (String, ZoneKind)| {
            let name = Name::new(name.as_bytes(), b"")?;
            Some((Box::from(name.wire()), kind))
        };
        let mut zones: BTreeMap<_, _> = named.chain(reverse).filter_map(encoded).collect();
        if let Some(domain) = domain {
            let lower = domain.wire().to_ascii_lowercase();
            zones.entry(lower.into_boxed_slice()).or_insert(ZoneKind::Empty);
        }
        Self(zones)
    }

    /// Returns the smallest zone that contains an encoded name in lower case.
    pub fn find(&self, name: &[u8]) -> Option<FoundZone> {
        let mut at = 0;
        while let Some(len) = name.get(at).filter(|len| **len > 0) {
            if let Some(kind) = self.0.get(&name[at..]) {
                return Some(FoundZone { kind: *kind, at });
            }
            at += 1 + usize::from(*len);
        }
        None
    }
}

/// Returns the reverse zones of 172.16.0.0/12 (RFC 1918) and 100.64.0.0/10 (RFC 7793).
fn private_v4() -> impl Iterator<Item = String> {
    let of_172 = (16..32).map(|n| format!("{n}.172.in-addr.arpa"));
    of_172.chain((64..128).map(|n| format!("{n}.100.in-addr.arpa")))
}
