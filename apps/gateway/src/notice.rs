//! Notices for the user about events in the gateway.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::config::ForwardProtocol;

/// A notice to the user. Passed to the callback of
/// [`Gateway::on_notice`](crate::Gateway::on_notice), which runs on the stack's thread and must not
/// block. `Display` formats the text for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Notice {
    /// The host does not permit this user to send pings. Reported once; the counter
    /// `echo_not_permitted` counts all.
    PingNotPermitted,
    /// A client of a published port was refused, because the program does not listen on the
    /// forwarded port. Reported once per port; the counters `tcp_accepted_refused` and
    /// `udp_clients_refused` count all.
    NobodyListens {
        /// Protocol that the client used.
        protocol: ForwardProtocol,
        /// Published address and port of the host.
        host: SocketAddr,
        /// Address of the program to which the port is forwarded.
        program: SocketAddr,
    },
    /// The program listens only on its loopback address, so its published port refuses clients.
    /// Reported once per port as soon as the program listens, although the program may open further
    /// sockets later.
    LoopbackOnly {
        /// Protocol of the published port and of the program's port.
        protocol: ForwardProtocol,
        /// Published address and port of the host. If several ports are published for the program's
        /// port, the first of them.
        host: SocketAddr,
        /// Address of the program to which the port is forwarded.
        program: SocketAddr,
    },
    /// The program listens, but the gateway could not listen on the host.
    NotOpened {
        /// Protocol of the port.
        protocol: ForwardProtocol,
        /// Address and port of the host on which the gateway tried to listen.
        host: SocketAddr,
        /// The errno with which bind(2) or listen(2) failed.
        errno: i32,
    },
    /// Clients of published ports are refused, because the flow or descriptor limit is reached.
    /// Reported once; the counter `tcp_flows_full` counts all.
    ClientsRefused {
        /// Published address and port at which the first client was refused.
        host: SocketAddr,
        /// Number of open client connections when the limit was reached.
        open: usize,
        /// Descriptor limit (RLIMIT_NOFILE), if it is the limit that was reached.
        descriptors: Option<u64>,
    },
    /// New connections of a client are refused, because the client has reached the per-client
    /// limit. Reported once; the counter `tcp_client_full` counts all.
    ClientFull {
        /// Address of the client.
        client: IpAddr,
        /// Number of open connections of the client; over IPv6, of the client's /64 network.
        open: usize,
    },
    /// A connection, datagram or ping of the gateway itself was routed back to the gateway and
    /// refused. Reported once; the counter `loops_refused` counts all.
    Loop {
        /// Destination of the looped flow. The port is 0 for a ping.
        to: SocketAddr,
    },
    /// Connections of the program must wait, because the flow or descriptor limit is reached.
    /// Reported once; the counter `tcp_flows_full` counts all.
    ConnectionsWait {
        /// Number of open connections when the limit was reached, including clients' connections.
        open: usize,
        /// Descriptor limit (RLIMIT_NOFILE), if it is the limit that was reached.
        descriptors: Option<u64>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingNotPermitted => f.write_str(
                "pings get no answer: this user may not send them (sysctl net.ipv4.ping_group_range)",
            ),
            Self::NobodyListens { protocol, host, program } => {
                let protocol = suffix(*protocol);
                write!(
                    f,
                    "a client of {host}{protocol} was turned away: nothing listens on {program}{protocol}, or not \
                     yet; a server that listens on 127.0.0.1 is not reached, let it listen on 0.0.0.0"
                )
            }
            Self::LoopbackOnly { protocol, host, program } => {
                let (suffix, port) = (suffix(*protocol), program.port());
                write!(
                    f,
                    "clients of {host}{suffix} are refused: the program listens on port {port} of \
                     its loopback only, which they do not reach; let it listen on 0.0.0.0"
                )
            }
            Self::NotOpened { protocol, host, errno } => {
                let (suffix, error) = (suffix(*protocol), io::Error::from_raw_os_error(*errno));
                write!(f, "clients of {host}{suffix} are refused: cannot listen there: {error}")
            }
            Self::ClientsRefused { host, open, descriptors } => {
                write!(f, "clients of {host} are refused: {open} connections of clients are open, ")?;
                f.write_str("as many as ")?;
                bound(f, *descriptors)
            }
            Self::ClientFull { client, open } => write!(
                f,
                "new connections of {client} are not taken: {open} are open, as many as one client \
                 may have"
            ),
            Self::Loop { to } => {
                match to.port() {
                    0 => write!(f, "towpath's own ping of {}", to.ip())?,
                    _ => write!(f, "towpath's own connection to {to}")?,
                }
                f.write_str(
                    " came back into its tunnel and was refused: a route leads it there; keep \
                     towpath's sockets out with --interface IF, or with --mark N and a rule for \
                     that mark",
                )
            }
            Self::ConnectionsWait { open, descriptors } => {
                write!(f, "connections of the program wait: {open} are open, as many as ")?;
                bound(f, *descriptors)
            }
        }
    }
}

/// Returns the suffix that denotes the protocol of a port, as in the option `-p`.
fn suffix(protocol: ForwardProtocol) -> &'static str {
    match protocol {
        ForwardProtocol::Tcp => "",
        ForwardProtocol::Udp => "/udp",
    }
}

/// Writes to `f` which limit is reached, and how to raise it.
fn bound(f: &mut fmt::Formatter<'_>, descriptors: Option<u64>) -> fmt::Result {
    match descriptors {
        Some(limit) => write!(
            f,
            "the limit of {limit} descriptors allows; raise it (`ulimit -n`) before towpath"
        ),
        None => f.write_str("a run may have; divide the load among several runs"),
    }
}
