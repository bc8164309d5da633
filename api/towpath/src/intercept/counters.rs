//! Counters of an interceptor.

/// Counters of an [`Interceptor`](super::Interceptor) since it was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterceptCounters {
    /// Current number of connections, including those that still send their last bytes.
    pub connections: usize,
    /// Current number of SYNs that the program has not yet accepted, refused or ignored.
    pub undecided: usize,
    /// Bytes of buffer memory that connections have currently reserved.
    pub memory_reserved: u64,
    /// Number of accepted connections whose handshake was completed.
    pub accepted: u64,
    /// Number of SYNs refused by the program, or because the listener was dropped.
    pub refused: u64,
    /// Number of SYNs that the program has ignored.
    pub ignored: u64,
    /// Number of SYNs reported to the program, but dropped before its decision. The client gave up,
    /// or the SYN was evicted.
    pub forgotten: u64,
    /// Number of SYNs evicted because of the limit
    /// [`InterceptLimits::undecided`](super::InterceptLimits).
    pub over_undecided: u64,
    /// Number of SYNs ignored because of the limit
    /// [`InterceptLimits::connections`](super::InterceptLimits).
    pub over_connections: u64,
    /// Number of SYNs ignored because of the limit `connections_per_source`.
    pub over_connections_per_source: u64,
    /// Number of SYNs ignored because of the limit `undecided_per_source`.
    pub over_undecided_per_source: u64,
    /// Number of SYNs ignored because the buffer memory (limit `memory`) was exhausted.
    pub over_memory: u64,
    /// Number of SYNs ignored because of the limit `memory_per_source`.
    pub over_memory_per_source: u64,
    /// Number of connections reset because they exceeded the limit `idle`.
    pub idle_resets: u64,
    /// Number of connections reset because they exceeded the limit `idle_at_limit`.
    pub idle_resets_at_limit: u64,
    /// Number of datagrams received and queued for the program.
    pub datagrams_received: u64,
    /// Number of datagrams dropped because of the limit `datagram_bytes`.
    pub over_datagram_bytes: u64,
    /// Number of datagrams dropped because of the limit `datagram_bytes_per_source`.
    pub over_datagram_bytes_per_source: u64,
    /// Number of datagrams, echo requests and ICMP errors dropped because more than 1024 arrived in
    /// one iteration of the event loop.
    pub over_turn: u64,
    /// Number of datagrams and echo requests dropped because no socket receives them.
    pub without_socket: u64,
    /// Number of echo requests and ICMP errors dropped because of the limit `messages`.
    pub over_messages: u64,
    /// Number of echo requests and ICMP errors dropped because of the limit `messages_per_source`.
    pub over_messages_per_source: u64,
    /// Number of packets received from the device or channel.
    pub packets_received: u64,
    /// Number of packets sent to the device or channel, each up to 64 KiB long.
    pub packets_sent: u64,
    /// Number of packets that the IP layer dropped, for example because they were malformed.
    pub packets_dropped: u64,
}
