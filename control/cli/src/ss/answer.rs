//! What a run answers `towpath ss`: its sockets, as they are written in JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use towpath_engine::TcpFigures;

/// What an instance answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Process id of `towpath run`.
    pub pid: u32,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    /// All sockets of the run.
    pub sockets: Vec<Socket>,
}

/// What an instance answers that cannot say which sockets it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Silence {
    /// Process id of `towpath run`.
    pub pid: u32,
    /// The rest of a sentence that begins with the run.
    pub why: String,
}

/// One socket, as `towpath_engine::SocketEntry` is written in JSON. Also what `towpath ss -j` prints,
/// with the instance in front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Socket {
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
    /// What TCP knows of a connection.
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
    /// None: it is half-open or in TIME-WAIT, and no socket of a program.
    pub slot: Option<u32>,
}

/// Figures of a flow of `towpath proxy`. Its client stands in the place of the socket's own address,
/// and the destination that the client chose in that of the peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Payload taken from the client.
    pub bytes_to_server: u64,
    /// Payload that the client has of the server.
    pub bytes_to_client: u64,
    /// Address of the proxy's own socket.
    pub via: Option<SocketAddr>,
}

/// Which protocol a socket is of.
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
    pub(super) fn name(self) -> &'static str {
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

impl Word {
    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the source says needs no check.
impl From<&'static str> for Word {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl TryFrom<String> for Word {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Longer than any state of ss(8) and any name in tcp_congestion_control (16, TCP_CA_NAME_MAX).
        const LEN_MAX: usize = 32;
        let plain = text.len() <= LEN_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        if plain { Ok(Self(text)) } else { Err("not a word") }
    }
}
