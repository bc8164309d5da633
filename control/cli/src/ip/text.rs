//! Formats objects as text in the format of ip(8). Attributes that a stack does not have (qdisc,
//! group, qlen) are omitted, as ip(8) omits attributes that the kernel does not report.

use std::fmt::Write as _;
use std::net::IpAddr;

use towpath_model::{
    Address, AddressState, Interface, Kind, MacAddr, Neighbor, NeighborState, Net, Origin, Port,
    Prefix, Route, RouteKind, Word, protocol_name,
};

use super::grammar::{Family, Look, Selection};

/// Table of all routes, in which each route is shown with its interface and router.
pub(super) const ALL_ROUTES: Look =
    Look::Routes(Selection { dev: None, to: None, via: None, kind: None, origin: None });
/// Table of all neighbors, in which each neighbor is shown with its interface.
pub(super) const ALL_NEIGHBORS: Look = Look::Neighbors { dev: None, to: None };

/// Output options.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// Address family to show; `None` for all.
    pub family: Option<Family>,
    /// Whether to print one brief line per object.
    pub brief: bool,
    /// Whether to print each object completely on one line.
    pub oneline: bool,
    /// Whether to include packet and byte counters.
    pub statistics: bool,
    /// Whether to indent JSON.
    pub pretty: bool,
    /// Ports of the stack, whose device counters are shown with `statistics`.
    pub ports: &'a [Port],
}

impl Shape<'_> {
    /// Output in the default form.
    pub(super) const PLAIN: Self = Self {
        family: None,
        brief: false,
        oneline: false,
        statistics: false,
        pretty: false,
        ports: &[],
    };

    /// Returns the port of the stack that an interface uses.
    pub(super) fn port_of(&self, interface: &Interface) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == interface.name)
    }
}

/// Formats the objects to print.
pub fn document(look: &Look, net: &Net, shape: Shape<'_>) -> String {
    let mut out = String::new();
    let mut entry = |put: &mut dyn FnMut(&mut String)| {
        let start = out.len();
        put(&mut out);
        if shape.oneline && out.len() > start {
            let joined = out[start..].trim_end_matches('\n').replace('\n', "\\");
            out.truncate(start);
            out.push_str(&joined);
            out.push('\n');
        }
    };
    match look {
        Look::Addresses { .. } => {
            for (interface, addresses) in addresses_of(look, net, shape) {
                match (shape.oneline, shape.brief) {
                    (true, _) => addresses.iter().for_each(|address| {
                        entry(&mut |out| {
                            let _ = write!(out, "{}: {}", interface.index, interface.name);
                            put_address(out, &interface.name, address);
                        });
                    }),
                    (_, true) => entry(&mut |out| brief_addresses(out, interface, &addresses)),
                    _ => entry(&mut |out| full_addresses(out, interface, &addresses, look, shape)),
                }
            }
        }
        Look::Links { .. } => {
            for interface in interfaces_of(look, net) {
                match shape.brief {
                    true => entry(&mut |out| brief_link(out, interface)),
                    false => entry(&mut |out| full_link(out, interface, shape)),
                }
            }
        }
        Look::Routes(_) => {
            let routes = routes_of(look, net, shape);
            next_hops(&routes).for_each(|hops| entry(&mut |out| route(out, hops, look, net)));
        }
        Look::Neighbors { .. } => {
            for known in neighbors_of(look, net, shape) {
                match shape.brief {
                    true => entry(&mut |out| brief_neighbor(out, known)),
                    false => entry(&mut |out| neighbor(out, known, look)),
                }
            }
        }
    }
    out
}

fn is_asked(name: &str, look: &Look) -> bool {
    look.dev().is_none_or(|dev| dev == name)
}

/// Returns the interfaces that the command prints.
pub(super) fn interfaces_of<'a>(look: &Look, net: &'a Net) -> impl Iterator<Item = &'a Interface> {
    let up_only = matches!(look, Look::Addresses { up: true, .. } | Look::Links { up: true, .. });
    let interfaces = net.interfaces.iter().filter(move |interface| interface.up || !up_only);
    interfaces.filter(|interface| is_asked(interface.name.as_str(), look))
}

