//! Counters of an interceptor.

/// Counters of an [`Interceptor`](super::Interceptor) since it was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterceptCounters {
    /// Connections now, including those that still send their last bytes.
    pub connections: usize,
    /// SYNs now without a decision.
    pub undecided: usize,
    /// Buffer memory in bytes that connections have reserved now.
    pub memory_reserved: u64,
    /// Connections accepted whose handshake was completed.
    pub accepted: u64,
    /// SYNs refused by the program, or because the listener was dropped.
    pub refused: u64,
    /// SYNs ignored by the program.
    pub ignored: u64,
    /// SYNs that were reported, and dropped before a decision: the client gave up, or the SYN was
    /// evicted.
    pub forgotten: u64,
    /// SYNs evicted because of `undecided`.
    pub over_undecided: u64,
    /// SYNs ignored because of [`InterceptLimits::connections`](super::InterceptLimits).
    pub over_connections: u64,
    /// SYNs ignored because of `connections_per_source`.
    pub over_connections_per_source: u64,
    /// SYNs ignored because of `undecided_per_source`.
    pub over_undecided_per_source: u64,
    /// SYNs ignored because of `memory`.
    pub over_memory: u64,
    /// SYNs ignored because of `memory_per_source`.
    pub over_memory_per_source: u64,
    /// Connections reset because of `idle`.
    pub idle_resets: u64,
    /// Connections reset because of `idle_at_limit`.
    pub idle_resets_at_limit: u64,
    /// Datagrams received and queued for the program.
    pub datagrams_received: u64,
    /// Datagrams dropped because of `datagram_bytes`.
    pub over_datagram_bytes: u64,
    /// Datagrams dropped because of `datagram_bytes_per_source`.
    pub over_datagram_bytes_per_source: u64,
    /// Datagrams, echo requests and errors dropped because a turn received more than 1024 of them.
    pub over_turn: u64,
    /// Datagrams and echo requests dropped because no socket exists for them.
    pub without_socket: u64,
    /// Echo requests and errors dropped because of `messages`.
    pub over_messages: u64,
    /// Echo requests and errors dropped because of `messages_per_source`.
    pub over_messages_per_source: u64,
    /// Packets received from the source.
    pub packets_received: u64,
    /// Packets sent to the source, up to 64 KiB each.
    pub packets_sent: u64,
    /// Packets that the IP layer dropped, for example because they were malformed.
    pub packets_dropped: u64,
}
