//! Configuration of a forwarder, and the messages that it exchanges with its owner.

use core::net::{IpAddr, SocketAddr};

use towpath_dns::Protocol;
use towpath_siit::TranslationPrefix;

/// Configuration of a DNS forwarder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwarderConfig {
    /// Maximum number of cached answers.
    pub cache_entries: usize,
    /// Maximum number of bytes of cached answers, including their keys.
    pub cache_bytes: usize,
    /// Minimum time in seconds for which a cacheable answer is cached.
    pub ttl_min_s: u32,
    /// Maximum time in seconds for which an answer is cached.
    pub ttl_max_s: u32,
    /// Maximum number of queries that wait for upstream servers.
    pub pending_max: usize,
    /// Maximum number of these queries of one address. IPv6 addresses with the same first 64 bits
    /// have half of `pending_max` together, because a host can use all of them.
    pub pending_per_client: usize,
    /// Prefix of synthesized IPv6 addresses for names with IPv4 addresses alone; `None` without
    /// DNS64.
    pub dns64: Option<TranslationPrefix>,
}

impl Default for ForwarderConfig {
    fn default() -> Self {
        Self {
            cache_entries: 10_000,
            cache_bytes: 4 << 20,
            ttl_min_s: 0,
            ttl_max_s: 86_400,
            pending_max: 1024,
            pending_per_client: 150,
            dns64: None,
        }
    }
}

/// Number of a message to an upstream server. Each message has another number, so that the answer
/// to an earlier one is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsExchange(pub u64);

/// Sender of a query, to which the reply is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DnsClient {
    /// Address and port of the client.
    pub remote: SocketAddr,
    /// Socket on which the query has arrived.
    pub path: ReplyPath,
}

/// Socket by which a reply is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyPath {
    /// The UDP socket with this number.
    Datagram {
        /// Number of the socket, chosen by the owner of the forwarder.
        socket: usize,
        /// Address of the router to which the client has sent the query.
        local: IpAddr,
    },
    /// The TCP connection with this number, chosen by the owner of the forwarder.
    Stream(u64),
}

/// Action of the owner of a forwarder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsAction {
    /// Sends a reply to a client.
    Reply {
        /// The client.
        client: DnsClient,
        /// The reply.
        message: Vec<u8>,
    },
    /// Sends a query to an upstream server, from a new socket that receives from this server only.
    /// Answers are passed to [`DnsForwarder::on_answer`](crate::DnsForwarder::on_answer).
    Send {
        /// Number of the exchange.
        exchange: DnsExchange,
        /// Address of the server.
        server: SocketAddr,
        /// Transport protocol.
        protocol: Protocol,
        /// Unpredictable source port for UDP. Another one is used if it is taken.
        port: u16,
        /// The query.
        message: Vec<u8>,
    },
    /// Closes the socket of an exchange.
    Close {
        /// Number of the exchange.
        exchange: DnsExchange,
    },
}