/// Returns the interfaces that the command prints, each with the addresses to print.
pub(super) fn addresses_of<'a>(
    look: &Look,
    net: &'a Net,
    shape: Shape<'_>,
) -> Vec<(&'a Interface, Vec<&'a Address>)> {
    let Look::Addresses { to, scope: only, .. } = look else { return Vec::new() };
    let is_wanted = |address: &&Address| {
        let addr = address.address.addr();
        shape.family.is_none_or(|family| family.has(addr))
            && to.is_none_or(|to| to.contains(addr))
            && only.is_none_or(|only| only == scope(addr))
    };
    let all = interfaces_of(look, net).map(|interface| {
        let mut addresses: Vec<_> = interface.addresses.iter().filter(is_wanted).collect();
        // Print IPv4 addresses first, as ip(8) does.
        addresses.sort_by_key(|address| address.address.addr().is_ipv6());
        (interface, addresses)
    });
    let restricted = shape.family.is_some() || to.is_some() || only.is_some();
    all.filter(|(_, addresses)| !restricted || !addresses.is_empty()).collect()
}

/// Returns the routes to print, in the order of Linux. Only IPv4 routes if no address family is
/// given.
pub(super) fn routes_of<'a>(look: &Look, net: &'a Net, shape: Shape<'_>) -> Vec<&'a Route> {
    let Look::Routes(Selection { to, via, kind: of_kind, origin, .. }) = look else {
        return Vec::new();
    };
    let of_words = to.map(|(to, _)| to.addr()).or(*via);
    let v6 = shape
        .family
        .map_or(of_words.is_some_and(|addr| addr.is_ipv6()), |family| family == Family::V6);
    let routes = net.routes.iter().filter(|route| {
        route.to.addr().is_ipv6() == v6
            && !is_of_loopback(route, net)
            && to.is_none_or(|(to, compared)| compared.takes(route.to, to))
            && of_kind.is_none_or(|kind| kind == route.kind.unwrap_or_default())
            && origin.is_none_or(|origin| origin == route.origin)
    });
    let mut routes: Vec<_> = routes.collect();
    // Linux shows the default route first for IPv4, but last for IPv6.
    routes.sort_by_key(|route| {
        (v6 && route.to.len() == 0, route.to.network(), route.to.len(), metric(route))
    });
    if look.dev().is_none() && via.is_none() {
        return routes;
    }
    // As in ip(8), a filter by router does not match the next hops of a multipath route.
    let alone = next_hops(&routes).filter_map(|hops| match hops {
        [route] => Some(*route),
        _ => None,
    });
    let is_wanted = |route: &&Route| {
        route.dev.as_ref().is_none_or(|dev| is_asked(dev.as_str(), look))
            && via.is_none_or(|via| route.via == Some(via))
    };
    alone.filter(is_wanted).collect()
}

/// Groups routes that are next hops of the same multipath route.
pub(super) fn next_hops<'a, 'b>(routes: &'b [&'a Route]) -> impl Iterator<Item = &'b [&'a Route]> {
    routes.chunk_by(|one, next| one.shares_with(next))
}

/// Returns the router to show for a route with one next hop. Returns `None` if the router was a
/// condition of the command, as ip(8) omits it then.
pub(super) fn gateway(hops: &[&Route], look: &Look) -> Option<IpAddr> {
    match (hops, look) {
        ([route], Look::Routes(Selection { via: None, .. })) => route.via,
        _ => None,
    }
}

/// Returns whether a route belongs to an address of the loopback interface. Linux has such routes
/// in the table `local`, which is not shown.
pub(super) fn is_of_loopback(route: &Route, net: &Net) -> bool {
    let of = net.interfaces.iter().find(|it| Some(&it.name) == route.dev.as_ref());
    route.origin == Origin::Link && of.is_some_and(|it| it.kind == Kind::Loopback)
}

/// Returns the entries of the neighbor table to print.
pub(super) fn neighbors_of<'a>(look: &Look, net: &'a Net, shape: Shape<'_>) -> Vec<&'a Neighbor> {
    let Look::Neighbors { to, .. } = look else { return Vec::new() };
    let known = net.neighbors.iter().filter(|known| {
        is_asked(known.dev.as_str(), look)
            && to.is_none_or(|to| to == known.address)
            && shape.family.is_none_or(|family| family.has(known.address))
    });
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|known| known.address.is_ipv6());
    known
}

/// Returns the interface flags with the names that `ip link` shows.
pub(super) fn flags(interface: &Interface) -> Vec<&'static str> {
    let kind: &[&str] = match interface.kind {
        Kind::Loopback => &["LOOPBACK"],
        Kind::Ethernet => &["BROADCAST", "MULTICAST"],
        Kind::Ip => &["POINTOPOINT", "MULTICAST", "NOARP"],
    };
    let (none, up): (&[&str], &[&str]) = match (interface.up, interface.carrier) {
        (false, _) => (&[], &[]),
        (true, Some(false)) => (&["NO-CARRIER"], &["UP"]),
        (true, _) => (&[], &["UP", "LOWER_UP"]),
    };
    [none, kind, up].concat()
}

