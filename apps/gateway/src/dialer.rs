//! Connects host sockets to the destinations of flows, directly or through an upstream server.
//!
//! ```text
//!  tcp ─────────► dial ─┬─ Direct ─► the destination
//!                       └─ Server ─► the server ─► `negotiating`, before the SYN is answered
//!  udp, echo ───► carry ─── Direct only
//!  dns, source ─► connect   the gateway's own questions, always direct
//! ```
//!
//! Destinations on the host's loopback are also connected directly, because an upstream server
//! would connect to its own loopback.

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

/// How the gateway's host sockets reach the destinations of flows.
#[derive(Debug, Clone, Default)]
pub enum Upstream {
    /// Host sockets are connected to the destinations.
    #[default]
    Direct,
    /// An upstream server (a proxy) connects to the destinations. UDP and echo requests are
    /// refused, because datagrams would bypass the server.
    Server(Arc<dyn UpstreamServer>),
}

/// Connects the gateway's host sockets to destinations or to the upstream server.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) egress: Egress,
    pub(crate) upstream: Upstream,
}

/// A TCP connection that is being established.
pub(crate) struct Dialed {
    pub(crate) host: Fd,
    /// Address to which the host socket is connecting: the destination or the upstream server.
    pub(crate) to: SocketAddr,
    /// Negotiation with the upstream server, which begins when the host socket is connected. `None`
    /// for a direct connection.
    pub(crate) negotiating: Option<Box<Negotiating>>,
}

/// TTL and traffic class of the program's SYN, to be used by the host socket, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SynMarks {
    pub(crate) ttl: u8,
    pub(crate) class: u8,
}

impl Dialer {
    pub(crate) fn new(egress: Egress) -> Self {
        Self { egress, upstream: Upstream::Direct }
    }

    /// Starts to connect a host socket for a flow to `to`, through the upstream server if there is
    /// one.
    pub(crate) fn dial(&self, to: SocketAddr, marks: SynMarks) -> Result<Dialed, Errno> {
        match self.server_for(to) {
            None => self.dial_direct(to, marks),
            Some(server) => {
                // Use the default TTL: the program's TTL counts routers to the destination, and not
                // to the server.
                let marks = SynMarks { ttl: PLAIN_TTL, ..marks };
                let dialed = self.dial_direct(server.address(), marks)?;
                let negotiating = Some(Box::new(Negotiating::new(server.negotiate(to))));
                Ok(Dialed { negotiating, ..dialed })
            }
        }
    }

    /// Starts to connect a host socket directly to `to`.
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

    /// Connects a datagram socket of a flow to `to`.
    pub(crate) fn carry(&self, host: &Fd, to: SocketAddr) -> Result<(), Errno> {
        match self.server_for(to) {
            None => self.connect(host, to),
            Some(_) => Err(Errno::HOSTUNREACH),
        }
    }

    /// Connects a socket, or starts to if it is a TCP socket. Connecting a datagram socket sends no
    /// packet.
    pub(crate) fn connect(&self, host: &Fd, to: SocketAddr) -> Result<(), Errno> {
        self.egress.apply(host, to.ip())?;
        match connect(host, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the address to which a host socket for a flow to `to` connects: `to` or the upstream
    /// server.
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

/// Opens a non-blocking host socket of the address family of `to`.
pub(crate) fn socket(kind: SocketType, to: SocketAddr) -> Result<Fd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(opened(|| socket_with(family(to), kind, flags, None))?.into())
}

/// Sets the options of all host connections. Connections inherit them from their listener
/// (sk_clone_lock in net/core/sock.c):
///
/// - SO_LINGER: a close sends a reset, until the program's stream is complete.
/// - TCP_NODELAY: the program's segments are sent without delay.
/// - SO_KEEPALIVE: detects a vanished peer, because the program's own keepalive ends at the
///   gateway.
/// - SO_OOBINLINE: urgent bytes are read in order, and sent as urgent data to the program.
pub(crate) fn prepare(host: &Fd) {
    reset(host);
    // Ignore errors: these options cannot fail on a new TCP socket, and without them the flow would
    // be slower but correct.
    let _ = sockopt::set_tcp_nodelay(host, true);
    let _ = sockopt::set_socket_keepalive(host, true);
    let _ = sockopt::set_socket_oobinline(host, true);
}

/// Makes closing a host socket send a reset, even if it has unsent data.
pub(crate) fn reset(host: &Fd) {
    // Ignore errors: the option cannot fail on an open socket.
    let _ = sockopt::set_socket_linger(host, Some(Duration::ZERO));
}
