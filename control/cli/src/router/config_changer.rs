//! Changes a running router to another configuration: either all of it, or nothing.
//!
//! Ports that are in both configurations keep their devices, and flows keep their address
//! translation. New ports are added first, without addresses. Then rules, addresses and routes are
//! changed, and ports are deleted at the end. While rules are in force that were not written for a
//! port, the port is down. If a step fails, the steps before it are undone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_config::{
    ConfigDelta, ConfigFile, PortSettings, RouteSetting, RouterConfig, Setting, layers,
};
use towpath_engine::{Change, How, NetState, RouteSpec};
use towpath_filter::Rule;
use towpath_model::{AclChange, NatChange, RequestFault, Word};
use towpath_router::PlannedNeighbor;
use towpath_stack::IfaceId;
use towpath_stack::net::{Address, NeighborInfo, NeighborState, Origin, RouteEntry, RouteKind};
use towpath_uplink::lease_metric;

use super::file_options::{OptionValues, file_options};
use super::open;
use super::ports::{KnownPort, PortChanger, RouterPorts};
use super::services::RunningServer;
use super::source::ConfigSource;
use crate::served::{PortList, ServedStack, gone};
use crate::{acl, conntrack};

/// A running router whose configuration can be read and changed.
pub struct ConfigChanger {
    /// The router, as other requests access it.
    pub stack: Arc<ServedStack>,
    /// Absolute path of the file that the router was started with.
    pub file: Option<PathBuf>,
    ports: RouterPorts,
    changer: Arc<PortChanger>,
    servers: Mutex<Vec<RunningServer>>,
    /// Configuration with which the router was started. Still valid for settings that take effect
    /// only at the start.
    start: RouterConfig,
    /// Options of the command line.
    line: OptionValues,
}

impl ConfigChanger {
    /// Creates the changer of a router.
    pub fn new(
        source: &ConfigSource,
        stack: Arc<ServedStack>,
        ports: RouterPorts,
        changer: Arc<PortChanger>,
        servers: Vec<RunningServer>,
    ) -> Self {
        let (start, line) = (source.config.clone(), source.line.clone());
        let (file, servers) = (source.path(), Mutex::new(servers));
        Self { stack, file, ports, changer, servers, start, line }
    }

    /// Returns the current configuration.
    ///
    /// # Errors
    /// Fails if the router has ended.
    pub fn running(&self) -> Result<RouterConfig, RequestFault> {
        let net = self.stack.remote.net().map_err(gone)?;
        let rules = self.stack.remote.rules().map_err(gone)?;
        let ports = self.ports.known();
        let clients = self.start.dhcp.iter().filter(|it| has_dhcp_client(&ports, &it.port));
        let mut config = RouterConfig {
            ports: ports.iter().map(|port| self.current(port, &net)).collect(),
            routes: Vec::new(),
            rules: rules.map(|set| set.rules().to_list()).unwrap_or_default(),
            nat: conntrack::nat_rules(&self.stack).map_err(gone)?,
            dhcp: clients.cloned().collect(),
            dhcp_servers: self.running_servers(),
            ..self.start.clone()
        };
        config.adverts.retain(|advert| ports.iter().any(|port| port.words.name == advert.port));
        config.keep_known_ports_of_dns();
        config.mark_clients();
        config.add_routes(net.routes.iter().filter_map(|entry| route(&ports, &net, entry)));
        Ok(config)
    }

    /// Returns the current settings of a port.
    fn current(&self, known: &KnownPort, net: &NetState) -> PortSettings {
        let mut port = known.words.clone();
        let Some(iface) = known.iface else { return port };
        let Some(state) = net.interface(iface) else { return port };
        // Exclude addresses and neighbors that were taken over from the kernel (`--sync`), because
        // they are not part of this configuration.
        let is_synced = self.start.options.contains_key("sync");
        let is_own = |address: &&Address| {
            let is_given = port.addresses.contains(&address.prefix);
            // The lifetime of a lease is there before the lease is reported to the port.
            let is_temporary = port.by_dhcp && address.valid_until.is_some();
            let is_other = is_synced || is_temporary || known.lease == Some(address.prefix);
            address.origin == Origin::Static && (is_given || !is_other)
        };
        let addresses = state.addresses.iter().filter(is_own).map(|it| it.prefix).collect();
        let is_permanent =
            |it: &&NeighborInfo| it.iface == iface && it.state == NeighborState::Permanent;
        let permanent = net.neighbors.iter().filter(is_permanent);
        let neighbors: Vec<_> = permanent
            .filter_map(|it| Some(PlannedNeighbor { addr: it.addr, mac: it.mac? }))
            .filter(|it| !is_synced || port.neighbors.contains(it))
            .collect();
        (port.addresses, port.neighbors) = (addresses, neighbors);
        port.is_routed = !port.by_dhcp || !port.addresses.is_empty();
        port.mtu = match port.mtu {
            Some(mtu) if mtu == state.mtu => Some(mtu),
            _ => Some(state.mtu).filter(|mtu| *mtu != known.device_mtu),
        };
        // The router itself sets a port down whose device was removed.
        port.is_down = state.down && (port.is_down || !known.is_gone);
        port
    }

