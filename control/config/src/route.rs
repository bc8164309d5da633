//! Routes: the words of `--route`, and of `routes` in a file.

use std::fmt;
use std::net::IpAddr;

use towpath_router::{Hop, PlannedRoute, Target};
use towpath_stack::net::limits::WEIGHT_MAX;
use towpath_stack::net::{RouteKind, metric_unless_given};
use towpath_wire::Prefix;

/// Forms of a route, for messages.
const FORM: &str = "expected NETWORK@NEXTHOP or blackhole NETWORK, for example 0.0.0.0/0@192.0.2.1";

/// Kinds of routes that drop packets, with the names of ip-route(8).
const KINDS: [(&str, RouteKind); 3] = [
    ("blackhole", RouteKind::Blackhole),
    ("unreachable", RouteKind::Unreachable),
    ("prohibit", RouteKind::Prohibit),
];

/// Parses `NETWORK@NEXTHOP[,NEXTHOP...]`, `NETWORK@%PORT` or `blackhole NETWORK`, each with
/// `metric NUMBER` and `mtu BYTES` if needed.
///
/// # Errors
/// Returns a sentence for the user.
pub fn parse_route(text: &str) -> Result<PlannedRoute, String> {
    let mut words = text.split_whitespace();
    let first = words.next().ok_or(FORM)?;
    let mut route = if first.contains('@') {
        parse_target(first)?
    } else {
        let Some(network) = words.next() else { return Err(FORM.to_owned()) };
        let kind = KINDS.iter().find(|(name, _)| *name == first);
        let (_, kind) = kind.ok_or_else(|| format!("{first:?} is not a kind of route; {FORM}"))?;
        PlannedRoute::new(parse_network(network)?, Target::Kind(*kind))
    };
    while let Some(key) = words.next() {
        let value = words.next().ok_or_else(|| format!("\"{key}\" is without its value"))?;
        match key {
            "metric" if route.metric.is_none() => {
                let number = value.parse();
                let number =
                    number.map_err(|_| format!("{value:?} is not a metric: expected a number"))?;
                route.metric = Some(number);
            }
            "mtu" if route.mtu.is_none() => {
                let mtu = value.parse();
                let mtu = mtu.map_err(|_| format!("{value:?} is not an MTU of a route"))?;
                route.mtu = Some(mtu);
            }
            "metric" | "mtu" => return Err(format!("{key} is given twice")),
            _ => return Err(format!("unknown word {key:?}: expected metric or mtu")),
        }
    }
    let least = if route.prefix.addr().is_ipv4() { 68 } else { 1280 };
    if let Some(mtu) = route.mtu.filter(|mtu| *mtu < least) {
        return Err(format!("{mtu} is not an MTU of a route: expected {least} to 65535 bytes"));
    }
    // Omit a metric that equals the default, so that equal routes compare as equal.
    route.metric = route.metric.filter(|metric| *metric != metric_unless_given(route.prefix));
    if route.mtu.is_some() && matches!(route.target, Target::Kind(_)) {
        return Err("a route that drops packets has no mtu".to_owned());
    }
    Ok(route)
}

/// Parses `NETWORK@NEXTHOP[,NEXTHOP...]` or `NETWORK@%PORT`.
fn parse_target(text: &str) -> Result<PlannedRoute, String> {
    let (network, hops) = text.split_once('@').ok_or(FORM)?;
    if let Some(port) = hops.strip_prefix('%') {
        let prefix = parse_network(network)?;
        return Ok(PlannedRoute::new(prefix, Target::Link(port.to_owned())));
    }
    let hops: Vec<_> = hops.split(',').map(parse_hop).collect::<Result<_, _>>()?;
    let is_ipv4 = hops.first().is_some_and(|hop| hop.addr.is_ipv4());
    let prefix = match (network, is_ipv4) {
        ("default", true) => Prefix::ALL_V4,
        ("default", false) => parse_network("::/0")?,
        _ => parse_network(network)?,
    };
    Ok(PlannedRoute::new(prefix, Target::Via(hops)))
}

/// Parses `ADDRESS[%PORT][*WEIGHT]`.
fn parse_hop(text: &str) -> Result<Hop, String> {
    let (text, weight) = match text.split_once('*') {
        Some((text, weight)) => {
            let number = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
            let number = number.ok_or_else(|| {
                format!("{weight:?} is not a weight of a next hop: expected 1 to {WEIGHT_MAX}")
            })?;
            (text, number)
        }
        None => (text, 1),
    };
    let (addr, port) = match text.split_once('%') {
        Some((addr, port)) => (addr, Some(port.to_owned())),
        None => (text, None),
    };
    let addr: IpAddr =
        addr.parse().map_err(|_| format!("{addr:?} is not an IP address; {FORM}"))?;
    if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() {
        return Err(format!("{addr} is not an address that a router can have"));
    }
    Ok(Hop { addr, port, weight })
}

