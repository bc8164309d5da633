//! Counters of the socket layer. Lost packets are counted by reason in [`crate::Drops`].

towpath_pool::counters! {
    /// Counters of a stack since its start.
    pub struct Counters {
        /// TCP segments (or merged ones) received.
        tcp_received,
        /// TCP packets sent, up to 64 KiB each.
        tcp_sent,
        /// Payload bytes received in order.
        tcp_bytes_received,
        /// Payload bytes sent, repeated ones included.
        tcp_bytes_sent,
        /// TCP packets that carried bytes sent before.
        tcp_retransmits,
        /// Resets sent.
        tcp_resets_sent,
        /// Connections that this host began to open.
        tcp_connects,
        /// Connections whose handshake a peer began and finished.
        tcp_accepts,
        /// SYNs that made a half-open connection.
        tcp_syns,
        /// SYNs with a valid cookie that made a connection at once (RFC 7413).
        tcp_fast_opens,
        /// SYNs with a valid cookie for which the listener's limit left no room.
        tcp_fast_open_overflows,
        /// Handshakes that the peer never finished.
        tcp_half_open_timeouts,
        /// Half-open connections displaced by newer ones of their listener.
        tcp_half_open_displaced,
        /// Connections that ended by reset or timeout.
        tcp_failures,
        /// TIME-WAITs ended early by a new connection (RFC 6191).
        tcp_time_wait_reused,
        /// Closed sockets aborted because there were too many.
        tcp_orphans_aborted,
        /// Times that a connection waited for a device that does not keep up.
        tcp_waits_for_output,
        /// Times that a connection waited because it had its share of a device's queue.
        tcp_waits_for_share,
        /// Times that a datagram socket waited because it had its share of a device's queue.
        udp_waits_for_share,
        /// Connections that forgot their path MTU early, to make room for later ones.
        path_mtus_full,
        /// Datagrams received.
        udp_received,
        /// Packets whose datagrams waited for filters, or for other receivers, until a later turn.
        deliveries_put_off,
        /// Instructions of filters that judged datagrams, at most: jumps lead forward.
        filter_steps,
        /// Datagrams sent, cut ones as one.
        udp_sent,
        /// Echo replies received.
        echo_received,
        /// Echo messages sent.
        echo_sent,
        /// Ports tried in choosing ephemeral ones.
        ports_probed,
        /// Binds and connects that found no free port.
        ports_exhausted,
        /// Packets that came in here and were another shard's.
        shard_handed_over,
        /// Times that a shard lost news of its neighbours, or a path MTU, because it did not take
        /// them in time.
        shard_news_lost,
        /// Timers fired.
        timers_fired,
        /// Turns.
        turns,
    }
}
