//! Configuration of a router, and checks that its parts are consistent.

use std::fmt;
use std::net::IpAddr;

use towpath_conntrack::{NatRule, NatRules};
use towpath_filter::{CompileError, RuleList, Rules};
use towpath_stack::IfaceId;
use towpath_stack::net::{Change, Fault, How, RouteKind, RouteSpec};
use towpath_wire::{MacAddr, Prefix, addr};

/// A port of the router (a network device), with its name and the router's addresses on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedPort {
    /// Name of the port in rules, routes and counters.
    pub name: String,
    /// Addresses of the router on this port, each with its prefix length.
    pub addresses: Vec<Prefix>,
    /// Maximum length of IP packets in bytes; `None`: that of the device.
    pub mtu: Option<u32>,
    /// Whether the port starts down.
    pub is_down: bool,
    /// Neighbours whose Ethernet addresses are configured rather than resolved.
    pub neighbors: Vec<PlannedNeighbor>,
}

/// A neighbour with a configured Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedNeighbor {
    /// IP address of the neighbour.
    pub addr: IpAddr,
    /// Ethernet address of the neighbour.
    pub mac: MacAddr,
}

/// A configured route of the router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRoute {
    /// Destination prefix.
    pub prefix: Prefix,
    /// Next hops, or the kind of a route that drops packets.
    pub target: Target,
    /// Metric; `None`: the default of the address family.
    pub metric: Option<u32>,
    /// MTU of the route in bytes; `None`: that of the link.
    pub mtu: Option<u16>,
}

impl PlannedRoute {
    /// Creates a route with the default metric and the MTU of its link.
    pub fn new(prefix: Prefix, target: Target) -> Self {
        Self { prefix, target, metric: None, mtu: None }
    }
}

/// Treatment of packets that match a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Forwards packets to these next hops, which share the flows.
    Via(Vec<Hop>),
    /// Forwards to hosts on the link of the port with this name.
    Link(String),
    /// Drops packets, as defined by the kind of route (such as blackhole).
    Kind(RouteKind),
}

/// A next hop of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// IP address of the next router.
    pub addr: IpAddr,
    /// Name of the outgoing port; `None` if the address is in the network of a port.
    pub port: Option<String>,
    /// Weight among the next hops of the route, 1 to 256.
    pub weight: u16,
}

/// Configuration of a router: ports, routes and rules.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Ports, in the order of the engine's interface numbers.
    pub ports: Vec<PlannedPort>,
    /// Routes in addition to those to the ports' own networks.
    pub routes: Vec<PlannedRoute>,
    /// Packet filter rules. Without rules, all packets are forwarded.
    pub rules: Option<RuleList>,
    /// Rules for network address translation.
    pub nat: Vec<NatRule>,
}