    /// Parses and validates a configuration for this router. As when the router starts, options of
    /// its command line override those of the configuration.
    ///
    /// # Errors
    /// Returns the first error, with its line and column.
    pub fn parse(&self, text: &str) -> Result<RouterConfig, RequestFault> {
        let file = ConfigFile::parse(text, &file_options());
        let mut file = file.map_err(|error| refused(error.to_string()))?;
        if file.acl.is_some() {
            let why = "a running router takes `rules`, because it reads no file for `acl`";
            return Err(refused(why.to_owned()));
        }
        file.config.options.extend(self.line.clone());
        let plan = file.config.check();
        let plan = plan.map_err(|conflict| refused(file.place(&conflict).to_string()))?;
        if plan.needs_tracker() && self.stack.tracker.is_none() {
            let why = "address translation and flow states need one thread: `shards` must be 1";
            return Err(refused(why.to_owned()));
        }
        let taken = open::refuse_own_addresses(&file.config.ports);
        taken.map_err(|error| refused(format!("{error:#}")))?;
        Ok(file.config)
    }

    /// Changes the router to a checked configuration, and returns the number of changed settings.
    ///
    /// # Errors
    /// Fails if a setting cannot be changed. The router is then as it was before, unless the
    /// message says otherwise.
    pub fn change_to(&self, target: &RouterConfig) -> Result<usize, RequestFault> {
        let before = self.running()?;
        let delta = ConfigDelta::between(&before, target);
        refuse_fixed(&delta, &before, target)?;
        let made = self.make(&delta, target).and_then(|()| self.verify(target));
        made.map_err(|fault| match self.undo(&before) {
            Ok(()) => fault,
            Err(undoing) => {
                refused(format!("{}; undoing it failed: {}", fault.message, undoing.message))
            }
        })?;
        Ok(delta.iter().count())
    }

    /// Fails if the configuration of the router differs from `target`, because another command has
    /// changed it in the meantime.
    fn verify(&self, target: &RouterConfig) -> Result<(), RequestFault> {
        let delta = ConfigDelta::between(&self.running()?, target);
        match delta.iter().next() {
            Some(setting) => Err(refused(format!("`{setting}` has not taken effect"))),
            None => Ok(()),
        }
    }

    fn undo(&self, before: &RouterConfig) -> Result<(), RequestFault> {
        let before = restorable(before.clone());
        let delta = ConfigDelta::between(&self.running()?, &before);
        self.make(&delta, &before)
    }

    /// Applies all changes of a delta, in the order in which they depend on each other.
    fn make(&self, delta: &ConfigDelta, target: &RouterConfig) -> Result<(), RequestFault> {
        let added = target.ports.iter().filter(|port| changes_port(&delta.added, &port.name));
        for port in added {
            let opened = self.changer.open(port.clone(), Vec::new());
            opened.map_err(|fault| of_port(&port.name, fault))?;
        }
        self.set_changed_down(delta)?;
        self.follow_names(delta)?;
        if delta.iter().any(|setting| matches!(setting, Setting::Rule(_))) {
            let text = target.rules.to_string();
            acl::change(&self.stack, &[AclChange::Load { text }])?;
        }
        if delta.iter().any(|setting| matches!(setting, Setting::Nat(_))) {
            let add =
                |rule: &towpath_conntrack::NatRule| NatChange::AddRule { rule: rule.to_string() };
            let rules = std::iter::once(NatChange::Flush).chain(target.nat.iter().map(add));
            conntrack::change_nat(&self.stack, &rules.collect::<Vec<_>>())?;
        }
        self.change_net(delta)?;
        target.ports.iter().for_each(|port| self.ports.set_settings(port));
        self.change_servers(delta, target)?;
        self.delete_ports(delta)
    }

