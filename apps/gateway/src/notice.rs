//! What the user of the program should know, and only the gateway knows.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::config::ForwardProtocol;

/// [`Gateway::on_notice`](crate::Gateway::on_notice) says who hears it: a function on the thread that turns the stack,
/// which must not block. `Display` is the text for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Notice {
    /// The host lets this user send no pings. Said once; the counter is `echo_not_permitted`.
    PingNotPermitted,
    /// A client of a published port was turned away, because the program does not listen where the port leads.
    /// Said once for each; the counters are `tcp_accepted_refused` and `udp_clients_refused`.
    NobodyListens {
        /// The protocol that the client used.
        protocol: ForwardProtocol,
        /// The port of the host.
        host: SocketAddr,
        /// Where it leads.
        program: SocketAddr,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingNotPermitted => f.write_str(
                "pings get no answer: this user may not send them (sysctl net.ipv4.ping_group_range)",
            ),
            Self::NobodyListens { protocol, host, program } => {
                // As `-p` writes it.
                let protocol = match protocol {
                    ForwardProtocol::Tcp => "",
                    ForwardProtocol::Udp => "/udp",
                };
                write!(
                    f,
                    "a client of {host}{protocol} was turned away: nothing listens on {program}{protocol}, or not \
                     yet; a server that listens on 127.0.0.1 is not reached, let it listen on 0.0.0.0"
                )
            }
        }
    }
}