/// Reason why a plan is inconsistent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterPlanError {
    /// The plan has no port.
    #[error(
        "a router needs a port: --port NAME=packet:INTERFACE,ADDRESS/LENGTH, or [[port]] in a file"
    )]
    NoPort,
    /// Two ports have the same name.
    #[error("two ports are called {name:?}: give each a name of its own")]
    NameTaken {
        /// The name that both ports have.
        name: String,
    },
    /// Two ports have the same address, or one port has it twice.
    #[error("{address} is given twice, to {first} and to {second}: an address belongs to one port")]
    AddressTaken {
        /// The address that was given twice.
        address: IpAddr,
        /// Name of the first port with the address.
        first: String,
        /// Name of the second port with the address.
        second: String,
    },
    /// Two ports have addresses in the same network.
    #[error(
        "{first} and {second} are both in {network}: a network is on one port; give one of \
         them another network"
    )]
    NetworkTaken {
        /// The network of both ports.
        network: Prefix,
        /// Name of the first port in the network.
        first: String,
        /// Name of the second port in the network.
        second: String,
    },
    /// No port has an address in the network of a next hop.
    #[error(
        "no port is in the network of the next hop {hop} of the route to {prefix}: the next hop \
         is a router beside this one"
    )]
    NoWay {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
    },
    /// The next hop is a broadcast address.
    #[error(
        "the next hop {hop} of the route to {prefix} is the broadcast address of {network}, not \
         one of its hosts"
    )]
    NoHost {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
        /// Network of the port in which the next hop is the broadcast address.
        network: Prefix,
    },
    /// The next hop is one of this router's own addresses.
    #[error("the next hop {hop} of the route to {prefix} is this router itself")]
    OwnHop {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
    },
    /// The next hop is a link-local address, but the route does not name its port.
    #[error(
        "the next hop {hop} of the route to {prefix} is on every link: name the port, as \
         {hop}%{port}"
    )]
    NoPortOfHop {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
        /// Name of a port, for the example in the message.
        port: String,
    },
    /// A route names a port that does not exist.
    #[error("the route to {prefix} names the port {name:?}; there are {names}")]
    UnknownPort {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Port name in the route, which does not exist.
        name: String,
        /// Names of the existing ports, for the message.
        names: String,
    },
    /// A route leads through a port that is down.
    #[error("the route to {prefix} leads through the port {name}, which is down")]
    DownPort {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Name of the port.
        name: String,
    },
    /// The next hop and the destination have different address families.
    #[error("the next hop {hop} cannot lead to {prefix}: both are IPv4, or both are IPv6")]
    OtherFamily {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
    },
    /// Two routes have the same destination and metric.
    #[error("there are two routes to {prefix}: leave one out")]
    RouteTaken {
        /// Destination prefix of both routes.
        prefix: Prefix,
    },
    /// A route contains the same next hop twice.
    #[error("the next hop {hop} of the route to {prefix} is given twice")]
    HopTaken {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Address of the next hop.
        hop: IpAddr,
    },
    /// The stack rejects the settings of a port.
    #[error("the port {name}: {why}")]
    Port {
        /// Name of the port.
        name: String,
        /// Reason of the stack.
        why: Fault,
    },
    /// The stack rejects a route.
    #[error("the route to {prefix} cannot be made: {why}")]
    Route {
        /// Destination prefix of the route.
        prefix: Prefix,
        /// Reason why the stack rejects the route.
        why: Fault,
    },
    /// A rule cannot be compiled, for example because it names a port that does not exist.
    #[error("{0}; the ports are {1}")]
    Rules(CompileError, String),
    /// A rule of address translation cannot be compiled.
    #[error("address translation: {0}; the ports are {1}")]
    Nat(CompileError, String),
}

/// Part of a plan to which an error refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanPart<'a> {
    /// The port with this name.
    Port(&'a str),
    /// The route to this prefix.
    Route(Prefix),
}

impl RouterPlanError {
    /// Returns the part of the plan that is inconsistent. Returns `None` if the error concerns the
    /// rules or the whole plan.
    pub fn part(&self) -> Option<PlanPart<'_>> {
        Some(match self {
            Self::NoPort | Self::Rules(..) | Self::Nat(..) => return None,
            Self::NameTaken { name: port }
            | Self::Port { name: port, .. }
            | Self::AddressTaken { second: port, .. }
            | Self::NetworkTaken { second: port, .. } => PlanPart::Port(port),
            Self::NoWay { prefix, .. }
            | Self::NoHost { prefix, .. }
            | Self::OwnHop { prefix, .. }
            | Self::NoPortOfHop { prefix, .. }
            | Self::UnknownPort { prefix, .. }
            | Self::DownPort { prefix, .. }
            | Self::OtherFamily { prefix, .. }
            | Self::RouteTaken { prefix }
            | Self::HopTaken { prefix, .. }
            | Self::Route { prefix, .. } => PlanPart::Route(*prefix),
        })
    }
}

impl Plan {
    /// Checks that all parts of the plan are consistent.
    ///
    /// # Errors
    /// Returns the first inconsistency.
    pub fn check(&self) -> Result<(), RouterPlanError> {
        self.check_ports()?;
        self.route_specs()?;
        self.nat_rules()?;
        self.compiled().map(drop)
    }

    /// Returns whether the router must track connections, because there are rules for address
    /// translation, or filter rules that match connection states.
    pub fn needs_tracker(&self) -> bool {
        let has_states = |list: &RuleList| list.iter().any(|rule| rule.states.is_some());
        !self.nat.is_empty() || self.rules.as_ref().is_some_and(has_states)
    }

