//! What the user of the program should know, and only the gateway knows.

use std::fmt;
use std::net::SocketAddr;

/// Whoever hears it is on the thread that turns the stack, and must not make it wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The host lets this user send no pings. Said once; the counter is `echo_not_permitted`.
    PingNotPermitted,
    /// A client of a published port was turned away, because the program does not listen where the port leads.
    /// Said once for each; the counter is `tcp_accepted_refused`.
    NobodyListens {
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
            Self::NobodyListens { host, program } => write!(
                f,
                "a client of {host} was turned away: nothing listens on {program}, or not yet; a server \
                 that listens on 127.0.0.1 is not reached, let it listen on 0.0.0.0"
            ),
        }
    }
}
