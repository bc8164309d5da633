//! Counters of the sockets of a stack. [`crate::Drops`] counts dropped packets by reason.

towpath_pool::counters! {
    /// Counters of a stack since its creation.
    pub struct Counters {
        /// TCP segments received. Segments that the device merged into one packet count as one.
        tcp_received,
        /// TCP packets sent. A packet may have up to 64 KiB, which the device or driver segments.
        tcp_sent,
        /// Payload bytes that TCP connections received in order.
        tcp_bytes_received,
        /// Payload bytes that TCP connections sent, including retransmissions.
        tcp_bytes_sent,
        /// TCP packets with retransmitted bytes.
        tcp_retransmits,
        /// TCP resets sent.
        tcp_resets_sent,
        /// TCP connections that programs of this host opened.
        tcp_connects,
        /// TCP connections that peers opened, and whose handshake completed.
        tcp_accepts,
        /// SYNs for which a half-open TCP connection was created.
        tcp_syns,
        /// SYNs with a valid Fast Open cookie for which a connection was created at once (RFC
        /// 7413).
        tcp_fast_opens,
        /// SYNs with a valid Fast Open cookie that were treated as normal SYNs, because the
        /// listener's limit of such connections was reached.
        tcp_fast_open_overflows,
        /// TCP handshakes that ended because the peer did not complete them in time.
        tcp_half_open_timeouts,
        /// Half-open TCP connections that were evicted by newer half-open connections of the same
        /// listener.
        tcp_half_open_displaced,
        /// SYN-ACKs sent with a SYN cookie (RFC 4987).
        tcp_syn_cookies_sent,
        /// TCP connections created from an ACK with a valid SYN cookie.
        tcp_syn_cookies_valid,
        /// ACKs without a valid SYN cookie that arrived while the listener accepted cookies.
        tcp_syn_cookies_invalid,
        /// TCP connections that failed by a reset or a timeout.
        tcp_failures,
        /// TIME-WAIT states that ended early because the peer opened a new connection (RFC 6191).
        tcp_time_wait_reused,
        /// TCP connections that were reset when the program closed their socket, because too many
        /// connections had no socket any more.
        tcp_orphans_aborted,
        /// MSG_EOR record ends that were ignored, because the connection already had too many of
        /// them.
        tcp_record_ends_ignored,
        /// Number of times that a TCP connection had to wait because a device queue was full.
        tcp_waits_for_output,
        /// Number of times that a TCP connection reached its own limit of packets in a device
        /// queue.
        tcp_waits_for_share,
        /// Number of times that a datagram socket reached its own limit of packets in a device
        /// queue.
        udp_waits_for_share,
        /// Path MTUs of TCP connections, learned from ICMP, that were forgotten early because their
        /// table was full.
        path_mtus_full,
        /// UDP datagrams received.
        udp_received,
        /// Packets whose delivery was postponed to a later turn of the event loop, because socket
        /// filters or many receivers took too long.
        deliveries_put_off,
        /// Upper bound of the socket filter instructions executed for datagrams. Filters only jump
        /// forward, so their length is the bound.
        filter_steps,
        /// UDP datagrams sent; a datagram to be segmented counts as one.
        udp_sent,
        /// ICMP echo replies received.
        echo_received,
        /// ICMP echo messages sent.
        echo_sent,
        /// Ports that were checked while choosing ephemeral ports.
        ports_probed,
        /// Calls of bind and connect that failed because no port was free.
        ports_exhausted,
        /// Packets that a shard (one of the host's stacks) received and passed to the shard that
        /// owns their socket.
        shard_handed_over,
        /// Neighbour updates or path MTUs that a shard (one of the host's stacks) lost, because it
        /// did not read its messages in time.
        shard_news_lost,
        /// Timers of the stack that expired.
        timers_fired,
        /// Calls of [`crate::Stack::turn`], each of which is one turn of the event loop.
        turns,
    }
}