    /// Compiles the rules of address translation.
    ///
    /// # Errors
    /// Fails if a rule names a port that does not exist.
    pub fn nat_rules(&self) -> Result<NatRules, RouterPlanError> {
        let compiled = NatRules::compile(&self.nat, |name| self.interface(name).map(|id| id.0));
        compiled.map_err(|error| RouterPlanError::Nat(error, self.names()))
    }

    /// Returns the interface number of the port `name`.
    fn interface(&self, name: &str) -> Option<IfaceId> {
        let at = self.ports.iter().position(|port| port.name == name)?;
        // Add one, because interface 0 is loopback.
        u16::try_from(at + 1).ok().map(IfaceId)
    }

    /// Returns the changes that set up the ports, each with the name of its port.
    pub fn port_changes(&self) -> Vec<(&str, Change)> {
        let mut changes = Vec::new();
        for (port, number) in self.ports.iter().zip(1..) {
            let (name, iface) = (port.name.as_str(), IfaceId(number));
            changes.extend(port.mtu.map(|mtu| (name, Change::SetMtu { iface, mtu })));
            for PlannedNeighbor { addr, mac } in port.neighbors.iter().copied() {
                changes.push((name, Change::SetNeighbor { iface, addr, mac, how: How::Add }));
            }
            if port.is_down {
                changes.push((name, Change::SetUp { iface, up: false }));
            }
        }
        changes
    }

    fn check_ports(&self) -> Result<(), RouterPlanError> {
        if self.ports.is_empty() {
            return Err(RouterPlanError::NoPort);
        }
        for (n, port) in self.ports.iter().enumerate() {
            if self.ports[..n].iter().any(|other| other.name == port.name) {
                return Err(RouterPlanError::NameTaken { name: port.name.clone() });
            }
            for (k, own) in port.addresses.iter().enumerate() {
                self.check_address(n, k, own)?;
            }
        }
        Ok(())
    }

    /// Compares the `k`-th address of the `n`-th port with all preceding addresses. Returns an
    /// error if two are equal, or if addresses of different ports are in the same network.
    fn check_address(&self, n: usize, k: usize, own: &Prefix) -> Result<(), RouterPlanError> {
        let second = || self.ports[n].name.clone();
        let before = self.ports[..=n].iter().enumerate();
        let before = before.flat_map(|(m, port)| {
            let count = if m == n { k } else { port.addresses.len() };
            port.addresses[..count].iter().map(move |other| (m, port, other))
        });
        for (m, port, other) in before {
            let first = port.name.clone();
            if other.addr() == own.addr() {
                let (address, second) = (own.addr(), second());
                return Err(RouterPlanError::AddressTaken { address, first, second });
            }
            if m != n && other.trunc() == own.trunc() {
                let (network, second) = (own.trunc(), second());
                return Err(RouterPlanError::NetworkTaken { network, first, second });
            }
        }
        Ok(())
    }

    /// Converts the routes to those of the stack.
    ///
    /// # Errors
    /// Fails if a next hop is in no port's network, or two routes have the same destination and
    /// metric.
    pub fn route_specs(&self) -> Result<Vec<RouteSpec>, RouterPlanError> {
        let mut specs = Vec::with_capacity(self.routes.len());
        let mut known = std::collections::BTreeSet::new();
        for route in &self.routes {
            let prefix = route.prefix.trunc();
            if !known.insert((prefix.addr(), prefix.len(), route.metric, route.mtu)) {
                return Err(RouterPlanError::RouteTaken { prefix });
            }
            let (metric, mtu) = (route.metric, route.mtu.map(u32::from));
            let spec = RouteSpec { metric, mtu, ..RouteSpec::to(prefix) };
            match &route.target {
                Target::Kind(kind) => specs.push(RouteSpec { kind: Some(*kind), ..spec }),
                Target::Link(port) => {
                    let iface = Some(self.interface_of_route(prefix, port)?);
                    specs.push(RouteSpec { iface, ..spec });
                }
                Target::Via(hops) => self.add_hops(spec, hops, &mut specs)?,
            }
        }
        Ok(specs)
    }

