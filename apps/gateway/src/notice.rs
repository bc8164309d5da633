//! Notices for the user of the program, of which only the gateway knows.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::config::ForwardProtocol;

/// [`Gateway::on_notice`](crate::Gateway::on_notice) says who hears it: a function on the thread
/// that turns the stack, which must not block. `Display` is the text for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Notice {
    /// The host lets this user send no pings. Said once; the counter is `echo_not_permitted`.
    PingNotPermitted,
    /// A client of a published port was turned away, because the program does not listen where the
    /// port leads. Said once for each; the counters are `tcp_accepted_refused` and
    /// `udp_clients_refused`.
    NobodyListens {
        /// The protocol that the client used.
        protocol: ForwardProtocol,
        /// The port of the host.
        host: SocketAddr,
        /// Where it leads.
        program: SocketAddr,
    },
    /// The program listens on its loopback only where a published port leads to it, so that the
    /// port refuses clients. Said once for each port of the program, as soon as that begins to
    /// listen: its next socket may mend it.
    LoopbackOnly {
        /// The protocol of both ports.
        protocol: ForwardProtocol,
        /// The port of the host, or the first of several.
        host: SocketAddr,
        /// Where it leads.
        program: SocketAddr,
    },
    /// The program listens, and the host does not let the gateway do so.
    NotOpened {
        /// The protocol of the port.
        protocol: ForwardProtocol,
        /// The port of the host.
        host: SocketAddr,
        /// The error that the host gave.
        errno: i32,
    },
    /// Clients of published ports are refused, because their flows or the descriptors ran out. Said
    /// once; the counter is `tcp_flows_full`.
    ClientsRefused {
        /// The port of the host at which that happened first.
        host: SocketAddr,
        /// Connections of clients that were open then.
        open: usize,
        /// The limit of descriptors (RLIMIT_NOFILE), if that is the reason.
        descriptors: Option<u64>,
    },
    /// New connections of a client are not taken, because it has as many as one client may have.
    /// Said once; the counter is `tcp_client_full`.
    ClientFull {
        /// The client.
        client: IpAddr,
        /// Number of open connections of the client; over IPv6, of the client's /64 network.
        open: usize,
    },
    /// A connection, datagram or ping of the gateway's own was led back to it by a route of the
    /// host, and refused. Said once; the counter is `loops_refused`.
    Loop {
        /// Its destination; the port of a ping's is 0.
        to: SocketAddr,
    },
    /// Connections that the program makes wait, for the same reason. Said once; the counter is
    /// `tcp_flows_full`.
    ConnectionsWait {
        /// Connections that were open then, those of clients included.
        open: usize,
        /// The limit of descriptors (RLIMIT_NOFILE), if that is the reason.
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

/// The protocol of a port, as `-p` writes it.
fn suffix(protocol: ForwardProtocol) -> &'static str {
    match protocol {
        ForwardProtocol::Tcp => "",
        ForwardProtocol::Udp => "/udp",
    }
}

/// The reason why there are no more flows, and a remedy.
fn bound(f: &mut fmt::Formatter<'_>, descriptors: Option<u64>) -> fmt::Result {
    match descriptors {
        Some(limit) => write!(
            f,
            "the limit of {limit} descriptors allows; raise it (`ulimit -n`) before towpath"
        ),
        None => f.write_str("a run may have; divide the load among several runs"),
    }
}