/// Returns the interface state with the name that `ip link` shows.
pub(super) fn state(interface: &Interface) -> &'static str {
    match (interface.up, interface.kind) {
        (false, _) => "DOWN",
        _ if interface.carrier == Some(false) => "DOWN",
        (true, Kind::Ethernet) => "UP",
        // Linux reports the state of these kinds of interfaces as unknown.
        (true, Kind::Loopback | Kind::Ip) => "UNKNOWN",
    }
}

/// Returns the link type of an interface. For Ethernet, also returns the hardware and broadcast
/// addresses.
pub(super) fn link(interface: &Interface) -> (&'static str, Option<(MacAddr, MacAddr)>) {
    const ALL: MacAddr = MacAddr([0xff; 6]);
    match interface.kind {
        Kind::Loopback => ("loopback", Some((MacAddr::UNSPECIFIED, MacAddr::UNSPECIFIED))),
        Kind::Ethernet => ("ether", interface.mac.map(|mac| (mac, ALL))),
        Kind::Ip => ("none", None),
    }
}

/// Returns the scope that ip(8) shows for an address.
pub(super) fn scope(addr: IpAddr) -> &'static str {
    match addr {
        addr if addr.is_loopback() => "host",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "link",
        _ => "global",
    }
}

/// Returns the flags that ip(8) shows for an address.
pub(super) fn address_flags(address: &Address) -> Vec<&'static str> {
    let state: &[_] = match address.state {
        AddressState::Tentative => &["tentative"],
        AddressState::Optimistic => &["optimistic"],
        AddressState::Deprecated => &["deprecated"],
        AddressState::Preferred => &[],
        AddressState::DadFailed => &["dadfailed", "tentative"],
    };
    let lasting = address.valid_s.map(|_| "dynamic");
    state.iter().copied().chain(lasting).collect()
}

/// Returns the metric that Linux would assign to a route.
pub(super) fn metric(route: &Route) -> u32 {
    // Default metrics IP6_RT_PRIO_ADDRCONF and IP6_RT_PRIO_USER of ipv6_route.h.
    const LINK_V6: u32 = 256;
    const USER_V6: u32 = 1024;
    match (route.metric.unwrap_or(0), route.origin) {
        (0, Origin::Link) if route.to.addr().is_ipv6() => LINK_V6,
        (0, _) if route.to.addr().is_ipv6() => USER_V6,
        (metric, _) => metric,
    }
}

/// Returns the word for the kind of a route; `None` for unicast.
pub(super) fn kind(route: &Route) -> Option<&'static str> {
    match route.kind? {
        RouteKind::Unicast => None,
        RouteKind::Blackhole => Some("blackhole"),
        RouteKind::Unreachable => Some("unreachable"),
        RouteKind::Prohibit => Some("prohibit"),
    }
}

/// Returns the flags of a route whose interface has no carrier. The stack does not use the next hop
/// on such an interface while the route has another one.
pub(super) fn route_flags(route: &Route, net: &Net) -> &'static [&'static str] {
    let is_its = |it: &&Interface| Some(&it.name) == route.dev.as_ref();
    let has_lost = |it: &Interface| it.carrier == Some(false);
    match route.via {
        _ if !net.interfaces.iter().find(is_its).is_some_and(has_lost) => &[],
        Some(_) => &["dead", "linkdown"],
        None => &["linkdown"],
    }
}

/// Returns the interface to show for a route. As in Linux, an IPv4 route that drops packets has no
/// interface, and an IPv6 one has `lo`.
pub(super) fn device(route: &Route) -> Option<&str> {
    let leads_nowhere = kind(route).is_some() && route.to.addr().is_ipv4();
    route.dev.as_ref().filter(|_| !leads_nowhere).map(Word::as_str)
}

/// Returns the protocol that ip(8) shows for a route; `None` if the operator added the route.
pub(super) fn protocol(route: &Route) -> Option<&'static str> {
    match route.origin {
        Origin::Static => None,
        Origin::Link => Some("kernel"),
        Origin::Router => Some("ra"),
        Origin::Kernel(protocol) => Some(protocol_name(protocol)),
    }
}

/// Returns the scope that ip(8) shows for a route; `None` for global scope.
pub(super) fn route_scope(route: &Route) -> Option<&'static str> {
    let is_on_link = route.via.is_none() && kind(route).is_none();
    (is_on_link && route.to.addr().is_ipv4()).then_some("link")
}