    /// Adds a spec for each next hop of a route.
    fn add_hops(
        &self,
        route: RouteSpec,
        hops: &[Hop],
        specs: &mut Vec<RouteSpec>,
    ) -> Result<(), RouterPlanError> {
        let prefix = route.prefix;
        let mut known = std::collections::BTreeSet::new();
        for Hop { addr: hop, port, weight } in hops {
            let iface = self.interface_of_hop(prefix, *hop, port.as_deref())?;
            if !known.insert((*hop, iface.0)) {
                return Err(RouterPlanError::HopTaken { prefix, hop: *hop });
            }
            // Set `on_link`, because the interface of each next hop is already known, and the stack
            // need not search for it.
            let (next_hop, iface, weight) = (Some(*hop), Some(iface), Some(*weight));
            specs.push(RouteSpec { next_hop, iface, weight, on_link: true, ..route });
        }
        Ok(())
    }

    /// Returns the interface of the port that a route names.
    fn interface_of_route(&self, prefix: Prefix, name: &str) -> Result<IfaceId, RouterPlanError> {
        let unknown =
            || RouterPlanError::UnknownPort { prefix, name: name.to_owned(), names: self.names() };
        let iface = self.interface(name).ok_or_else(unknown)?;
        match self.ports.iter().any(|port| port.name == name && port.is_down) {
            true => Err(RouterPlanError::DownPort { prefix, name: name.to_owned() }),
            false => Ok(iface),
        }
    }

    fn interface_of_hop(
        &self,
        prefix: Prefix,
        hop: IpAddr,
        port: Option<&str>,
    ) -> Result<IfaceId, RouterPlanError> {
        if hop.is_ipv4() != prefix.addr().is_ipv4() {
            return Err(RouterPlanError::OtherFamily { prefix, hop });
        }
        let addresses = || self.ports.iter().flat_map(|port| &port.addresses);
        if addresses().any(|own| own.addr() == hop) {
            return Err(RouterPlanError::OwnHop { prefix, hop });
        }
        if let Some(own) = addresses().find(|own| own.broadcast().map(IpAddr::V4) == Some(hop)) {
            return Err(RouterPlanError::NoHost { prefix, hop, network: own.trunc() });
        }
        if let Some(name) = port {
            return self.interface_of_route(prefix, name);
        }
        if addr::is_link_local(hop) && hop.is_ipv6() {
            let port = self.ports.first().map(|port| port.name.clone()).unwrap_or_default();
            return Err(RouterPlanError::NoPortOfHop { prefix, hop, port });
        }
        let on_link = |port: &&PlannedPort| port.addresses.iter().any(|own| own.contains(hop));
        let port = self.ports.iter().find(on_link).ok_or(RouterPlanError::NoWay { prefix, hop })?;
        self.interface_of_route(prefix, &port.name)
    }

    /// Returns the name of the port behind which a next hop is.
    ///
    /// # Errors
    /// Fails if no port has the network of the next hop.
    pub fn port_of_hop(&self, prefix: Prefix, hop: &Hop) -> Result<&str, RouterPlanError> {
        let IfaceId(number) = self.interface_of_hop(prefix, hop.addr, hop.port.as_deref())?;
        Ok(&self.ports[usize::from(number) - 1].name)
    }

    /// Compiles the packet filter rules. Returns `None` if there are none.
    ///
    /// # Errors
    /// Fails if a rule names a port that does not exist.
    pub fn compiled(&self) -> Result<Option<Rules>, RouterPlanError> {
        let Some(list) = &self.rules else { return Ok(None) };
        let compiled = Rules::compile(list, |name| self.interface(name).map(|id| id.0));
        compiled.map(Some).map_err(|error| RouterPlanError::Rules(error, self.names()))
    }