    /// Sets new ports down until their rules are in force. Sets deleted ports down until they are
    /// closed. Otherwise packets could pass that neither the old nor the new configuration allows.
    fn set_changed_down(&self, delta: &ConfigDelta) -> Result<(), RequestFault> {
        let known = self.ports.known();
        let mut changes = Vec::new();
        for setting in delta.iter() {
            let Setting::Port { port, .. } = setting else { continue };
            changes.push(Change::SetUp { iface: interface(&known, port)?.iface, up: false });
        }
        if changes.is_empty() {
            return Ok(());
        }
        let applied = self.stack.remote.apply(changes).map_err(gone)?;
        applied.map(drop).map_err(|why| refused(why.why.to_string()))
    }

    fn servers(&self) -> MutexGuard<'_, Vec<RunningServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the settings of the DHCP servers whose ports were not deleted.
    fn running_servers(&self) -> Vec<towpath_config::DhcpServerSettings> {
        let servers = self.servers();
        let left = servers.iter().filter(|server| self.ports.has(&server.counters));
        left.map(|server| server.settings.clone()).collect()
    }

    /// Changes DHCP servers whose settings or addresses have changed.
    fn change_servers(
        &self,
        delta: &ConfigDelta,
        target: &RouterConfig,
    ) -> Result<(), RequestFault> {
        for server in self.servers().iter_mut() {
            let name = server.settings.port.clone();
            let is_its = |setting: &Setting| match setting {
                Setting::DhcpServer { port, .. } | Setting::Address { port, .. } => *port == name,
                _ => false,
            };
            let wanted = target.dhcp_servers.iter().find(|wanted| wanted.port == name);
            let port = target.ports.iter().find(|port| port.name == name);
            let Some((wanted, port)) = wanted.zip(port).filter(|_| delta.iter().any(is_its)) else {
                continue;
            };
            (server.change)(target.dhcp_server(wanted, port, server.mac).map_err(refused)?);
            server.settings = wanted.clone();
        }
        Ok(())
    }

    /// Changes addresses, routes and the like at once: each packet sees all changes, or none.
    fn change_net(&self, delta: &ConfigDelta) -> Result<(), RequestFault> {
        let known = self.ports.known();
        let deleted: Vec<_> = delta.removed.iter().filter_map(deleted_port).collect();
        let is_deleted = |port: &str| deleted.contains(&port);
        let mut all: Vec<(u8, Change, &Setting)> = Vec::new();
        for setting in &delta.removed {
            if port_of(setting).is_some_and(is_deleted) {
                continue;
            }
            let change = removal(&known, setting)?;
            all.extend(change.map(|(rank, change)| (rank, change, setting)));
        }
        for setting in &delta.added {
            let change = addition(&known, setting)?;
            all.extend(change.map(|(rank, change)| (rank, change, setting)));
        }
        all.sort_by_key(|(rank, ..)| *rank);
        let changes = all.iter().map(|(_, change, _)| *change).collect();
        let applied = self.stack.remote.apply(changes).map_err(gone)?;
        applied.map(drop).map_err(|why| {
            let (_, _, setting) = &all[why.at];
            refused(format!("`{setting}`: {}", why.why))
        })
    }

    fn delete_ports(&self, delta: &ConfigDelta) -> Result<(), RequestFault> {
        for setting in &delta.removed {
            let Setting::Port { port, .. } = setting else { continue };
            let name = Word::try_from(port.clone());
            let name = name.map_err(|_| refused(format!("{port:?} is no name")))?;
            self.changer.delete(&name).map_err(|fault| of_port(port, fault))?;
        }
        self.follow_names(delta)
    }

    /// Compiles the rules again if ports were added or deleted. Each port name in a rule then
    /// refers to the port that has this name now.
    fn follow_names(&self, delta: &ConfigDelta) -> Result<(), RequestFault> {
        if delta.iter().any(|setting| matches!(setting, Setting::Port { .. })) {
            acl::follow_names(&self.stack)?;
            conntrack::follow_names(&self.stack)?;
        }
        Ok(())
    }
}

