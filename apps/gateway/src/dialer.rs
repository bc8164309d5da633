//! The way to the host's network: how sockets of the host reach the destinations of flows.
//!
//! ```text
//!  tcp ─────────► dial ─┬─ Direct ─► the destination
//!                       └─ Server ─► the server ─► `negotiating`, before the SYN is answered
//!  udp, echo ───► carry ─── Direct only
//!  dns, source ─► connect   the gateway's own questions, always direct
//! ```
//!
//! Destinations on the host's loopback are direct as well, because an upstream server would take
//! them for its own.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, connect, socket_with, sockopt};
use towpath_shm::{Fd, opened};

use crate::egress::Egress;
use crate::events::family;
use crate::limits::PLAIN_TTL;
use crate::negotiating::{Negotiating, UpstreamServer};
use crate::sys::{self, IpOption};

/// The way of a gateway's flows to their destinations.
#[derive(Debug, Clone, Default)]
pub enum Upstream {
    /// Sockets of the host are connected to the destinations.
    #[default]
    Direct,
    /// A server connects to them. UDP and echo requests are refused, since a datagram that leaves
    /// directly would go around the server.
    Server(Arc<dyn UpstreamServer>),
}

/// Connects sockets of the host.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) egress: Egress,
    pub(crate) upstream: Upstream,
}

/// A TCP connection that is being made.
pub(crate) struct Dialed {
    pub(crate) host: Fd,
    /// Address that the socket is connecting to.
    pub(crate) to: SocketAddr,
    /// Negotiation that begins when the socket is connected.
    pub(crate) negotiating: Option<Box<Negotiating>>,
}

/// TTL and class of a program's SYN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SynMarks {
    pub(crate) ttl: u8,
    pub(crate) class: u8,
}

impl Dialer {
    pub(crate) fn new(egress: Egress) -> Self {
        Self { egress, upstream: Upstream::Direct }
    }

    /// Makes a connection for a flow to `to`.
    pub(crate) fn dial(&self, to: SocketAddr, marks: SynMarks) -> Result<Dialed, Errno> {
        match self.server_for(to) {
            None => self.dial_direct(to, marks),
            Some(server) => {
                // The TTL of a SYN counts routers to the destination.
                let marks = SynMarks { ttl: PLAIN_TTL, ..marks };
                let dialed = self.dial_direct(server.address(), marks)?;
                let negotiating = Some(Box::new(Negotiating::new(server.negotiate(to))));
                Ok(Dialed { negotiating, ..dialed })
            }
        }
    }

    /// Makes a connection to `to` itself.
    pub(crate) fn dial_direct(&self, to: SocketAddr, marks: SynMarks) -> Result<Dialed, Errno> {
        let host = socket(SocketType::STREAM, to)?;
        prepare(&host);
        let SynMarks { ttl, class } = marks;
        for (option, value, plain) in [(IpOption::Ttl, ttl, PLAIN_TTL), (IpOption::Tos, class, 0)] {
            if value != plain {
                sys::set_ip(host.as_fd(), to.is_ipv6(), option, value.into())?;
            }
        }
        if ttl != PLAIN_TTL {
            sys::set_ip(host.as_fd(), to.is_ipv6(), IpOption::ReceiveErrors, 1)?;
        }
        self.connect(&host, to)?;
        Ok(Dialed { host, to, negotiating: None })
    }

    /// Connects a socket for a flow of datagrams to `to`.
    pub(crate) fn carry(&self, host: &Fd, to: SocketAddr) -> Result<(), Errno> {
        match self.server_for(to) {
            None => self.connect(host, to),
            Some(_) => Err(Errno::HOSTUNREACH),
        }
    }

    /// Connects a socket, or begins to. Datagram sockets send nothing.
    pub(crate) fn connect(&self, host: &Fd, to: SocketAddr) -> Result<(), Errno> {
        self.egress.apply(host, to.ip())?;
        match connect(host, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Address that sockets of flows to `to` are connected to.
    pub(crate) fn first_stop(&self, to: SocketAddr) -> SocketAddr {
        self.server_for(to).map_or(to, |server| server.address())
    }

    fn server_for(&self, to: SocketAddr) -> Option<&dyn UpstreamServer> {
        match &self.upstream {
            Upstream::Server(server) if !to.ip().is_loopback() => Some(&**server),
            Upstream::Direct | Upstream::Server(_) => None,
        }
    }
}

/// A socket of the host towards `to`, which nothing waits for.
pub(crate) fn socket(kind: SocketType, to: SocketAddr) -> Result<Fd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(opened(|| socket_with(family(to), kind, flags, None))?.into())
}

/// Options of every host connection, or of the listener from which it has them (sk_clone_lock in
/// net/core/sock.c):
///
/// - SO_LINGER: a close is a reset until the program's stream is whole.
/// - TCP_NODELAY: the program's segments leave as it sends them.
/// - SO_KEEPALIVE: a vanished peer is noticed some day, since the program's own keepalive ends at
///   the gateway.
/// - SO_OOBINLINE: urgent bytes are read in their place, and become urgent ones of the stack there.
pub(crate) fn prepare(host: &Fd) {
    reset(host);
    // Options of a fresh TCP socket do not fail. Without one the flow would be slower, not broken.
    let _ = sockopt::set_tcp_nodelay(host, true);
    let _ = sockopt::set_socket_keepalive(host, true);
    let _ = sockopt::set_socket_oobinline(host, true);
}

/// Makes the close of a host socket a reset, whatever it still has to send.
pub(crate) fn reset(host: &Fd) {
    // The option fails for no socket that is open.
    let _ = sockopt::set_socket_linger(host, Some(Duration::ZERO));
}
