//! Formats objects as JSON with the keys of `ip -j`, limited to the attributes that a stack has.

use anyhow::Result;
use serde_json::{Map, Value, json};
use towpath_model::{Address, Interface, Neighbor, Net, Route, Word};

use super::grammar::Look;
use super::text::{self, Shape};

/// Formats the objects to print as a JSON array.
pub fn document(look: &Look, net: &Net, shape: Shape<'_>) -> Result<String> {
    let rows: Vec<Value> = match look {
        Look::Addresses { .. } => {
            let rows = text::addresses_of(look, net, shape).into_iter();
            rows.map(|(interface, addresses)| with_addresses(interface, &addresses, shape))
                .collect()
        }
        Look::Links { .. } => {
            let rows = text::interfaces_of(look, net);
            rows.map(|interface| link(interface, shape, true).into()).collect()
        }
        Look::Routes(_) => {
            let routes = text::routes_of(look, net, shape);
            text::next_hops(&routes).filter_map(|hops| route(hops, look, net)).collect()
        }
        Look::Neighbors { .. } => {
            let rows = text::neighbors_of(look, net, shape).into_iter();
            rows.map(|known| neighbor(known, look, shape)).collect()
        }
    };
    let text = match shape.pretty {
        true => serde_json::to_string_pretty(&rows)?,
        false => serde_json::to_string(&rows)?,
    };
    Ok(text + "\n")
}

/// Formats a link for `ip monitor`, which omits the link mode.
pub(super) fn changed_link(interface: &Interface) -> Value {
    link(interface, Shape::PLAIN, false).into()
}

/// Formats an entry of the neighbor table for `ip monitor`.
pub(super) fn changed_neighbor(known: &Neighbor) -> Value {
    neighbor(known, &text::ALL_NEIGHBORS, Shape::PLAIN)
}

fn link(interface: &Interface, shape: Shape<'_>, is_link: bool) -> Map<String, Value> {
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| drop(row.insert(key.to_owned(), value));
    let (kind, addresses) = text::link(interface);
    if !shape.brief {
        put("ifindex", interface.index.into());
    }
    put("ifname", interface.name.as_str().into());
    if !shape.brief {
        put("flags", text::flags(interface).into());
        put("mtu", interface.mtu.into());
    }
    put("operstate", text::state(interface).into());
    if shape.brief {
        if let (true, Some((own, _))) = (is_link, addresses) {
            put("address", own.to_string().into());
        }
        if is_link {
            put("flags", text::flags(interface).into());
        }
        return row;
    }
    if is_link {
        put("linkmode", "DEFAULT".into());
    }
    if is_link || shape.family.is_none() {
        put("link_type", kind.into());
        if let Some((own, all)) = addresses {
            put("address", own.to_string().into());
            put("broadcast", all.to_string().into());
        }
    }
    if is_link && shape.statistics {
        put("stats64", statistics(interface));
    }
    if is_link && let Some(port) = shape.port_of(interface) {
        let counters = port.counters.iter().map(|(name, value)| (name.to_string(), json!(value)));
        put("device", json!({"driver": port.driver, "counters": counters.collect::<Map<_, _>>()}));
    }
    row
}

fn statistics(interface: &Interface) -> Value {
    let traffic = interface.traffic;
    let way = |bytes: u64, packets: u64, dropped: u64| json!({"bytes": bytes, "packets": packets, "dropped": dropped});
    json!({
        "rx": way(traffic.rx_bytes, traffic.rx_packets, traffic.rx_dropped),
        "tx": way(traffic.tx_bytes, traffic.tx_packets, traffic.tx_dropped),
    })
}

fn with_addresses(interface: &Interface, addresses: &[&Address], shape: Shape<'_>) -> Value {
    let mut row = link(interface, shape, false);
    let info = addresses.iter().map(|address| match shape.brief {
        true => brief_address(address),
        false => full_address(address, &interface.name),
    });
    row.insert("addr_info".to_owned(), info.collect());
    if shape.statistics && !shape.brief {
        row.insert("stats64".to_owned(), statistics(interface));
    }
    row.into()
}

fn brief_address(address: &Address) -> Value {
    let prefix = address.address;
    json!({"local": prefix.addr(), "prefixlen": prefix.len()})
}

pub(super) fn full_address(address: &Address, dev: &Word) -> Value {
    // Represent an infinite lifetime by `u32::MAX`, as netlink and therefore ip(8) do.
    let left = |seconds: Option<u64>| seconds.unwrap_or(u32::MAX.into());
    let (prefix, addr) = (address.address, address.address.addr());
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| drop(row.insert(key.to_owned(), value));
    put("family", if addr.is_ipv4() { "inet" } else { "inet6" }.into());
    put("local", addr.to_string().into());
    put("prefixlen", prefix.len().into());
    put("scope", text::scope(addr).into());
    for flag in text::address_flags(address) {
        put(flag, true.into());
    }
    if addr.is_ipv4() {
        put("label", dev.as_str().into());
    }
    put("valid_life_time", left(address.valid_s).into());
    put("preferred_life_time", left(address.preferred_s).into());
    row.into()
}

/// Formats a route with one or several next hops as JSON.
pub(super) fn route(hops: &[&Route], look: &Look, net: &Net) -> Option<Value> {
    let route = hops.first()?;
    let is_one = hops.len() == 1;
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| drop(row.insert(key.to_owned(), value));
    if let Some(kind) = text::kind(route) {
        put("type", kind.into());
    }
    put("dst", text::destination(route.to).into());
    if let Some(via) = text::gateway(hops, look) {
        put("gateway", via.to_string().into());
    }
    if let (true, Some(dev), None) = (is_one, text::device(route), look.dev()) {
        put("dev", dev.into());
    }
    if let Some(protocol) = text::protocol(route) {
        put("protocol", protocol.into());
    }
    if let Some(scope) = text::route_scope(route) {
        put("scope", scope.into());
    }
    if let Some(source) = text::source(route, net) {
        put("prefsrc", source.to_string().into());
    }
    if text::metric(route) > 0 {
        put("metric", text::metric(route).into());
    }
    let flags = if is_one { text::route_flags(route, net) } else { &[] };
    put("flags", flags.into());
    if let Some(mtu) = route.mtu {
        put("metrics", json!([{ "mtu": mtu }]));
    }
    if let Some(preference) = text::preference(route) {
        put("pref", preference.into());
    }
    if !is_one {
        put("nexthops", hops.iter().map(|hop| next_hop(hop, net)).collect());
    }
    Some(row.into())
}

fn next_hop(hop: &Route, net: &Net) -> Value {
    let (weight, flags) = (hop.weight.unwrap_or(1), text::route_flags(hop, net));
    json!({"gateway": hop.via, "dev": text::device(hop), "weight": weight, "flags": flags})
}

fn neighbor(known: &Neighbor, look: &Look, shape: Shape<'_>) -> Value {
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| drop(row.insert(key.to_owned(), value));
    put("dst", known.address.to_string().into());
    if look.dev().is_none() {
        put("dev", known.dev.as_str().into());
    }
    if let Some(mac) = known.mac {
        put("lladdr", mac.to_string().into());
    }
    if shape.brief {
        return row.into();
    }
    if known.router {
        put("router", Value::Null);
    }
    put("state", [text::neighbor_state(known.state)].as_slice().into());
    row.into()
}