/// Removes rules that name a deleted port, so that the configuration can be restored later. Rules
/// of this kind match no packet, and could not be added again.
pub fn restorable(mut config: RouterConfig) -> RouterConfig {
    let ports: Vec<_> = config.ports.iter().filter(|port| port.is_interface()).collect();
    let is_stale = |rule: &Rule| {
        let mut names = rule.iface_in.iter().chain(&rule.iface_out);
        names.any(|name| name != "lo" && ports.iter().all(|port| port.name != *name))
    };
    let stale = config.rules.iter().filter(|rule| is_stale(rule)).map(|rule| rule.id);
    let stale: Vec<_> = stale.collect();
    config.nat.retain(|rule| !is_stale(&rule.conditions));
    for id in stale {
        config.rules.remove(id);
    }
    config
}

/// Refuses changes that are only possible at the start of a router.
fn refuse_fixed(
    delta: &ConfigDelta,
    before: &RouterConfig,
    target: &RouterConfig,
) -> Result<(), RequestFault> {
    for setting in delta.iter() {
        let key = setting.key();
        let why = match setting {
            Setting::AtStart { .. } => "it takes effect when the router starts",
            Setting::Port { port, .. } if has_port(before, port) && has_port(target, port) => {
                "the device of a port stays; give another port a name of its own"
            }
            // Refuse changes that are possible only in one direction, because they could not be
            // undone.
            Setting::Port { port, .. } if is_layered(before, port) || is_layered(target, port) => {
                "VLANs, bridges and the ports below them are made when the router starts"
            }
            Setting::DhcpServer { port, .. }
                if !(has_server(before, port) && has_server(target, port)) =>
            {
                "a server is added or removed when the router starts"
            }
            setting if becomes_interface(setting, before) => {
                "a part of other ports becomes an interface when the router starts"
            }
            _ => continue,
        };
        return Err(refused(format!("`{key}` cannot be changed while the router runs: {why}")));
    }
    Ok(())
}

/// Returns whether a port has the DHCP client with which the router started. A port of the same
/// name that was added later has none.
fn has_dhcp_client(ports: &[KnownPort], name: &str) -> bool {
    ports.iter().any(|port| port.words.name == name && port.words.by_dhcp)
}

fn has_port(config: &RouterConfig, name: &str) -> bool {
    config.ports.iter().any(|port| port.name == name)
}

fn has_server(config: &RouterConfig, port: &str) -> bool {
    config.dhcp_servers.iter().any(|server| server.port == port)
}

/// Returns whether a port is a VLAN, a bridge, or below one.
fn is_layered(config: &RouterConfig, name: &str) -> bool {
    let is_above = |port: &PortSettings| port.name == name && port.device.device().is_none();
    config.ports.iter().any(is_above) || layers::users_of(&config.ports, name).next().is_some()
}

/// Returns whether a setting is for a port that has no interface in `before`.
fn becomes_interface(setting: &Setting, before: &RouterConfig) -> bool {
    let port = port_of(setting).and_then(|name| before.ports.iter().find(|it| it.name == name));
    port.is_some_and(|port| !port.is_interface()) && !matches!(setting, Setting::Port { .. })
}

/// Returns whether settings contain the port `name` itself.
fn changes_port(settings: &[Setting], name: &str) -> bool {
    settings.iter().any(|setting| matches!(setting, Setting::Port { port, .. } if port == name))
}

/// Returns the port that is deleted with a setting.
fn deleted_port(setting: &Setting) -> Option<&str> {
    match setting {
        Setting::Port { port, .. } => Some(port),
        _ => None,
    }
}

/// Returns the name of the port that must exist for a setting, if any.
fn port_of(setting: &Setting) -> Option<&str> {
    match setting {
        Setting::Port { port, .. }
        | Setting::Address { port, .. }
        | Setting::Mtu { port, .. }
        | Setting::Down { port }
        | Setting::Neighbor { port, .. } => Some(port),
        Setting::Route(route) => route.port.as_deref(),
        Setting::AtStart { .. }
        | Setting::DhcpServer { .. }
        | Setting::Rule(_)
        | Setting::Nat(_) => None,
    }
}

fn interface(known: &[KnownPort], name: &str) -> Result<KnownInterface, RequestFault> {
    let port = known.iter().find(|port| port.words.name == name);
    let found = port.and_then(|port| Some((port.iface?, port.device_mtu)));
    let (iface, device_mtu) =
        found.ok_or_else(|| refused(format!("the port {name} has no interface")))?;
    Ok(KnownInterface { iface, device_mtu })
}

/// Interface of a port.
struct KnownInterface {
    iface: IfaceId,
    device_mtu: u32,
}

