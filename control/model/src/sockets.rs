//! Sockets of a run, as serialized to JSON.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use towpath_engine::TcpFigures;

/// Sockets of a run, as shown by `towpath ss`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// User who owns the run.
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
    /// Protocol of the socket.
    pub proto: Proto,
    /// State as in ss(8): ESTAB, LISTEN, UNCONN, TIME-WAIT, …
    pub state: Word,
    /// Unread bytes; for a listener, connections to accept.
    pub recv_q: u64,
    /// Unacknowledged bytes; for a listener, the backlog.
    pub send_q: u64,
    /// Local address; None if not bound.
    pub local: Option<SocketAddr>,
    /// Remote address; None if not connected.
    pub remote: Option<SocketAddr>,
    /// Congestion window in segments; 0 if there is none.
    pub cwnd: u32,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Congestion control algorithm; None if there is none.
    pub congestion: Option<Word>,
    /// TCP state of a connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Counters of a flow; None unless this is a flow of a proxy.
    #[serde(flatten)]
    pub flow: Option<FlowFigures>,
    /// Processes that hold the socket; at most [`towpath_engine::HOLDERS_SHOWN`].
    pub holders: Vec<u32>,
    /// Size of the receive buffer in bytes.
    pub recv_buffer: u32,
    /// Size of the send buffer in bytes.
    pub send_buffer: u32,
    /// Option IPV6_V6ONLY.
    pub v6_only: bool,
    /// Option SO_BINDTODEVICE.
    pub device: Option<Word>,
    /// Index of the socket's slot. None if no socket belongs to the connection, because it is
    /// half-open or in TIME-WAIT.
    pub slot: Option<u32>,
}

/// Counters of a flow of `towpath proxy`. The socket's local address is that of the client, and its
/// remote address is the destination that the client chose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Payload bytes received from the client.
    pub bytes_to_server: u64,
    /// Payload bytes of the server that the client has received.
    pub bytes_to_client: u64,
    /// Local address of the proxy's own socket.
    pub via: Option<SocketAddr>,
}

/// Protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
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

/// Printable word without spaces. Validated because an answer to root may come from another user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Word(String);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Pad as a string.
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
    /// Creates a word from a string literal, without validation.
    #[must_use]
    pub fn known(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl TryFrom<String> for Word {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Longer than any state of ss(8), counter name or interface name.
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