/// Returns the source address that ip(8) shows for an on-link IPv4 route: the address that created
/// the route.
pub(super) fn source(route: &Route, net: &Net) -> Option<IpAddr> {
    if route.origin != Origin::Link || route.to.addr().is_ipv6() {
        return None;
    }
    let interface = net.interfaces.iter().find(|it| Some(&it.name) == route.dev.as_ref())?;
    let own = interface.addresses.iter().find(|own| own.address.trunc() == route.to)?;
    Some(own.address.addr())
}

/// Returns the preference of an IPv6 route that was learned from a router advertisement, derived
/// from the metric.
pub(super) fn preference(route: &Route) -> Option<&'static str> {
    if route.to.addr().is_ipv4() {
        return None;
    }
    Some(match (route.origin, route.metric) {
        (Origin::Router, Some(512)) => "high",
        (Origin::Router, Some(2048)) => "low",
        _ => "medium",
    })
}

/// Formats the destination prefix of a route as ip(8) does.
pub(super) fn destination(to: Prefix) -> String {
    match to {
        to if to.len() == 0 => "default".to_owned(),
        to if to.is_host() => to.addr().to_string(),
        to => to.to_string(),
    }
}

/// Returns the state of a neighbor as ip(8) shows it, in capital letters.
pub(super) fn neighbor_state(state: NeighborState) -> &'static str {
    match state {
        NeighborState::Incomplete => "INCOMPLETE",
        NeighborState::Reachable => "REACHABLE",
        NeighborState::Stale => "STALE",
        NeighborState::Delay => "DELAY",
        NeighborState::Probe => "PROBE",
        NeighborState::Permanent => "PERMANENT",
    }
}

// Below, results of `write!` are ignored, because writing to a String cannot fail.

fn header(out: &mut String, interface: &Interface) {
    let Interface { index, name, mtu, .. } = interface;
    let (flags, state) = (flags(interface).join(","), state(interface));
    let _ = write!(out, "{index}: {name}: <{flags}> mtu {mtu} state {state} ");
}

fn link_line(out: &mut String, interface: &Interface) {
    let (kind, addresses) = link(interface);
    let _ = write!(out, "    link/{kind} ");
    if let Some((own, all)) = addresses {
        let _ = write!(out, "{own} brd {all}");
    }
    out.push('\n');
}

fn full_addresses(
    out: &mut String,
    interface: &Interface,
    addresses: &[&Address],
    look: &Look,
    shape: Shape<'_>,
) {
    header(out, interface);
    out.push('\n');
    let restricted = matches!(
        look,
        Look::Addresses { to: Some(_), .. } | Look::Addresses { scope: Some(_), .. }
    );
    if shape.family.is_none() && !restricted {
        link_line(out, interface);
    }
    addresses.iter().for_each(|address| put_address(out, &interface.name, address));
    if shape.statistics {
        statistics(out, interface);
    }
}

/// Formats an address, without the number and name of its interface in front.
pub(super) fn put_address(out: &mut String, dev: &Word, address: &Address) {
    let addr = address.address.addr();
    let family = if addr.is_ipv4() { "inet" } else { "inet6" };
    let _ = write!(out, "    {family} {} scope {} ", address.address, scope(addr));
    for flag in address_flags(address) {
        let _ = write!(out, "{flag} ");
    }
    if addr.is_ipv4() {
        out.push_str(dev.as_str());
    }
    let left = |seconds: Option<u64>| match seconds {
        Some(seconds) => format!("{seconds}sec"),
        None => "forever".to_owned(),
    };
    let (valid, preferred) = (left(address.valid_s), left(address.preferred_s));
    let _ = writeln!(out, "\n       valid_lft {valid} preferred_lft {preferred}");
}

fn brief_addresses(out: &mut String, interface: &Interface, addresses: &[&Address]) {
    let _ = write!(out, "{:<16} {:<14} ", interface.name, state(interface));
    for address in addresses {
        let _ = write!(out, "{} ", address.address);
    }
    out.push('\n');
}

fn full_link(out: &mut String, interface: &Interface, shape: Shape<'_>) {
    header(out, interface);
    out.push_str("mode DEFAULT \n");
    link_line(out, interface);
    if shape.statistics {
        statistics(out, interface);
    }
    if let Some(port) = shape.port_of(interface) {
        device_counters(out, port);
    }
}

