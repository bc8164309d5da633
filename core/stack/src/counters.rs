//! Counters of the socket layer. [`crate::Drops`] counts lost packets by reason.

towpath_pool::counters! {
    /// Counters of a stack since its creation.
    pub struct Counters {
        /// TCP segments received; merged segments count as one.
        tcp_received,
        /// TCP packets sent, up to 64 KiB each.
        tcp_sent,
        /// Payload bytes that TCP connections received in order.
        tcp_bytes_received,
        /// Payload bytes sent, including retransmissions.
        tcp_bytes_sent,
        /// TCP packets with retransmitted bytes.
        tcp_retransmits,
        /// TCP resets sent.
        tcp_resets_sent,
        /// Connections opened actively.
        tcp_connects,
        /// Connections opened by peers whose handshake completed.
        tcp_accepts,
        /// SYNs that created a half-open connection.
        tcp_syns,
        /// SYNs with a valid Fast Open cookie that created a connection at once (RFC 7413).
        tcp_fast_opens,
        /// SYNs with a valid Fast Open cookie that exceeded the listener's limit.
        tcp_fast_open_overflows,
        /// Handshakes that the peer did not complete in time.
        tcp_half_open_timeouts,
        /// Half-open connections evicted by newer ones of the same listener.
        tcp_half_open_displaced,
        /// SYN-ACKs sent with a SYN cookie (RFC 4987).
        tcp_syn_cookies_sent,
        /// Connections created from a valid SYN cookie.
        tcp_syn_cookies_valid,
        /// ACKs without a valid SYN cookie while a listener accepted cookies.
        tcp_syn_cookies_invalid,
        /// Connections that failed by reset or timeout.
        tcp_failures,
        /// TIME-WAITs ended early by a new connection (RFC 6191).
        tcp_time_wait_reused,
        /// Connections aborted at close because of the orphan limit.
        tcp_orphans_aborted,
        /// Times a connection had to wait for a full device queue.
        tcp_waits_for_output,
        /// Times a connection reached its limit in a device's queue.
        tcp_waits_for_share,
        /// Times a datagram socket reached its limit in a device's queue.
        udp_waits_for_share,
        /// Connections whose reported path MTU was dropped early to make room.
        path_mtus_full,
        /// Datagrams received.
        udp_received,
        /// Packets whose datagrams were deferred to a later turn because of filter or receiver
        /// work.
        deliveries_put_off,
        /// Upper bound of filter instructions run on datagrams; filters only jump forward.
        filter_steps,
        /// Datagrams sent; a segmented datagram counts as one.
        udp_sent,
        /// Echo replies received.
        echo_received,
        /// Echo messages sent.
        echo_sent,
        /// Ports probed while choosing ephemeral ports.
        ports_probed,
        /// Binds and connects that found no free port.
        ports_exhausted,
        /// Received packets handed over to the shard that owns them.
        shard_handed_over,
        /// Neighbour updates or path MTUs that a shard lost because it did not take them in time.
        shard_news_lost,
        /// Timers fired.
        timers_fired,
        /// Turns of the stack ([`crate::Stack::turn`]).
        turns,
    }
}
