//! Single settings of a configuration. The difference of two configurations consists of the
//! settings that only one of them has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use towpath_router::{Hop, Plan, PlannedNeighbor, PlannedRoute, Target};
use towpath_stack::net::{RouteKind, metric_unless_given};
use towpath_wire::Prefix;

use crate::config::RouterConfig;
use crate::dhcp_server::DhcpServerSettings;
use crate::route::RouteText;

/// A single setting of a router.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// A setting that takes effect when the router starts.
    AtStart {
        /// Key in a file, with its table.
        key: String,
        /// Value for the user.
        value: String,
    },
    /// DHCP server of a port.
    DhcpServer {
        /// Name of the port.
        port: String,
        /// Keys and values for the user.
        value: String,
    },
    /// A port and its device.
    Port {
        /// Name of the port.
        port: String,
        /// Device as in a file.
        device: String,
    },
    /// An address of a port.
    Address {
        /// Name of the port.
        port: String,
        /// The address.
        prefix: Prefix,
    },
    /// MTU of a port.
    Mtu {
        /// Name of the port.
        port: String,
        /// MTU in bytes.
        mtu: u32,
    },
    /// The port is down.
    Down {
        /// Name of the port.
        port: String,
    },
    /// A configured neighbour of a port.
    Neighbor {
        /// Name of the port.
        port: String,
        /// The neighbour.
        neighbor: PlannedNeighbor,
    },
    /// A next hop of a route, or a route without one.
    Route(RouteSetting),
    /// A line of the access list.
    Rule(String),
    /// A rule of address translation.
    Nat(String),
}

/// A next hop of a route, or a route without one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteSetting {
    /// Destination prefix.
    pub prefix: Prefix,
    /// Metric.
    pub metric: u32,
    /// Kind of the route.
    pub kind: RouteKind,
    /// Address of the next router; `None` for hosts on the link.
    pub hop: Option<IpAddr>,
    /// Name of the outgoing port; `None` if the route drops packets, or if the port is unknown.
    pub port: Option<String>,
    /// MTU of the route in bytes; `None`: that of the link.
    pub mtu: Option<u16>,
    /// Weight among the next hops of the route.
    pub weight: u16,
}

impl Setting {
    /// Returns the key in a file, with its table.
    pub fn key(&self) -> String {
        match self {
            Self::AtStart { key, .. } => key.clone(),
            Self::DhcpServer { port, .. } => format!("dhcp-server.{port}"),
            Self::Port { port, .. } => format!("port.{port}.device"),
            Self::Address { port, .. } => format!("port.{port}.addresses"),
            Self::Mtu { port, .. } => format!("port.{port}.mtu"),
            Self::Down { port } => format!("port.{port}.up"),
            Self::Neighbor { port, .. } => format!("port.{port}.neighbors"),
            Self::Route(_) => "routes".to_owned(),
            Self::Rule(_) => "rules".to_owned(),
            Self::Nat(_) => "nat".to_owned(),
        }
    }

    /// Returns the value for the user.
    pub fn value(&self) -> String {
        match self {
            Self::AtStart { value, .. } | Self::DhcpServer { value, .. } => value.clone(),
            Self::Port { device, .. } => device.clone(),
            Self::Address { prefix, .. } => prefix.to_string(),
            Self::Mtu { mtu, .. } => mtu.to_string(),
            Self::Down { .. } => "false".to_owned(),
            Self::Neighbor { neighbor: PlannedNeighbor { addr, mac }, .. } => {
                format!("{addr}@{mac}")
            }
            Self::Route(route) => RouteText(&route.planned()).to_string(),
            Self::Rule(text) | Self::Nat(text) => text.clone(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key(), self.value())
    }
}

impl RouteSetting {
    /// Returns the route as an entry of its own.
    fn planned(&self) -> PlannedRoute {
        let target = match (self.kind, self.hop, &self.port) {
            (RouteKind::Unicast, Some(addr), port) => {
                Target::Via(vec![Hop { addr, port: port.clone(), weight: self.weight }])
            }
            (RouteKind::Unicast, None, Some(port)) => Target::Link(port.clone()),
            (kind, _, _) => Target::Kind(kind),
        };
        let metric = Some(self.metric).filter(|it| *it != metric_unless_given(self.prefix));
        PlannedRoute { prefix: self.prefix, target, metric, mtu: self.mtu }
    }
}

/// Difference of two configurations: the settings that only one of them has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigDelta {
    /// Settings of the first configuration alone.
    pub removed: Vec<Setting>,
    /// Settings of the second configuration alone.
    pub added: Vec<Setting>,
}

impl ConfigDelta {
    /// Compares two configurations.
    pub fn between(from: &RouterConfig, to: &RouterConfig) -> Self {
        let (from, to) = (from.settings(), to.settings());
        Self {
            removed: from.difference(&to).cloned().collect(),
            added: to.difference(&from).cloned().collect(),
        }
    }

    /// Returns whether the configurations are equal.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Iterates over all settings of the difference.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.removed.iter().chain(&self.added)
    }
}

