//! Configuration of a router, and checks that its parts are consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use towpath_conntrack::NatRule;
use towpath_filter::RuleList;
use towpath_nat64::Nat64Config;
use towpath_router::{Plan, PlanPart, PlannedNeighbor, PlannedRoute, RouterPlanError};
use towpath_siit::TranslationPrefix;
use towpath_uplink::{AdvertConfig, ServerConfig};
use towpath_wire::{Prefix, addr};

use crate::advert::{AdvertSettings, ForwarderNames};
use crate::dhcp_client::DhcpClientSettings;
use crate::dhcp_server::DhcpServerSettings;
use crate::dns::{DNS_PORT, Dns64Prefix, DnsSettings};
use crate::layers;
use crate::port::{PortDevice, PortSettings};

/// Maximum number of ports of a router; each port is polled in every turn.
pub const PORTS_MAX: usize = 64;

/// Name of the port of `--nat64` and of the table `[nat64]`.
pub const NAT64_PORT: &str = "nat64";

/// Configuration of a router, from a file, from options, or of a running router.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// Ports, in the order of the engine's interfaces.
    pub ports: Vec<PortSettings>,
    /// Routes in addition to those to the ports' own networks.
    pub routes: Vec<PlannedRoute>,
    /// Packet filter rules.
    pub rules: RuleList,
    /// Rules of address translation.
    pub nat: Vec<NatRule>,
    /// DHCP clients of ports.
    pub dhcp: Vec<DhcpClientSettings>,
    /// DHCP servers of ports.
    pub dhcp_servers: Vec<DhcpServerSettings>,
    /// Router advertisements of ports.
    pub adverts: Vec<AdvertSettings>,
    /// DNS forwarder.
    pub dns: Option<DnsSettings>,
    /// Options that take effect when the router starts, by name. The value of a flag is empty.
    pub options: BTreeMap<String, Vec<String>>,
}

/// Part of a configuration to which an error refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigPart {
    /// The whole configuration.
    Whole,
    /// The port with this name.
    Port(String),
    /// The route to this prefix.
    Route(Prefix),
    /// The rule with this number.
    Rule(u32),
    /// The rule of address translation with this number.
    Nat(u32),
    /// The DHCP client of the port with this name.
    Dhcp(String),
    /// The DHCP server of the port with this name.
    DhcpServer(String),
    /// The router advertisements of the port with this name.
    Advert(String),
    /// The DNS forwarder.
    Dns,
}

/// A part of a configuration that is inconsistent with another part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigConflict {
    /// The part.
    pub part: ConfigPart,
    /// Sentence for the user.
    pub why: String,
}

impl ConfigConflict {
    fn new(part: ConfigPart, why: impl Into<String>) -> Self {
        Self { part, why: why.into() }
    }
}

impl From<RouterPlanError> for ConfigConflict {
    fn from(error: RouterPlanError) -> Self {
        let part = match (&error, error.part()) {
            (RouterPlanError::Rules(error, _), None) => {
                error.rule().map_or(ConfigPart::Whole, ConfigPart::Rule)
            }
            (RouterPlanError::Nat(error, _), None) => {
                error.rule().map_or(ConfigPart::Whole, ConfigPart::Nat)
            }
            (_, Some(PlanPart::Port(name))) => ConfigPart::Port(name.to_owned()),
            (_, Some(PlanPart::Route(prefix))) => ConfigPart::Route(prefix),
            (_, None) => ConfigPart::Whole,
        };
        Self { part, why: error.to_string() }
    }
}

impl RouterConfig {
    /// Adds a rule of address translation. A rule without a number gets the next multiple of ten.
    ///
    /// # Errors
    /// Returns a sentence for the user if another rule has the number.
    pub fn add_nat(&mut self, mut rule: NatRule) -> Result<u32, String> {
        let id = nat_id(&self.nat, &rule);
        rule.conditions.id = id;
        if self.nat.iter().any(|known| known.conditions.id == id) {
            return Err(format!("address translation: there are two rules with id {id}"));
        }
        self.nat.push(rule);
        Ok(id)
    }

    /// Marks the ports that obtain their address by DHCP. Call this after the clients were set.
    pub fn mark_clients(&mut self) {
        let names: BTreeSet<_> = self.dhcp.iter().map(|client| client.port.as_str()).collect();
        for port in &mut self.ports {
            port.by_dhcp = names.contains(port.name.as_str());
        }
    }

    /// Removes ports that do not exist from the DNS forwarder, because they were deleted.
    pub fn keep_known_ports_of_dns(&mut self) {
        let Some(mut dns) = self.dns.take() else { return };
        dns.listen.retain(|name| self.has_port(name));
        self.dns = Some(dns).filter(|dns| !dns.listen.is_empty());
    }

