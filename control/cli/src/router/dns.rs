//! DNS forwarder of a router: creates its service, and keeps its upstream servers and the names of
//! leases up to date.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use towpath_config::{DnsSettings, RouterConfig};
use towpath_dns::{Conf, Name};
use towpath_engine::Engine;
use towpath_nameserver::{DnsForwarder, ForwarderConfig, LeasedName, LocalNames};
use towpath_router::{DnsControl, DnsService};
use towpath_siit::TranslationPrefix;
use towpath_uplink::{Lease, LeaseRecord, random};

use super::ports::RouterPorts;
use crate::error::{ExitCode, Failure};

/// UDP port of nameservers that a lease names.
const DNS_PORT: u16 = 53;
/// File with the nameservers of the host.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// DNS forwarder of a running router. Clones refer to the same one.
#[derive(Clone)]
pub struct RouterDns {
    /// Control of the service.
    pub control: DnsControl,
    /// Whether the upstream servers are those of the router's own leases.
    learns_servers: bool,
    /// Names of the leases of each DHCP server.
    leases: Arc<Mutex<BTreeMap<String, Vec<LeasedName>>>>,
}

impl RouterDns {
    /// Adds the forwarder of a configuration to an engine. `ports` are those of the engine.
    ///
    /// # Errors
    /// Fails if the host has no nameserver, if the kernel returns no random bytes, or if a socket
    /// cannot be opened.
    pub fn add(
        config: &RouterConfig,
        engine: &mut Engine,
        ports: &RouterPorts,
    ) -> Result<Option<Self>> {
        let Some(settings) = &config.dns else { return Ok(None) };
        let learns_servers = settings.upstreams.is_empty() && !config.dhcp.is_empty();
        let mut forwarder = forwarder(settings, config.dns64())?;
        if !learns_servers {
            forwarder.set_servers(&upstreams(settings)?);
        }
        let control = DnsControl::new(forwarder);
        let interfaces = settings.listen.iter().filter_map(|name| ports.named(name)).collect();
        let service = DnsService::new(control.clone(), interfaces, settings.port);
        engine.add_service(Box::new(service)).context("the DNS forwarder")?;
        Ok(Some(Self { control, learns_servers, leases: Arc::default() }))
    }

    /// Uses the nameservers of a lease of the router, unless upstream servers are configured.
    pub fn on_own_lease(&self, lease: &Lease) {
        if self.learns_servers {
            let at_port = |ip| SocketAddr::new(IpAddr::V4(ip), DNS_PORT);
            let servers: Vec<_> = lease.nameservers.iter().copied().map(at_port).collect();
            self.control.set_servers(&servers);
        }
    }

    /// Replaces the names of the hosts to which the DHCP server of a port has granted leases.
    pub fn on_granted_leases(&self, port: &str, records: &[LeaseRecord]) {
        let name = |record: &LeaseRecord| {
            let host_name = record.host_name.clone()?;
            Some(LeasedName { host_name, address: record.address, until: record.until })
        };
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.insert(port.to_owned(), records.iter().filter_map(name).collect());
        self.control.set_leases(leases.values().flatten().cloned().collect());
    }
}

/// Creates a forwarder without upstream servers.
fn forwarder(settings: &DnsSettings, dns64: Option<TranslationPrefix>) -> Result<DnsForwarder> {
    let domain = Name::new(settings.domain().as_bytes(), b"");
    let hosts = settings.hosts.iter().map(|host| (host.address, host.name.clone()));
    let names = LocalNames::new(domain, &hosts.collect::<Vec<_>>());
    let config = ForwarderConfig {
        cache_entries: settings.entries as usize,
        cache_bytes: settings.memory as usize,
        ttl_min_s: settings.ttl_min,
        ttl_max_s: settings.ttl_max,
        pending_per_client: settings.pending as usize,
        dns64,
        ..ForwarderConfig::default()
    };
    let seed = random()?;
    let (words, _) = seed.as_chunks::<8>();
    let key = [words[0], words[1]].map(u64::from_ne_bytes);
    Ok(DnsForwarder::new(config, names, key))
}

/// Returns the upstream servers of the configuration, or those of the host.
fn upstreams(settings: &DnsSettings) -> Result<Vec<SocketAddr>> {
    if !settings.upstreams.is_empty() {
        return Ok(settings.upstreams.clone());
    }
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let conf = Conf::new(&text, None, |_| None);
    // The router cannot reach a server on the loopback of the host.
    let is_reachable =
        |server: &SocketAddr| !server.ip().is_loopback() && !server.ip().is_unspecified();
    let servers: Vec<_> = conf.servers.into_iter().filter(is_reachable).collect();
    if servers.is_empty() {
        let why = format!(
            "--dns: {RESOLV_CONF} has no nameserver that the router can reach: name one, as \
             upstream=9.9.9.9"
        );
        return Err(Failure::error(ExitCode::Usage, why));
    }
    Ok(servers)
}