/// Returns the change that removes a setting, and its rank. Changes with a lower rank are applied
/// first.
fn removal(known: &[KnownPort], setting: &Setting) -> Result<Option<(u8, Change)>, RequestFault> {
    let of = |port| interface(known, port);
    Ok(Some(match setting {
        Setting::Route(route) => (0, Change::RemoveRoute(spec(known, route)?)),
        Setting::Neighbor { port, neighbor: PlannedNeighbor { addr, .. } } => {
            (1, Change::RemoveNeighbor { iface: of(port)?.iface, addr: *addr })
        }
        Setting::Down { port } => (2, Change::SetUp { iface: of(port)?.iface, up: true }),
        Setting::Address { port, prefix } => {
            let (addr, len) = (prefix.addr(), Some(prefix.len()));
            (3, Change::RemoveAddress { iface: of(port)?.iface, addr, len })
        }
        Setting::Mtu { port, .. } => {
            let KnownInterface { iface, device_mtu } = of(port)?;
            (5, Change::SetMtu { iface, mtu: device_mtu })
        }
        Setting::AtStart { .. }
        | Setting::DhcpServer { .. }
        | Setting::Port { .. }
        | Setting::Rule(_)
        | Setting::Nat(_) => return Ok(None),
    }))
}

/// Returns the change that adds a setting, and its rank. Changes with a lower rank are applied
/// first.
fn addition(known: &[KnownPort], setting: &Setting) -> Result<Option<(u8, Change)>, RequestFault> {
    let of = |port| interface(known, port);
    Ok(Some(match setting {
        // A new port is down until its rules are in force.
        Setting::Port { port, .. } => (2, Change::SetUp { iface: of(port)?.iface, up: true }),
        Setting::Address { port, prefix } => {
            (4, Change::AddAddress { iface: of(port)?.iface, prefix: *prefix })
        }
        Setting::Mtu { port, mtu } => (6, Change::SetMtu { iface: of(port)?.iface, mtu: *mtu }),
        Setting::Neighbor { port, neighbor: PlannedNeighbor { addr, mac } } => {
            let (iface, addr, mac) = (of(port)?.iface, *addr, *mac);
            // The neighbour may have been resolved before.
            (7, Change::SetNeighbor { iface, addr, mac, how: How::Replace })
        }
        Setting::Route(route) => (8, Change::SetRoute(spec(known, route)?, How::Append)),
        Setting::Down { port } => (9, Change::SetUp { iface: of(port)?.iface, up: false }),
        Setting::AtStart { .. }
        | Setting::DhcpServer { .. }
        | Setting::Rule(_)
        | Setting::Nat(_) => return Ok(None),
    }))
}

/// Returns a route as the stack has it.
fn spec(known: &[KnownPort], route: &RouteSetting) -> Result<RouteSpec, RequestFault> {
    let RouteSetting { prefix, metric, kind, hop, port, mtu, weight } = route;
    let iface = port.as_deref().map(|port| interface(known, port)).transpose()?;
    Ok(RouteSpec {
        next_hop: *hop,
        iface: iface.map(|it| it.iface),
        metric: Some(*metric),
        kind: Some(*kind),
        on_link: hop.is_some(),
        mtu: mtu.map(u32::from),
        weight: Some(*weight),
        ..RouteSpec::to(prefix.trunc())
    })
}

/// Returns a route of the configuration; `None` for routes of links, leases, other routers and lo,
/// which is no port.
fn route(ports: &[KnownPort], net: &NetState, entry: &RouteEntry) -> Option<RouteSetting> {
    let RouteEntry { prefix, next_hop, iface, metric, origin, kind, mtu, weight } = *entry;
    let known = ports.iter().find(|port| port.iface == Some(iface));
    let is_leased = known.is_some_and(|port| port.words.by_dhcp) && metric == lease_metric(iface);
    let is_of_lo = iface == IfaceId::LOOPBACK && kind == RouteKind::Unicast;
    if origin != Origin::Static || is_leased || is_of_lo {
        return None;
    }
    let name = net.interface(iface).map(|interface| interface.name.clone());
    let port = name.filter(|_| kind == RouteKind::Unicast);
    Some(RouteSetting { prefix, metric, kind, hop: next_hop, port, mtu, weight })
}

fn of_port(name: &str, fault: RequestFault) -> RequestFault {
    refused(format!("`port.{name}`: {}", fault.message))
}

fn refused(why: String) -> RequestFault {
    RequestFault::new("refused", why)
}
