//! Sockets of a run, as they are written in JSON.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use towpath_engine::TcpFigures;

/// Sockets of a run, as `towpath ss` shows them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// User whose run it is.
    pub owner: u32,
    /// Process id of `towpath run`.
    pub pid: u32,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    /// All sockets of the run.
    pub sockets: Vec<ShownSocket>,
}

/// A socket, as `towpath_engine::SocketEntry` is written in JSON. `towpath ss -j` prints the same
/// fields, with the run in front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShownSocket {
    /// Its protocol.
    pub proto: Proto,
    /// As ss(8) spells it: ESTAB, LISTEN, UNCONN, TIME-WAIT, …
    pub state: Word,
    /// Unread bytes; of a listener, connections to accept.
    pub recv_q: u64,
    /// Unacknowledged bytes; of a listener, the backlog.
    pub send_q: u64,
    /// None: not bound.
    pub local: Option<SocketAddr>,
    /// None: not connected.
    pub remote: Option<SocketAddr>,
    /// Congestion window in segments; 0 where there is none.
    pub cwnd: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_us: u32,
    /// Congestion control; None where there is none.
    pub congestion: Option<Word>,
    /// Figures of a connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Figures of a flow that a proxy carries; None: a socket of a run.
    #[serde(flatten)]
    pub flow: Option<FlowFigures>,
    /// Processes that hold it; at most [`towpath_engine::HOLDERS_SHOWN`].
    pub holders: Vec<u32>,
    /// Bytes that its receive buffer may hold.
    pub recv_buffer: u32,
    /// Bytes that its send buffer may hold.
    pub send_buffer: u32,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// SO_BINDTODEVICE.
    pub device: Option<Word>,
    /// None: half-open or in TIME-WAIT, and no socket of a program.
    pub slot: Option<u32>,
}

/// Figures of a flow of `towpath proxy`. Its client stands in the place of the socket's own
/// address, and the destination that the client chose in that of the peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Payload taken from the client.
    pub bytes_to_server: u64,
    /// Payload that the client has of the server.
    pub bytes_to_client: u64,
    /// Address of the proxy's own socket.
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
    /// Ping sockets, of ICMP and ICMPv6.
    Icmp,
}

impl Proto {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// A word that a terminal shows as it is: an answer may come from another user, to root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Word(String);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padding as of a string.
        f.pad(&self.0)
    }
}

impl Word {
    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Word {
    /// A word of this program's source, which needs no check.
    #[must_use]
    pub fn known(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl TryFrom<String> for Word {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Longer than any state of ss(8), any name of a counter and any name of an interface.
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
