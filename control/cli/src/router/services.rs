//! Services of a router: the DHCP clients, DHCP servers and router advertisements of its ports.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use towpath_config::{DhcpServerSettings, RouterConfig};
use towpath_engine::Remote;
use towpath_pool::Port;
use towpath_router::OpenPort;
use towpath_stack::IfaceId;
use towpath_uplink::{
    Counting, DhcpNotice, LeaseClient, LeaseRecord, LeaseServer, PortAdvertiser, ServerConfig,
};

use super::dns::RouterDns;
use super::open::Left;
use super::ports::RouterPorts;
use crate::dhcp::describe;
use crate::messages::Messages;

/// DHCP clients, servers and advertisers of open ports, before the engine runs.
#[derive(Default)]
pub struct PortServices {
    clients: Vec<(String, IfaceId, LeaseClient)>,
    servers: Vec<PortServer>,
    adverts: Vec<(IfaceId, PortAdvertiser)>,
}

/// A DHCP server of an open port.
struct PortServer {
    settings: DhcpServerSettings,
    mac: [u8; 6],
    counters: Left,
    server: LeaseServer,
}

/// DHCP server of a running router.
pub struct RunningServer {
    /// Current settings.
    pub settings: DhcpServerSettings,
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Counters of the port, which identify it. Its name does not suffice, because a port that is
    /// added later may have the same name.
    pub counters: Left,
    /// Replaces the configuration.
    pub change: Box<dyn Fn(ServerConfig) + Send>,
}

/// Adds the DHCP clients and servers to their ports. `ports` are the opened ports, in the order of
/// the options.
///
/// # Errors
/// Fails if a file of leases is invalid, or if the kernel returns no random bytes.
pub fn attach(
    config: &RouterConfig,
    ports: &mut [OpenPort],
    counters: &[Left],
) -> Result<PortServices> {
    let with_counters = config.ports.iter().zip(counters);
    let interfaces = with_counters.filter(|(port, _)| port.is_interface());
    let mut services = PortServices::default();
    for (((port, left), open), number) in interfaces.zip(ports).zip(1..) {
        let name = &port.name;
        if let Some(arg) = config.dhcp.iter().find(|arg| arg.port == *name) {
            let client = LeaseClient::new(arg.settings.clone(), open.mac)?;
            wrap(open, left, |queues| client.serve(queues));
            services.clients.push((name.clone(), IfaceId(number), client));
        }
        if let Some(arg) = config.dhcp_servers.iter().find(|arg| arg.port == *name) {
            let server = config.dhcp_server(arg, port, open.mac).map_err(|why| anyhow!(why))?;
            let server = LeaseServer::new(server, arg.leases.clone())?;
            wrap(open, left, |queues| server.serve(queues));
            let (settings, mac, counters) = (arg.clone(), open.mac, Arc::clone(left));
            services.servers.push(PortServer { settings, mac, counters, server });
        }
        if let Some(arg) = config.adverts.iter().find(|arg| arg.port == *name) {
            let advertiser = PortAdvertiser::new(config.advert(arg, port, open.mac))?;
            wrap(open, left, |queues| advertiser.serve(queues));
            services.adverts.push((IfaceId(number), advertiser));
        }
    }
    Ok(services)
}

/// Adds a service to the queues of a port. The service's counters are reported with those of the
/// port.
fn wrap(
    open: &mut OpenPort,
    left: &Left,
    serve: impl FnOnce(Vec<Box<dyn Port + Send>>) -> Vec<Box<dyn Port + Send>>,
) {
    let queues = serve(std::mem::take(&mut open.queues)).into_iter();
    open.queues = queues.map(|queue| Box::new(Counting::new(queue, left)) as _).collect();
}

impl PortServices {
    /// Returns the DHCP servers, for changes while the router runs.
    pub fn running_servers(&self) -> Vec<RunningServer> {
        let running = |PortServer { settings, mac, counters, server }: &PortServer| RunningServer {
            settings: settings.clone(),
            mac: *mac,
            counters: Arc::clone(counters),
            change: Box::new(server.changer()),
        };
        self.servers.iter().map(running).collect()
    }

    /// Starts threads that apply the leases of DHCP clients to a running engine, and write the
    /// leases of DHCP servers to their files. The DNS forwarder learns both.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn run(
        self,
        remote: &Remote,
        ports: &RouterPorts,
        dns: Option<&RouterDns>,
        messages: &Messages,
    ) -> Result<RunningServices> {
        let setters: Vec<_> = self.servers.iter().map(|it| it.server.nameservers()).collect();
        let setters = Arc::new(Mutex::new(setters));
        let mut threads = Vec::new();
        for (name, iface, client) in self.clients {
            let (messages, setters) = (messages.clone(), Arc::clone(&setters));
            let (ports, dns) = (ports.clone(), dns.cloned());
            let tell = move |notice: DhcpNotice| {
                messages.say(&format!("{name}: {}", describe(&notice)));
                if let DhcpNotice::Bound(lease) = &notice {
                    ports.set_lease(iface, lease);
                    let setters = setters.lock().unwrap_or_else(PoisonError::into_inner);
                    setters.iter().for_each(|set| set(&lease.nameservers));
                    dns.iter().for_each(|dns| dns.on_own_lease(lease));
                }
            };
            threads.push(client.follow(remote.clone(), iface, tell).context("a thread for DHCP")?);
        }
        for PortServer { settings, server, .. } in self.servers {
            let (messages, dns) = (messages.clone(), dns.cloned());
            let port = settings.port.clone();
            let tell = move |why: String| messages.put_error(&format!("{port}: {why}"));
            let on_leases = move |records: &[LeaseRecord]| {
                dns.iter().for_each(|dns| dns.on_granted_leases(&settings.port, records));
            };
            threads.push(server.follow(tell, on_leases).context("a thread for leases")?);
        }
        for (iface, advertiser) in self.adverts {
            let thread = advertiser.follow(remote.clone(), iface);
            threads.push(thread.context("a thread for router advertisements")?);
        }
        Ok(RunningServices(threads))
    }
}

/// Threads of the services of a running router.
pub struct RunningServices(Vec<JoinHandle<()>>);

impl RunningServices {
    /// Waits for the threads of the services, which end after the engine has ended.
    pub fn end(self) {
        self.0.into_iter().for_each(|thread| drop(thread.join()));
    }
}
