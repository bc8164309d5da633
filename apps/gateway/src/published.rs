//! Opens and closes published ports as the program opens and closes sockets in its stack.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::sockopt::ipv6_v6only;
use towpath_shm::Fd;
use towpath_stack::{ReceiverAt, ReceiverChange, ReceiverWatch, SocketKind};

use crate::config::{ForwardProtocol, GatewayConfig};
use crate::gate::Gate;
use crate::listener_mirror;
use crate::listeners::Bound;
use crate::notice::Notice;

/// Opens and closes a host's published ports as the program's sockets change. A port accepts
/// clients while a socket of the program would receive their packets. Otherwise, the host's kernel
/// refuses them.
pub struct PublishWatch {
    /// Ports of the program, by whether the port is UDP and by its number.
    ports: BTreeMap<(bool, u16), Mutex<Port>>,
    tell: Box<dyn Fn(Notice) + Send + Sync>,
}

/// A port of the program, with the host ports that forward to it, and the sockets that the program
/// has bound to it.
#[derive(Debug, Default)]
struct Port {
    doors: Vec<PublishedPort>,
    sockets: BTreeMap<u32, ReceiverAt>,
    /// Whether the user was notified that clients cannot reach the program's sockets on this port.
    told: bool,
}

/// Published port of the host, with its socket and state.
#[derive(Debug)]
pub(crate) struct PublishedPort {
    /// Host socket, shared by the gateways that accept clients from it.
    socket: Arc<Fd>,
    /// Switch that determines whether clients are accepted, for a socket passed by another process.
    /// `None` for a socket that this process has bound.
    gate: Option<Gate>,
    protocol: ForwardProtocol,
    host: SocketAddr,
    /// Addresses of the program to which clients of this published port are connected.
    pub(crate) programs: Vec<SocketAddr>,
    pub(crate) is_open: bool,
}

/// Example client addresses (RFC 5737, RFC 3849). Used to compute the addresses of the program at
/// which any such client would be connected.
const SOMEBODY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SOMEBODY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

impl PublishWatch {
    /// Creates the ports of `bound`, which refuse clients at first. Gateways with the configuration
    /// `config` must serve them ([`Gateway::serve_bound`](crate::Gateway::serve_bound)). Threads of
    /// the stack call `tell` with notices for the user.
    pub fn new(
        config: &GatewayConfig,
        bound: &[Bound],
        tell: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut ports: BTreeMap<_, Port> = BTreeMap::new();
        for bound in bound {
            let which = bound.which;
            let key = (which.protocol == ForwardProtocol::Udp, which.port);
            ports.entry(key).or_default().doors.push(PublishedPort::new(config, bound));
        }
        let ports = ports.into_iter().map(|(key, port)| (key, Mutex::new(port))).collect();
        Arc::new(Self { ports, tell: Box::new(tell) })
    }
}

impl ReceiverWatch for PublishWatch {
    fn on_change(&self, change: &ReceiverChange) {
        let is_udp = change.kind == SocketKind::Datagram;
        let Some(port) = self.ports.get(&(is_udp, change.port)) else { return };
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        match change.takes {
            Some(at) => drop(port.sockets.insert(change.seat, at)),
            None => drop(port.sockets.remove(&change.seat)),
        }
        port.settle(&self.tell);
    }
}

impl fmt::Debug for PublishWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishWatch").field("ports", &self.ports).finish_non_exhaustive()
    }
}

impl Port {
    /// Opens the published ports while a socket of the program would receive packets of their
    /// clients. Otherwise closes them.
    fn settle(&mut self, tell: &dyn Fn(Notice)) {
        let Self { doors, sockets, told } = self;
        for door in doors.iter_mut() {
            door.set(sockets.values().any(|at| door.leads_to(at)), tell);
        }
        let in_vain = !sockets.is_empty() && sockets.values().all(ReceiverAt::is_loopback);
        if in_vain
            && !*told
            && let Some(notice) = doors.first().and_then(PublishedPort::loopback_only)
        {
            *told = true;
            tell(notice);
        }
    }
}

impl PublishedPort {
    /// Creates the port in closed state. Closes the socket for clients, even if an earlier program
    /// left it open.
    pub(crate) fn new(config: &GatewayConfig, bound: &Bound) -> Self {
        let Bound { which, socket, host, gate } = bound;
        if gate.is_none() {
            listener_mirror::shut(socket, *host, which.protocol);
        }
        let loopback: IpAddr = match host {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let somebody = if host.is_ipv4() { SOMEBODY_V4 } else { SOMEBODY_V6 };
        let other = host.is_ipv6() && ipv6_v6only(socket) == Ok(false);
        let clients = [
            Some(loopback),
            Some(somebody).filter(|_| !host.ip().is_loopback()),
            Some(SOMEBODY_V4).filter(|_| other),
        ];
        // For UDP, only the first address pair is tried, because a lost datagram causes no refusal
        // after which to try another one.
        let tries = if which.protocol == ForwardProtocol::Udp { 1 } else { 2 };
        let presented = clients.into_iter().flatten().flat_map(|client| {
            let presented = config.presented(SocketAddr::new(client, 1), which.port);
            presented.into_iter().take(tries).flatten()
        });
        let mut programs: Vec<_> = presented.map(|presented| presented.program).collect();
        programs.dedup();
        let (socket, protocol) = (Arc::clone(socket), which.protocol);
        Self { socket, gate: gate.clone(), protocol, host: *host, programs, is_open: false }
    }

    fn leads_to(&self, at: &ReceiverAt) -> bool {
        self.programs.iter().any(|program| at.is_reached_at(program.ip()))
    }

    /// Returns the notice for the user that the program listens only on its loopback address.
    pub(crate) fn loopback_only(&self) -> Option<Notice> {
        let (protocol, host, program) = (self.protocol, self.host, *self.programs.first()?);
        Some(Notice::LoopbackOnly { protocol, host, program })
    }

    /// Opens or shuts the port for clients. Returns whether its state changed.
    pub(crate) fn set(&mut self, is_open: bool, tell: &dyn Fn(Notice)) -> bool {
        if std::mem::replace(&mut self.is_open, is_open) == is_open {
            return false;
        }
        let Self { socket, gate, protocol, host, .. } = self;
        let done = match gate {
            Some(gate) => gate.set(socket, is_open),
            None if is_open => listener_mirror::open(socket, *protocol),
            None => {
                listener_mirror::shut(socket, *host, *protocol);
                Ok(())
            }
        };
        if let Err(error) = done {
            let (protocol, host, errno) = (*protocol, *host, error.raw_os_error());
            tell(Notice::NotOpened { protocol, host, errno });
        }
        true
    }
}