    /// Makes relative paths relative to `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        let clients = self.dhcp.iter_mut().map(|client| &mut client.settings.lease_file);
        let servers = self.dhcp_servers.iter_mut().map(|server| &mut server.leases);
        let resolve = |path: &mut PathBuf| *path = folder.join(&*path);
        clients.chain(servers).flatten().for_each(resolve);
    }

    /// Returns the plan of the router.
    pub fn plan(&self) -> Plan {
        let interfaces = self.ports.iter().filter(|port| port.is_interface());
        Plan {
            ports: interfaces.map(PortSettings::planned).collect(),
            routes: self.routes.clone(),
            rules: self.has_rules().then(|| self.rules.clone()),
            nat: self.nat.clone(),
        }
    }

    /// Returns whether packets have to be filtered.
    fn has_rules(&self) -> bool {
        self.rules != RuleList::default()
    }

    /// Checks that all parts of the configuration are consistent, and returns the plan of the
    /// router.
    ///
    /// # Errors
    /// Returns the first inconsistency.
    pub fn check(&self) -> Result<Plan, ConfigConflict> {
        if let Some(port) = self.ports.get(PORTS_MAX) {
            let why = format!("{} ports: at most {PORTS_MAX} are possible", self.ports.len());
            return Err(ConfigConflict::new(ConfigPart::Port(port.name.clone()), why));
        }
        self.check_names()?;
        self.check_clients()?;
        layers::check(&self.ports).map_err(|found| {
            ConfigConflict::new(ConfigPart::Port(found.port.to_owned()), found.why)
        })?;
        self.check_servers()?;
        self.check_adverts()?;
        self.check_dns()?;
        self.ports.iter().try_for_each(|port| self.check_port(port))?;
        let plan = self.plan();
        plan.check()?;
        Ok(plan)
    }

    /// Checks that all ports have different names, including ports on which other ports are built.
    fn check_names(&self) -> Result<(), ConfigConflict> {
        let mut known = BTreeSet::new();
        let second = self.ports.iter().find(|port| !known.insert(&port.name));
        second.map_or(Ok(()), |port| {
            Err(RouterPlanError::NameTaken { name: port.name.clone() }.into())
        })
    }

    /// Checks the settings that only ports with an interface have.
    fn check_port(&self, port: &PortSettings) -> Result<(), ConfigConflict> {
        let PortSettings { name, mtu, is_down, neighbors, .. } = port;
        let wrong = |why: String| Err(ConfigConflict::new(ConfigPart::Port(name.clone()), why));
        if !port.is_interface() && (mtu.is_some() || *is_down || !neighbors.is_empty()) {
            return wrong(format!("{name} has no address, and so no mtu, up or neighbors"));
        }
        if *is_down && !neighbors.is_empty() {
            return wrong(format!("{name} is down, and so has no neighbors"));
        }
        let mut seen = BTreeSet::new();
        for PlannedNeighbor { addr, mac } in neighbors {
            if !addr::is_unicast(*addr) || !mac.is_unicast() {
                return wrong(format!("{addr}@{mac} is not the address of one neighbor"));
            }
            if !seen.insert(addr) {
                return wrong(format!("the neighbor {addr} of {name} is given twice"));
            }
            // No file has the link-local addresses of a port.
            let is_near = addr.is_ipv6() && addr::is_link_local(*addr);
            let is_on_link = is_near || port.addresses.iter().any(|it| it.contains(*addr));
            if !is_on_link && !port.by_dhcp {
                return wrong(format!("the neighbor {addr} is in no network of {name}"));
            }
        }
        Ok(())
    }

    fn check_clients(&self) -> Result<(), ConfigConflict> {
        let mut known = BTreeSet::new();
        for client in &self.dhcp {
            let wrong = |why| Err(ConfigConflict::new(ConfigPart::Dhcp(client.port.clone()), why));
            if !self.has_port(&client.port) {
                return wrong(self.unknown_port("dhcp", &client.port));
            }
            if !known.insert(&client.port) {
                return wrong(format!("--dhcp names the port {} twice", client.port));
            }
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), ConfigConflict> {
        let mut known = BTreeSet::new();
        for server in &self.dhcp_servers {
            let name = &server.port;
            let wrong = |why| ConfigConflict::new(ConfigPart::DhcpServer(name.clone()), why);
            let port = self.ports.iter().find(|port| port.name == *name);
            let port = port.ok_or_else(|| wrong(self.unknown_port("dhcp-server", name)))?;
            layers::check_link_service("dhcp-server", port).map_err(wrong)?;
            self.dhcp_server(server, port, [0; 6]).map_err(wrong)?;
            if !known.insert(name) {
                return Err(wrong(format!("--dhcp-server names the port {name} twice")));
            }
        }
        Ok(())
    }

    fn check_adverts(&self) -> Result<(), ConfigConflict> {
        let mut known = BTreeSet::new();
        for advert in &self.adverts {
            let name = &advert.port;
            let wrong = |why| ConfigConflict::new(ConfigPart::Advert(name.clone()), why);
            let port = self.ports.iter().find(|port| port.name == *name);
            let port = port.ok_or_else(|| wrong(self.unknown_port("ra", name)))?;
            layers::check_link_service("ra", port).map_err(wrong)?;
            if !known.insert(name) {
                return Err(wrong(format!("--ra names the port {name} twice")));
            }
        }
        Ok(())
    }

    /// Returns the configuration of the router advertisements of a port. If the DNS forwarder
    /// serves the port, hosts learn the router as their nameserver, and the domain of local names.
    pub fn advert(
        &self,
        settings: &AdvertSettings,
        port: &PortSettings,
        mac: [u8; 6],
    ) -> AdvertConfig {
        let dns = self.dns.as_ref().filter(|dns| dns.listen.contains(&port.name));
        let dns = dns.filter(|dns| dns.port == DNS_PORT);
        settings.config(mac, port.mtu, ForwarderNames { domain: dns.map(DnsSettings::domain) })
    }

    /// Returns the prefix of the IPv6 addresses that the DNS forwarder synthesizes.
    pub fn dns64(&self) -> Option<TranslationPrefix> {
        match self.dns.as_ref()?.dns64? {
            Dns64Prefix::Given(prefix) => Some(prefix),
            Dns64Prefix::OfPort => {
                let translators = self.ports.iter().filter_map(|port| port.device.translator());
                translators.map(|config| config.prefix).next()
            }
        }
    }

    /// Adds the port of a translator.
    ///
    /// # Errors
    /// Returns a sentence for the user if a port has the name `nat64`.
    pub fn add_translator(&mut self, config: &Nat64Config) -> Result<(), String> {
        if self.has_port(NAT64_PORT) {
            return Err(format!("a port is called {NAT64_PORT}: rename it, or leave nat64 out"));
        }
        let mut port = PortSettings::new(NAT64_PORT, PortDevice::Nat64(*config));
        port.set_addresses(config.addresses());
        self.ports.push(port);
        Ok(())
    }

    fn check_dns(&self) -> Result<(), ConfigConflict> {
        let Some(dns) = &self.dns else { return Ok(()) };
        let wrong = |why: String| Err(ConfigConflict::new(ConfigPart::Dns, why));
        if dns.dns64.is_some() && self.dns64().is_none() {
            return wrong("dns64 needs a translator: --nat64 PREFIX, or dns64=PREFIX".to_owned());
        }
        if let Some(name) = dns.listen.iter().find(|name| !self.has_port(name)) {
            return wrong(self.unknown_port("dns", name));
        }
        let is_part =
            |port: &&PortSettings| dns.listen.contains(&port.name) && !port.is_interface();
        if let Some(port) = self.ports.iter().find(is_part) {
            return wrong(format!("--dns names {}, which has no address", port.name));
        }
        let is_own = |server: &&SocketAddr| {
            let mut own = self.ports.iter().flat_map(|port| &port.addresses);
            own.any(|address| address.addr() == server.ip())
        };
        match dns.upstreams.iter().find(is_own) {
            Some(server) => wrong(format!("the upstream server {server} is this router itself")),
            None => Ok(()),
        }
    }

    /// Returns the configuration of a DHCP server on its port. If the DNS forwarder serves the
    /// port, clients learn the router as their nameserver, and the domain of local names.
    ///
    /// # Errors
    /// Returns a sentence for the user if the port has no network that contains the pool.
    pub fn dhcp_server(
        &self,
        server: &DhcpServerSettings,
        port: &PortSettings,
        mac: [u8; 6],
    ) -> Result<ServerConfig, String> {
        let mut config = server.config(port, mac, !self.dhcp.is_empty())?;
        let dns = self.dns.as_ref().filter(|dns| dns.listen.contains(&port.name));
        if let Some(dns) = dns.filter(|dns| dns.port == DNS_PORT)
            && let (true, IpAddr::V4(own)) = (server.nameservers.is_empty(), config.address.addr())
        {
            (config.nameservers, config.awaits_nameservers) = (vec![own], false);
            config.domain.get_or_insert_with(|| dns.domain().to_owned());
        }
        Ok(config)
    }

    fn has_port(&self, name: &str) -> bool {
        self.ports.iter().any(|port| port.name == name)
    }

    fn unknown_port(&self, option: &str, name: &str) -> String {
        let names: Vec<_> = self.ports.iter().map(|port| port.name.as_str()).collect();
        format!("--{option} names the port {name:?}; there are {}", names.join(", "))
    }
}

/// Returns the number of a new rule of address translation: its own, or the next multiple of ten.
pub fn nat_id(rules: &[NatRule], rule: &NatRule) -> u32 {
    let last = rules.iter().map(|known| known.conditions.id).max().unwrap_or(0);
    match rule.conditions.id {
        0 => (last / 10 + 1).saturating_mul(10),
        id => id,
    }
}
