//! Limits of an interceptor.

use std::time::Duration;

/// Limits of an [`Interceptor`](super::Interceptor). Each has a counter in
/// [`InterceptCounters`](super::InterceptCounters).
///
/// A source is an IPv4 address, or an IPv6 network of 64 bits, because a host may use all addresses
/// of its network.
///
/// ```
/// use towpath::intercept::InterceptLimits;
///
/// let limits = InterceptLimits { connections: 1000, ..InterceptLimits::default() };
/// assert_eq!(limits.undecided, 4096);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterceptLimits {
    /// Maximum number of connections, including those that the program has dropped and that still
    /// send their last bytes. Further SYNs are ignored, so that clients retransmit them. Default:
    /// 32,768.
    pub connections: usize,
    /// Maximum number of connections of one source. Further SYNs are ignored. Default: 16,384.
    pub connections_per_source: usize,
    /// Maximum number of SYNs that the program has not yet accepted, refused or ignored, at least
    /// 1. A further SYN evicts the one that was retransmitted longest ago. Default: 4096.
    pub undecided: usize,
    /// Maximum number of SYNs of one source that await the program's decision. Further SYNs are
    /// ignored. Default: 1024.
    pub undecided_per_source: usize,
    /// Maximum memory of all TCP buffers in bytes. A connection first reserves 128 KiB. After it
    /// has transferred 128 KiB, it reserves up to 8 MiB, or 1/64 of the remaining memory. If the
    /// memory is exhausted, SYNs are ignored. Default: 4 GiB, enough for 32,768 connections.
    ///
    /// Reserved memory is allocated when bytes arrive, and is released while a connection is idle.
    pub memory: u64,
    /// Maximum memory of the TCP buffers of one source, in bytes. If it is exhausted, SYNs are
    /// ignored. Default: 2 GiB, enough for 16,384 connections.
    pub memory_per_source: u64,
    /// Time without a byte in either direction after which a connection is reset. Default: 2 h 4
    /// min (RFC 5382, REQ-5).
    pub idle: Duration,
    /// Idle time that replaces [`Self::idle`] while a limit is reached. Applies to a source that
    /// has `connections_per_source` connections, or to all sources if there are `connections`
    /// connections. Resetting idle connections makes room for new ones. Default: 2 h 4 min.
    pub idle_at_limit: Duration,
    /// Maximum number of bytes of received datagrams that the program has not read. Each datagram
    /// counts 64 bytes more than its payload. Further datagrams are dropped. Default: 4 MiB.
    pub datagram_bytes: usize,
    /// Maximum number of bytes of received datagrams of one source that the program has not read.
    /// Default: 1 MiB.
    pub datagram_bytes_per_source: usize,
    /// Maximum number of queued echo requests, and of queued ICMP errors about datagrams, that the
    /// program has not read. Default: 256.
    pub messages: usize,
    /// Maximum number of unread echo requests from one source, and of unread ICMP errors from one
    /// source. Default: 64.
    pub messages_per_source: usize,
}

impl Default for InterceptLimits {
    fn default() -> Self {
        Self {
            connections: 32_768,
            connections_per_source: 16_384,
            undecided: 4096,
            undecided_per_source: 1024,
            memory: 4 << 30,
            memory_per_source: 2 << 30,
            idle: Duration::from_secs(124 * 60),
            idle_at_limit: Duration::from_secs(124 * 60),
            datagram_bytes: 4 << 20,
            datagram_bytes_per_source: 1 << 20,
            messages: 256,
            messages_per_source: 64,
        }
    }
}
