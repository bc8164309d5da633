//! Types of the control protocol for the sockets of a run.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use towpath_engine::TcpFigures;

/// Sockets of a run, as `towpath ss` shows them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// User id of the run's owner.
    pub owner: u32,
    /// Process id of `towpath run`.
    pub pid: u32,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    /// All sockets of the run.
    pub sockets: Vec<ShownSocket>,
}

/// A socket, in the JSON format of `towpath_engine::SocketEntry`. `towpath ss -j` prints the same
/// fields, preceded by the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShownSocket {
    /// Transport protocol of the socket.
    pub proto: Proto,
    /// State of the socket, named as in ss(8): ESTAB, LISTEN, UNCONN, TIME-WAIT, …
    pub state: Word,
    /// Number of received bytes not yet read. For a listener: number of connections to accept.
    pub recv_q: u64,
    /// Number of sent bytes not yet acknowledged. For a listener: the backlog.
    pub send_q: u64,
    /// Local address; `None` if the socket is not bound.
    pub local: Option<SocketAddr>,
    /// Remote address; `None` if the socket is not connected.
    pub remote: Option<SocketAddr>,
    /// Congestion window in segments; 0 if the socket has none.
    pub cwnd: u32,
    /// Smoothed round-trip time in µs.
    pub rtt_us: u32,
    /// Name of the congestion control algorithm; `None` if the socket has none.
    pub congestion: Option<Word>,
    /// Values of TCP_INFO and further state; `None` unless this is a TCP connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Counters of a flow of `towpath proxy`; `None` for other sockets.
    #[serde(flatten)]
    pub flow: Option<FlowFigures>,
    /// Ids of processes that have the socket open; at most [`towpath_engine::HOLDERS_SHOWN`].
    pub holders: Vec<u32>,
    /// Size of the receive buffer in bytes.
    pub recv_buffer: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer: u32,
    /// Whether the option IPV6_V6ONLY is set.
    pub v6_only: bool,
    /// Interface to which the socket is bound (SO_BINDTODEVICE).
    pub device: Option<Word>,
    /// Index of the socket's slot in shared memory. `None` if the connection has no socket, because
    /// it is half-open or in TIME-WAIT.
    pub slot: Option<u32>,
}

/// Counters of a flow of `towpath proxy`. The socket's local address is that of the client, and its
/// remote address is the destination that the client chose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Payload bytes that the proxy has received from the client.
    pub bytes_to_server: u64,
    /// Payload bytes that the client has received from the server.
    pub bytes_to_client: u64,
    /// Local address of the socket by which the proxy is connected to the server.
    pub via: Option<SocketAddr>,
}

/// Transport protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
    /// Ping sockets of ICMP and ICMPv6.
    Icmp,
}

impl Proto {
    /// Returns the name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// A printable word without spaces. Deserialization validates it, because root may read answers
/// from runs of other users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Word(String);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Format like a string, with padding.
        f.pad(&self.0)
    }
}

impl Word {
    /// Returns the word as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Word {
    /// Creates a word from a string literal, which is not validated.
    #[must_use]
    pub fn known(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl TryFrom<String> for Word {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Maximum length in bytes, longer than any state of ss(8), counter name or interface name.
        const LEN_MAX: usize = 64;
        let plain = text.len() <= LEN_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        if plain { Ok(Self(text)) } else { Err("not a word") }
    }
}

impl TryFrom<&str> for Word {
    type Error = &'static str;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.to_owned().try_into()
    }
}