/// Formats a link for `ip monitor`, which omits the link mode.
pub(super) fn changed_link(out: &mut String, interface: &Interface) {
    header(out, interface);
    out.push('\n');
    link_line(out, interface);
}

/// Formats the counters of a port's device that are not zero.
fn device_counters(out: &mut String, port: &Port) {
    let _ = write!(out, "    {}:", port.driver);
    for (name, value) in port.counters.iter().filter(|(_, value)| *value > 0) {
        let _ = write!(out, " {name} {value}");
    }
    out.push('\n');
}

fn brief_link(out: &mut String, interface: &Interface) {
    let flags = flags(interface).join(",");
    let _ = write!(out, "{:<16} {:<14} ", interface.name, state(interface));
    if let (_, Some((own, _))) = link(interface) {
        let _ = write!(out, "{own} ");
    }
    let _ = writeln!(out, "<{flags}> ");
}

/// Formats the traffic tables of `ip -s`, limited to the counters that a stack has.
fn statistics(out: &mut String, interface: &Interface) {
    let traffic = interface.traffic;
    let rows = [
        ("RX", traffic.rx_bytes, traffic.rx_packets, traffic.rx_dropped),
        ("TX", traffic.tx_bytes, traffic.tx_packets, traffic.tx_dropped),
    ];
    for (name, bytes, packets, dropped) in rows {
        let columns = [("bytes", bytes), ("packets", packets), ("dropped", dropped)];
        let widths = columns.map(|(name, value)| name.len().max(value.to_string().len()));
        let _ = write!(out, "    {name}: ");
        for ((name, _), width) in columns.iter().zip(widths) {
            let _ = write!(out, " {name:>width$}");
        }
        let _ = write!(out, "\n        ");
        for ((_, value), width) in columns.iter().zip(widths) {
            let _ = write!(out, " {value:>width$}");
        }
        out.push('\n');
    }
}

/// Formats a route. If it has several next hops, each is on its own line.
pub(super) fn route(out: &mut String, hops: &[&Route], look: &Look, net: &Net) {
    let Some(route) = hops.first() else { return };
    let is_one = hops.len() == 1;
    if let Some(kind) = kind(route) {
        let _ = write!(out, "{kind} ");
    }
    let _ = write!(out, "{} ", destination(route.to));
    if let Some(via) = gateway(hops, look) {
        let _ = write!(out, "via {via} ");
    }
    if let (true, Some(dev), None) = (is_one, device(route), look.dev()) {
        let _ = write!(out, "dev {dev} ");
    }
    if let Some(protocol) = protocol(route) {
        let _ = write!(out, "proto {protocol} ");
    }
    if let Some(scope) = route_scope(route) {
        let _ = write!(out, "scope {scope} ");
    }
    if let Some(source) = source(route, net) {
        let _ = write!(out, "src {source} ");
    }
    if metric(route) > 0 {
        let _ = write!(out, "metric {} ", metric(route));
    }
    for flag in route_flags(route, net).iter().filter(|_| is_one) {
        let _ = write!(out, "{flag} ");
    }
    if let Some(mtu) = route.mtu {
        let _ = write!(out, "mtu {mtu} ");
    }
    if let Some(preference) = preference(route) {
        let _ = write!(out, "pref {preference}");
    }
    out.push('\n');
    for hop in hops.iter().filter(|_| !is_one) {
        out.push_str("\tnexthop ");
        if let Some(via) = hop.via {
            let _ = write!(out, "via {via} ");
        }
        if let Some(dev) = device(hop) {
            let _ = write!(out, "dev {dev} ");
        }
        let _ = write!(out, "weight {} ", hop.weight.unwrap_or(1));
        for flag in route_flags(hop, net) {
            let _ = write!(out, "{flag} ");
        }
        out.push('\n');
    }
}

/// Formats an entry of the neighbor table.
pub(super) fn neighbor(out: &mut String, known: &Neighbor, look: &Look) {
    let _ = write!(out, "{} ", known.address);
    if look.dev().is_none() {
        let _ = write!(out, "dev {} ", known.dev);
    }
    if let Some(mac) = known.mac {
        let _ = write!(out, "lladdr {mac} ");
    }
    if known.router {
        out.push_str("router ");
    }
    let _ = writeln!(out, "{} ", neighbor_state(known.state));
}

fn brief_neighbor(out: &mut String, known: &Neighbor) {
    let _ = write!(out, "{:<39} {:<16} ", known.address, known.dev);
    if let Some(mac) = known.mac {
        let _ = write!(out, "{mac}");
    }
    out.push('\n');
}