fn parse_network(text: &str) -> Result<Prefix, String> {
    let form = "expected ADDRESS/LENGTH, for example 10.9.0.0/16";
    let (ip, len) = text.split_once('/').ok_or_else(|| format!("{text:?}: {form}"))?;
    let ip: IpAddr = ip.parse().map_err(|_| format!("{ip:?} is not an IP address; {form}"))?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let network = len.parse().ok().filter(|len| *len <= bits).and_then(|len| Prefix::new(ip, len));
    let network =
        network.ok_or_else(|| format!("{len:?} is not a prefix length: expected 0 to {bits}"))?;
    if network.network() != ip {
        let whole = network.trunc();
        return Err(format!(
            "{ip} is a host of {whole}, not a network; give {whole} or {ip}/{bits}"
        ));
    }
    if ip.is_multicast() || ip.is_loopback() {
        return Err(format!("{network} is not routed"));
    }
    Ok(network)
}

/// Displays a route in the syntax that [`parse_route`] reads.
pub struct RouteText<'a>(pub &'a PlannedRoute);

impl fmt::Display for RouteText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlannedRoute { prefix, target, metric, mtu } = self.0;
        match target {
            Target::Kind(kind) => {
                let name = KINDS.iter().find(|(_, known)| known == kind);
                write!(f, "{} {prefix}", name.map_or("unicast", |(name, _)| name))?;
            }
            Target::Link(port) => write!(f, "{prefix}@%{port}")?,
            Target::Via(hops) => {
                write!(f, "{prefix}")?;
                for (n, Hop { addr, port, weight }) in hops.iter().enumerate() {
                    write!(f, "{}{addr}", if n == 0 { '@' } else { ',' })?;
                    port.iter().try_for_each(|port| write!(f, "%{port}"))?;
                    if *weight != 1 {
                        write!(f, "*{weight}")?;
                    }
                }
            }
        }
        metric.iter().try_for_each(|metric| write!(f, " metric {metric}"))?;
        mtu.iter().try_for_each(|mtu| write!(f, " mtu {mtu}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(addr: &str, port: Option<&str>) -> Hop {
        Hop { addr: addr.parse().unwrap(), port: port.map(ToOwned::to_owned), weight: 1 }
    }

    #[test]
    fn routes_have_a_next_hop_or_a_kind() {
        let route = parse_route("10.9.0.0/16@192.0.2.1").unwrap();
        assert_eq!(route.target, Target::Via(vec![hop("192.0.2.1", None)]));
        let route = parse_route("default@192.0.2.1,192.0.2.5%wan").unwrap();
        let hops = vec![hop("192.0.2.1", None), hop("192.0.2.5", Some("wan"))];
        assert_eq!((route.prefix, route.target), ("0.0.0.0/0".parse().unwrap(), Target::Via(hops)));
        let route = parse_route("default@fe80::1%wan").unwrap();
        assert_eq!(route.prefix, "::/0".parse().unwrap());
        assert_eq!(route.target, Target::Via(vec![hop("fe80::1", Some("wan"))]));
        let route = parse_route("blackhole 10.0.0.0/8").unwrap();
        assert_eq!(route.target, Target::Kind(RouteKind::Blackhole));
        let wrong = [
            ("10.9.0.0/16", "expected NETWORK@NEXTHOP"),
            ("10.9.0.1/16@192.0.2.1", "give 10.9.0.0/16"),
            ("10.9.0.0/33@192.0.2.1", "expected 0 to 32"),
            ("10.9.0.0/16@wan", "\"wan\" is not an IP address"),
            ("10.9.0.0/16@192.0.2.1,", "\"\" is not an IP address"),
            ("10.9.0.0/16@0.0.0.0", "not an address that a router"),
            ("10.9.0.0/16@192.0.2.1*0", "\"0\" is not a weight"),
            ("throw 10.9.0.0/16", "\"throw\" is not a kind of route"),
            ("blackhole 10.9", "\"10.9\": expected ADDRESS/LENGTH"),
            ("blackhole 10.0.0.0/8 mtu 1400", "has no mtu"),
            ("224.0.0.0/4@192.0.2.1", "is not routed"),
            ("10.9.0.0/16@192.0.2.1 metric", "\"metric\" is without its value"),
            ("10.9.0.0/16@192.0.2.1 metric ten", "\"ten\" is not a metric"),
            ("10.9.0.0/16@192.0.2.1 mtu 1400 mtu 1400", "mtu is given twice"),
            ("10.9.0.0/16@192.0.2.1 mtu 67", "67 is not an MTU of a route: expected 68 to 65535"),
            ("::/0@fe80::1%wan mtu 1279", "1279 is not an MTU of a route: expected 1280 to 65535"),
            ("10.9.0.0/16@192.0.2.1 dev wan", "unknown word \"dev\""),
        ];
        for (text, wanted) in wrong {
            let error = parse_route(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn formats_routes_as_it_parses_them() {
        for text in [
            "10.9.0.0/16@192.0.2.1",
            "0.0.0.0/0@192.0.2.1*3,192.0.2.5%wan metric 5 mtu 1400",
            "::/0@fe80::1%wan metric 7",
            "10.9.0.0/16@%wan",
            "prohibit 10.0.0.0/8 metric 9",
        ] {
            assert_eq!(RouteText(&parse_route(text).unwrap()).to_string(), text);
        }
        let plain = parse_route("::/0@fe80::1%wan metric 1024").unwrap();
        assert_eq!(plain.metric, None, "the default of IPv6");
    }
}
