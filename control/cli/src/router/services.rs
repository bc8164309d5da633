//! Services of a router: the DHCP clients and DHCP servers of its ports.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use towpath_engine::Remote;
use towpath_pool::Port;
use towpath_router::OpenPort;
use towpath_stack::IfaceId;
use towpath_uplink::{Counting, DhcpNotice, LeaseClient, LeaseServer};

use super::args::RouterArgs;
use super::layers;
use super::open::Left;
use super::service_args::DhcpArg;
use crate::dhcp::describe;
use crate::messages::Messages;

/// Marks the ports that `--dhcp` names as DHCP clients, and validates the ports of `--dhcp-server`.
///
/// # Errors
/// Returns an error message if a port does not exist, is named twice, or has no network that
/// contains the pool.
pub fn assigned(mut args: RouterArgs) -> Result<RouterArgs, String> {
    let names = args.port.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let unknown =
        |option: &str, name: &str| format!("--{option} names the port {name:?}; there are {names}");
    for DhcpArg { port: name, .. } in &args.services.dhcp {
        let port = args.port.iter_mut().find(|port| port.name == *name);
        let port = port.ok_or_else(|| unknown("dhcp", name))?;
        if std::mem::replace(&mut port.by_dhcp, true) {
            return Err(format!("--dhcp names the port {name} twice"));
        }
    }
    let mut served = Vec::new();
    for server in &args.services.dhcp_server {
        let name = &server.port;
        let port = args.port.iter().find(|port| port.name == *name);
        let port = port.ok_or_else(|| unknown("dhcp-server", name))?;
        layers::check_dhcp("dhcp-server", port)?;
        server.config(port, [0; 6], false)?;
        if served.contains(&name) {
            return Err(format!("--dhcp-server names the port {name} twice"));
        }
        served.push(name);
    }
    Ok(args)
}

/// DHCP clients and servers of open ports, before the engine runs.
#[derive(Default)]
pub struct PortServices {
    clients: Vec<(String, IfaceId, LeaseClient)>,
    servers: Vec<(String, LeaseServer)>,
}

/// Adds the DHCP clients and servers to their ports. `ports` are the opened ports, in the order of
/// the options.
///
/// # Errors
/// Fails if a file of leases is invalid, or if the kernel returns no random bytes.
pub fn attach(
    args: &RouterArgs,
    ports: &mut [OpenPort],
    counters: &[Left],
) -> Result<PortServices> {
    let with_counters = args.port.iter().zip(counters);
    let interfaces = with_counters.filter(|(port, _)| port.is_interface());
    let mut services = PortServices::default();
    for (((port, left), open), number) in interfaces.zip(ports).zip(1..) {
        let name = &port.name;
        if let Some(arg) = args.services.dhcp.iter().find(|arg| arg.port == *name) {
            let client = LeaseClient::new(arg.settings.clone(), open.mac)?;
            wrap(open, left, |queues| client.serve(queues));
            services.clients.push((name.clone(), IfaceId(number), client));
        }
        if let Some(arg) = args.services.dhcp_server.iter().find(|arg| arg.port == *name) {
            let has_client = !args.services.dhcp.is_empty();
            let config = arg.config(port, open.mac, has_client).map_err(|why| anyhow!(why))?;
            let server = LeaseServer::new(config, arg.leases.clone())?;
            wrap(open, left, |queues| server.serve(queues));
            services.servers.push((name.clone(), server));
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
    /// Starts threads that apply the leases of DHCP clients to a running engine, and write the
    /// leases of DHCP servers to their files.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn run(self, remote: &Remote, messages: &Messages) -> Result<RunningServices> {
        let setters: Vec<_> = self.servers.iter().map(|(_, server)| server.nameservers()).collect();
        let setters = Arc::new(Mutex::new(setters));
        let mut threads = Vec::new();
        for (name, iface, client) in self.clients {
            let (messages, setters) = (messages.clone(), Arc::clone(&setters));
            let tell = move |notice: DhcpNotice| {
                messages.say(&format!("{name}: {}", describe(&notice)));
                if let DhcpNotice::Bound(lease) = &notice {
                    let setters = setters.lock().unwrap_or_else(PoisonError::into_inner);
                    setters.iter().for_each(|set| set(&lease.nameservers));
                }
            };
            threads.push(client.follow(remote.clone(), iface, tell).context("a thread for DHCP")?);
        }
        for (name, server) in self.servers {
            let messages = messages.clone();
            let tell = move |why: String| messages.put_error(&format!("{name}: {why}"));
            threads.push(server.follow(tell).context("a thread for leases")?);
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
