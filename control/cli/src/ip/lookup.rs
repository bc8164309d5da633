//! Formats the output of `towpath ip route get`: the route that packets to a destination take.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Map, Value, json};
use towpath_model::{DestinationKind, FoundRoute, RouteLookup};

/// Formats the result of a route lookup as two lines, or with `oneline` as one.
pub(super) fn text(lookup: &RouteLookup, found: &FoundRoute, oneline: bool) -> String {
    let mut out = String::new();
    if let Some(kind) = destination_kind(found) {
        let _ = write!(out, "{kind} ");
    }
    let _ = write!(out, "{} ", lookup.to);
    if let Some(from) = lookup.from {
        let _ = write!(out, "from {from} ");
    }
    if let Some(via) = found.via {
        let _ = write!(out, "via {via} ");
    }
    let _ = write!(out, "dev {} ", found.dev);
    if lookup.from.is_none() {
        let _ = write!(out, "src {} ", found.source);
    }
    out.push_str(if oneline { "\\" } else { "\n" });
    out.push_str("    cache ");
    let flags = cache_flags(found);
    if !flags.is_empty() {
        let _ = write!(out, "<{}> ", flags.join(","));
    }
    if found.mtu_is_lower {
        let _ = write!(out, "mtu {} ", found.mtu);
    }
    out.push('\n');
    out
}

/// Returns the word for the kind of a destination; `None` for unicast.
fn destination_kind(found: &FoundRoute) -> Option<&'static str> {
    match found.kind {
        DestinationKind::Unicast => None,
        DestinationKind::Local => Some("local"),
        DestinationKind::Broadcast => Some("broadcast"),
        DestinationKind::Multicast => Some("multicast"),
    }
}

/// Returns the flags that Linux shows for a cached route to this kind of destination.
fn cache_flags(found: &FoundRoute) -> &'static [&'static str] {
    match found.kind {
        DestinationKind::Unicast => &[],
        DestinationKind::Local => &["local"],
        DestinationKind::Broadcast => &["local", "brd"],
        DestinationKind::Multicast => &["mc"],
    }
}

/// Formats the result of a route lookup as a JSON array.
pub(super) fn json(lookup: &RouteLookup, found: &FoundRoute, pretty: bool) -> Result<String> {
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| drop(row.insert(key.to_owned(), value));
    if let Some(kind) = destination_kind(found) {
        put("type", kind.into());
    }
    put("dst", lookup.to.to_string().into());
    if let Some(from) = lookup.from {
        put("from", from.to_string().into());
    }
    if let Some(via) = found.via {
        put("gateway", via.to_string().into());
    }
    put("dev", found.dev.as_str().into());
    if lookup.from.is_none() {
        put("prefsrc", found.source.to_string().into());
    }
    put("flags", json!([]));
    put("cache", cache_flags(found).into());
    if found.mtu_is_lower {
        put("metrics", json!([{ "mtu": found.mtu }]));
    }
    let rows = json!([row]);
    let text = match pretty {
        true => serde_json::to_string_pretty(&rows)?,
        false => serde_json::to_string(&rows)?,
    };
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use towpath_model::Word;

    use super::*;

    fn found(kind: DestinationKind, via: Option<&str>) -> FoundRoute {
        let address = |text: &str| text.parse().expect("an address");
        FoundRoute {
            via: via.map(address),
            dev: Word::known("lan"),
            source: address("10.1.0.2"),
            mtu: 1400,
            mtu_is_lower: via.is_some(),
            kind,
        }
    }

    fn lookup(to: &str) -> RouteLookup {
        RouteLookup { to: to.parse().expect("an address"), from: None, dev: None }
    }

    #[test]
    fn the_text_is_that_of_ip() {
        let via = found(DestinationKind::Unicast, Some("10.1.0.1"));
        let wanted = "192.0.2.1 via 10.1.0.1 dev lan src 10.1.0.2 \n    cache mtu 1400 \n";
        assert_eq!(text(&lookup("192.0.2.1"), &via, false), wanted);
        let from = RouteLookup { from: Some("10.1.0.2".parse().unwrap()), ..lookup("192.0.2.1") };
        let wanted = "192.0.2.1 from 10.1.0.2 via 10.1.0.1 dev lan \\    cache mtu 1400 \n";
        assert_eq!(text(&from, &via, true), wanted);
        let local = found(DestinationKind::Local, None);
        let wanted = "local 10.1.0.2 dev lan src 10.1.0.2 \n    cache <local> \n";
        assert_eq!(text(&lookup("10.1.0.2"), &local, false), wanted);
    }

    #[test]
    fn json_has_the_keys_of_ip() {
        let via = found(DestinationKind::Unicast, Some("10.1.0.1"));
        let got: Value =
            serde_json::from_str(&json(&lookup("192.0.2.1"), &via, false).unwrap()).unwrap();
        let wanted = json!([{
            "dst": "192.0.2.1", "gateway": "10.1.0.1", "dev": "lan", "prefsrc": "10.1.0.2",
            "flags": [], "cache": [], "metrics": [{"mtu": 1400}],
        }]);
        assert_eq!(got, wanted);
    }
}