impl RouterConfig {
    /// Returns all settings.
    pub fn settings(&self) -> BTreeSet<Setting> {
        let at_start = |key: String, value: String| Setting::AtStart { key, value };
        let options = self.options.iter().map(|(name, words)| match words.is_empty() {
            true => at_start(name.clone(), "true".to_owned()),
            false => at_start(name.clone(), words.join(", ")),
        });
        let clients = self.dhcp.iter().map(|client| {
            let options = RouterConfig { dhcp: vec![client.clone()], ..Self::default() };
            at_start(format!("dhcp.{}", client.port), options.words())
        });
        let servers = self.dhcp_servers.iter().map(|server| {
            let without_file = DhcpServerSettings { leases: None, ..server.clone() };
            let options = RouterConfig { dhcp_servers: vec![without_file], ..Self::default() };
            Setting::DhcpServer { port: server.port.clone(), value: options.words() }
        });
        let files = self.dhcp_servers.iter().filter_map(|server| {
            let file = server.leases.as_ref()?.to_string_lossy().into_owned();
            Some(at_start(format!("dhcp-server.{}.leases", server.port), file))
        });
        let dns = self.dns.iter().map(|dns| {
            let options = RouterConfig { dns: Some(dns.clone()), ..Self::default() };
            at_start("dns".to_owned(), options.words())
        });
        let mut all: BTreeSet<_> = options.chain(clients).chain(servers).chain(files).collect();
        all.extend(dns);
        all.extend(self.adverts.iter().map(|advert| {
            let options = RouterConfig { adverts: vec![advert.clone()], ..Self::default() };
            at_start(format!("ra.{}", advert.port), options.words())
        }));
        for port in &self.ports {
            let (name, device) = (|| port.name.clone(), port.device.to_string());
            all.insert(Setting::Port { port: name(), device });
            let address = |prefix: &Prefix| Setting::Address { port: name(), prefix: *prefix };
            all.extend(port.addresses.iter().map(address));
            all.extend(port.mtu.map(|mtu| Setting::Mtu { port: name(), mtu }));
            all.extend(port.is_down.then(|| Setting::Down { port: name() }));
            let known = port.neighbors.iter();
            all.extend(known.map(|it| Setting::Neighbor { port: name(), neighbor: *it }));
        }
        let plan = self.plan();
        all.extend(self.routes.iter().flat_map(|it| of_route(&plan, it)).map(Setting::Route));
        all.extend(self.rules.to_string().lines().map(|line| Setting::Rule(line.to_owned())));
        all.extend(self.nat.iter().map(|rule| Setting::Nat(rule.to_string())));
        all
    }

    /// Returns a configuration that consists of one table as its keys and values in one line of
    /// text.
    fn words(&self) -> String {
        let text = self.to_toml(|_| false);
        let lines = text.lines().filter(|line| line.contains('=') && !line.starts_with("port ="));
        lines.collect::<Vec<_>>().join(", ")
    }

    /// Adds routes. Next hops of a network with the same metric and MTU become one route. The port
    /// of a next hop is left out if the address determines the port.
    pub fn add_routes(&mut self, routes: impl IntoIterator<Item = RouteSetting>) {
        let plan = self.plan();
        // A router may have many thousands of routes.
        let mut places = BTreeMap::new();
        for (place, known) in self.routes.iter().enumerate() {
            places.entry((known.prefix, known.metric, known.mtu)).or_insert(place);
        }
        for setting in routes {
            let mut route = setting.planned();
            if let Target::Via(hops) = &mut route.target {
                hops.iter_mut().for_each(|hop| shorten(&plan, setting.prefix, hop));
            }
            let place = places.entry((route.prefix, route.metric, route.mtu));
            let place = *place.or_insert(self.routes.len());
            match self.routes.get_mut(place).map(|known| &mut known.target) {
                Some(Target::Via(known)) if let Target::Via(more) = &mut route.target => {
                    known.append(more);
                }
                _ => self.routes.push(route),
            }
        }
    }
}

/// Removes the port of a next hop if its address determines the port.
fn shorten(plan: &Plan, prefix: Prefix, hop: &mut Hop) {
    let short = Hop { port: None, ..hop.clone() };
    if plan.port_of_hop(prefix, &short).ok() == hop.port.as_deref() {
        *hop = short;
    }
}

/// Returns the settings of a route, one for each next hop.
fn of_route(plan: &Plan, route: &PlannedRoute) -> Vec<RouteSetting> {
    let prefix = route.prefix;
    let plain = RouteSetting {
        prefix,
        metric: route.metric.unwrap_or(metric_unless_given(prefix)),
        kind: RouteKind::Unicast,
        hop: None,
        port: None,
        mtu: route.mtu,
        weight: 1,
    };
    match &route.target {
        Target::Kind(kind) => vec![RouteSetting { kind: *kind, ..plain }],
        Target::Link(port) => vec![RouteSetting { port: Some(port.clone()), ..plain }],
        Target::Via(hops) => {
            let of_hop = |hop: &Hop| {
                let port = plan.port_of_hop(prefix, hop).ok().map(str::to_owned);
                let port = port.or_else(|| hop.port.clone());
                RouteSetting { hop: Some(hop.addr), port, weight: hop.weight, ..plain.clone() }
            };
            hops.iter().map(of_hop).collect()
        }
    }
}