    fn names(&self) -> String {
        self.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for PlannedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ports: &[(&str, &[&str])]) -> Plan {
        let port = |(name, addresses): &(&str, &[&str])| PlannedPort {
            name: (*name).to_owned(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..PlannedPort::default()
        };
        Plan { ports: ports.iter().map(port).collect(), ..Plan::default() }
    }

    fn office() -> Plan {
        plan(&[("lan", &["10.1.0.1/24", "fd00:1::1/64"]), ("wan", &["192.0.2.2/24"])])
    }

    fn with_route(mut plan: Plan, prefix: &str, target: Target) -> Result<(), String> {
        plan.routes.push(PlannedRoute::new(prefix.parse().unwrap(), target));
        plan.check().map_err(|error| error.to_string())
    }

    fn via(hop: &str) -> Target {
        by(&[hop], None)
    }

    fn by(hops: &[&str], port: Option<&str>) -> Target {
        let hop = |hop: &&str| Hop {
            addr: hop.parse().unwrap(),
            port: port.map(ToOwned::to_owned),
            weight: 1,
        };
        Target::Via(hops.iter().map(hop).collect())
    }

    #[test]
    fn names_addresses_and_networks_belong_to_one_port() {
        assert_eq!(office().check(), Ok(()));
        assert_eq!(Plan::default().check(), Err(RouterPlanError::NoPort));
        let cases = [
            (plan(&[("a", &["10.0.0.1/24"]), ("a", &["10.0.1.1/24"])]), "two ports are called"),
            (plan(&[("a", &["10.0.0.1/24"]), ("b", &["10.0.0.1/16"])]), "given twice"),
            (plan(&[("a", &["10.0.0.1/24"]), ("b", &["10.0.0.2/24"])]), "both in 10.0.0.0/24"),
            (plan(&[("a", &["10.0.0.1/24", "10.0.0.1/24"])]), "given twice, to a and to a"),
        ];
        for (plan, wanted) in cases {
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(plan(&[("a", &["10.0.0.1/24", "10.0.0.2/24"])]).check(), Ok(()));
    }

    #[test]
    fn a_next_hop_is_beside_the_router() {
        assert_eq!(with_route(office(), "0.0.0.0/0", via("192.0.2.1")), Ok(()));
        let of_port = by(&["fe80::1"], Some("lan"));
        assert_eq!(with_route(office(), "::/0", of_port), Ok(()));
        assert_eq!(with_route(office(), "0.0.0.0/0", by(&["192.0.2.1", "10.1.0.9"], None)), Ok(()));
        let unknown = by(&["fe80::1"], Some("lam"));
        let cases = [
            ("0.0.0.0/0", via("198.51.100.1"), "no port is in the network"),
            ("0.0.0.0/0", via("10.1.0.1"), "is this router itself"),
            ("0.0.0.0/0", via("10.1.0.255"), "broadcast address of 10.1.0.0/24"),
            ("0.0.0.0/0", by(&["192.0.2.255"], Some("wan")), "broadcast address of 192.0.2.0/24"),
            ("0.0.0.0/0", via("fd00:1::2"), "both are IPv4, or both are IPv6"),
            ("::/0", via("fe80::1"), "as fe80::1%lan"),
            ("0.0.0.0/0", by(&["192.0.2.1", "192.0.2.1"], None), "192.0.2.1 of the route to 0.0"),
            ("0.0.0.0/0", by(&["192.0.2.1", "10.5.0.9"], None), "no port is in the network"),
            ("::/0", unknown, "\"lam\"; there are lan, wan"),
        ];
        for (prefix, target, wanted) in cases {
            let error = with_route(office(), prefix, target).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_network_has_one_route() {
        let mut plan = office();
        let prefix = "10.9.0.0/16".parse().unwrap();
        plan.routes.push(PlannedRoute::new(prefix, Target::Kind(RouteKind::Blackhole)));
        let error = with_route(plan.clone(), "10.9.1.0/16", via("10.1.0.2")).unwrap_err();
        assert_eq!(error, "there are two routes to 10.9.0.0/16: leave one out");
        plan.routes[0].metric = Some(5);
        assert_eq!(with_route(plan, "10.9.0.0/16", via("10.1.0.2")), Ok(()));
    }

    #[test]
    fn a_route_avoids_ports_that_are_down() {
        let mut plan = office();
        plan.ports[1].is_down = true;
        let error = with_route(plan.clone(), "0.0.0.0/0", via("192.0.2.1")).unwrap_err();
        assert_eq!(error, "the route to 0.0.0.0/0 leads through the port wan, which is down");
        let error = with_route(plan, "10.9.0.0/16", Target::Link("wan".into())).unwrap_err();
        assert!(error.contains("which is down"), "{error}");
        let error = with_route(office(), "10.9.0.0/16", Target::Link("dmz".into())).unwrap_err();
        assert!(error.contains("\"dmz\"; there are lan, wan"), "{error}");
    }
}
