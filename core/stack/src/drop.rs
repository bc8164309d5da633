//! Reasons for dropping packets. Every dropped packet has a reason, which is counted here and
//! traced if tracing is enabled.

/// Direction of a dropped packet as seen from the host.
enum DropDirection {
    /// Received, including packets to be forwarded.
    Inbound,
    /// Sent by the host, or forwarded to an output queue.
    Outbound,
}

/// Declares the reasons with direction and name, so that a new reason needs only one line.
macro_rules! drop_reasons {
    ($( $(#[$doc:meta])* $variant:ident: $direction:ident = $name:literal, )*) => {
        /// Reason for dropping a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum DropReason { $( $(#[$doc])* $variant, )* }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [DropReason] = &[ $( DropReason::$variant, )* ];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name used in counters and traces.
            pub const fn as_str(self) -> &'static str {
                match self { $( DropReason::$variant => $name, )* }
            }

            /// Returns whether the packet was on its way out of the host.
            pub const fn is_outbound(self) -> bool {
                let direction = match self {
                    $( DropReason::$variant => DropDirection::$direction, )*
                };
                matches!(direction, DropDirection::Outbound)
            }
        }
    };
}

drop_reasons! {
    // Sockets and transports; the IP layer's reasons follow below.
    /// Invalid TCP, UDP or ICMP checksum.
    TransportChecksum: Inbound = "transport_checksum",
    /// Truncated or inconsistent transport header.
    TransportMalformed: Inbound = "transport_malformed",
    /// TCP segment from or to a broadcast or multicast address (RFC 9293 3.9.2.3).
    TcpNotUnicast: Inbound = "tcp_not_unicast",
    /// TCP segment without a matching connection or listener; answered by a reset unless it is a
    /// reset itself.
    TcpNoSocket: Inbound = "tcp_no_socket",
    /// Segment of a half-open connection or a TIME-WAIT that was answered by an ACK or a reset.
    /// Also a segment received before the owner decided about its SYN.
    TcpUnacceptable: Inbound = "tcp_unacceptable",
    /// Segment of a closed connection, or bytes received after the program closed its socket.
    TcpAfterClose: Inbound = "tcp_after_close",
    /// Segment entirely outside the receive window, usually an old duplicate.
    TcpOutOfWindow: Inbound = "tcp_out_of_window",
    /// Old timestamp (RFC 7323 5).
    TcpPaws: Inbound = "tcp_paws",
    /// Missing timestamp although timestamps were negotiated (RFC 7323 3.2).
    TcpTimestampMissing: Inbound = "tcp_timestamp_missing",
    /// ACK of bytes that were never sent or are too old (RFC 5961 5).
    TcpBadAck: Inbound = "tcp_bad_ack",
    /// Segment without ACK on a connection whose handshake has begun (RFC 9293 3.10.7.4).
    TcpNoAck: Inbound = "tcp_no_ack",
    /// SYN on a synchronized connection (RFC 5961 4).
    TcpSynInWindow: Inbound = "tcp_syn_in_window",
    /// RST in the window but not exactly at RCV.NXT (RFC 5961 3).
    TcpResetInWindow: Inbound = "tcp_reset_in_window",
    /// RST that none of our segments can have caused.
    TcpResetIgnored: Inbound = "tcp_reset_ignored",
    /// Out-of-order bytes beyond the maximum number of ranges.
    TcpTooManyRanges: Inbound = "tcp_too_many_ranges",
    /// Bytes within the window that do not fit the receive FIFO.
    TcpNoRoom: Inbound = "tcp_no_room",
    /// TTL or hop limit below the socket's minimum (IP_MINTTL, IPV6_MINHOPCOUNT).
    TcpMinTtl: Inbound = "tcp_min_ttl",
    /// Segment in SYN-SENT that is neither a SYN nor a valid reset.
    TcpUnexpected: Inbound = "tcp_unexpected",
    /// Bytes within the window for which no buffer memory was available.
    TcpNoMemory: Inbound = "tcp_no_memory",
    /// Outgoing segment whose bytes are missing in the send buffer: an internal error.
    TcpPayloadMissing: Outbound = "tcp_payload_missing",
    /// SYN to a listener with a full accept queue.
    ListenOverflow: Inbound = "listen_overflow",
    /// Final ACK of a handshake with a full accept queue, or without room at the owner.
    AcceptOverflow: Inbound = "accept_overflow",
    /// SYN to a listener at its limit of half-open connections, all of them too recent to evict. A
    /// SYN cookie was no possible answer.
    SynCacheFull: Inbound = "syn_cache_full",
    /// Segment without a valid SYN cookie to a listener that sent cookies recently, or evicted
    /// half-open connections. The segment may belong to a correct client, and is therefore not
    /// answered by a reset.
    HalfOpenDisplaced: Inbound = "half_open_displaced",
    /// Segment to a listener with both SYN and FIN, or with neither SYN nor ACK.
    TcpBadFlags: Inbound = "tcp_bad_flags",
    /// TIME-WAIT entry evicted by a newer one.
    TimeWaitFull: Inbound = "time_wait_full",
    /// Undecided SYN on an any-address interface, evicted by a newer one.
    PendingFull: Inbound = "pending_full",
    /// Retransmission of an undecided SYN.
    PendingDuplicate: Inbound = "pending_duplicate",
    /// No memory or free entry for another socket.
    SocketTableFull: Inbound = "socket_table_full",
    /// Datagram to a port without a socket.
    UdpNoSocket: Inbound = "udp_no_socket",
    /// Datagram that did not fit its socket's queue.
    UdpNoRoom: Inbound = "udp_no_room",
    /// Datagram or echo reply rejected by the socket's filter (SO_ATTACH_FILTER).
    UdpFiltered: Inbound = "udp_filtered",
    /// Datagram or echo reply for a program with too many packets waiting for its filters.
    UdpFilterBusy: Inbound = "udp_filter_busy",
    /// Echo reply without a matching socket.
    EchoNoSocket: Inbound = "echo_no_socket",
    /// ICMP error without a matching connection, or failing the sequence check (RFC 5927).
    IcmpErrorStray: Inbound = "icmp_error_stray",
    /// Unsupported transport protocol.
    UnknownProtocol: Inbound = "unknown_protocol",
    /// Packet for another shard whose queue is full.
    ShardFull: Inbound = "shard_full",
    /// No route to the destination of a segment.
    NoRoute: Outbound = "no_route",
    // IP layer.
    /// Truncated link header, or an 802.3 length instead of a type.
    FrameMalformed: Inbound = "frame_malformed",
    /// Frame to another station.
    FrameNotOurs: Inbound = "frame_not_ours",
    /// Frame of an unsupported protocol or VLAN.
    FrameUnknown: Inbound = "frame_unknown",
    /// ARP or neighbour discovery message that is malformed or fails its validity checks.
    NeighborMalformed: Inbound = "neighbor_malformed",
    /// ARP answer that contradicts the MAC address of an answer less than a second ago.
    NeighborContradicted: Inbound = "neighbor_contradicted",
    /// Offload metadata that contradict the headers: checksum position, or protocol, header length
    /// or number of segments.
    OffloadInvalid: Inbound = "offload_invalid",
    /// Malformed IP header: version, lengths, options, extension headers.
    IpMalformed: Inbound = "ip_malformed",
    /// Invalid IPv4 header checksum.
    IpChecksum: Inbound = "ip_checksum",
    /// Source-routed packet.
    IpSourceRoute: Inbound = "ip_source_route",
    /// Invalid source or destination address (RFC 1122 3.2.1.3).
    Martian: Inbound = "martian",
    /// Packet to another host's address while forwarding is disabled.
    NotLocal: Inbound = "not_local",
    /// Forwarded packet whose TTL or hop limit expired.
    TransitTtl: Inbound = "transit_ttl",
    /// Forwarded packet that failed reverse path filtering (RFC 3704).
    TransitSource: Inbound = "transit_source",
    /// Forwarded packet with a link-scoped address.
    TransitScope: Inbound = "transit_scope",
    /// Forwarded packet without a route to its destination.
    TransitNoRoute: Inbound = "transit_no_route",
    /// Forwarded packet with a blackhole route.
    TransitBlackhole: Inbound = "transit_blackhole",
    /// Forwarded packet with an unreachable route.
    TransitUnreachable: Inbound = "transit_unreachable",
    /// Forwarded packet with a prohibit route.
    TransitProhibited: Inbound = "transit_prohibited",
    /// Forwarded packet that exceeds the next link's MTU and must not be fragmented.
    TransitTooBig: Inbound = "transit_too_big",
    /// Packet dropped by a rule.
    FilterDrop: Inbound = "filter_drop",
    /// Packet rejected by a rule; an error is sent.
    FilterReject: Inbound = "filter_reject",
    /// Fragment that hides a part of the transport header from rules (RFC 1858, RFC 3128). A first
    /// fragment truncates the header; a fragment at offset 8 or 16 could overwrite it.
    FilterFragment: Inbound = "filter_fragment",
    /// Malformed extension headers that hide the transport header from rules (RFC 7112).
    FilterHidden: Inbound = "filter_hidden",
    /// Packet of this host dropped by a rule.
    FilterOutput: Outbound = "filter_output",
    /// Packet to a multicast group that this host has not joined.
    NotJoined: Inbound = "not_joined",
    /// Fragment that contradicts other fragments of its datagram or exceeds the maximum length.
    FragmentInvalid: Inbound = "fragment_invalid",
    /// Overlapping fragments; the whole datagram is dropped (RFC 5722).
    FragmentOverlap: Inbound = "fragment_overlap",
    /// Too many fragments or bytes in reassembly.
    FragmentLimit: Inbound = "fragment_limit",
    /// Incomplete datagram after the reassembly timeout.
    FragmentTimeout: Inbound = "fragment_timeout",
    /// Malformed ICMP message or invalid checksum.
    IcmpMalformed: Inbound = "icmp_malformed",
    /// ICMP message of an unsupported type.
    IcmpIgnored: Inbound = "icmp_ignored",
    /// Next hop that did not answer ARP requests or neighbour solicitations.
    NeighborUnreachable: Outbound = "neighbor_unreachable",
    /// Too many packets waiting for one neighbour.
    NeighborQueueFull: Outbound = "neighbor_queue_full",
    /// Too many packets waiting for all neighbours together.
    NeighborQueuesFull: Outbound = "neighbor_queues_full",
    /// Packet that must not leave the host: TTL 0, or an interface-local group (RFC 1122 3.2.1.7,
    /// RFC 4291 2.7).
    HostScope: Outbound = "host_scope",
    /// Packet that exceeds the path MTU and must not be fragmented, or exceeds the maximum IP
    /// length.
    TooBig: Outbound = "too_big",
    /// Full device queue.
    OutputFull: Outbound = "output_full",
    /// Full loopback queue.
    LoopbackFull: Outbound = "loopback_full",
    /// Received on an interface that is set down.
    LinkDown: Inbound = "link_down",
    /// To be sent on an interface that is set down.
    LinkDownOut: Outbound = "link_down_out",
}

impl From<towpath_tcp::SegmentDropReason> for DropReason {
    fn from(reason: towpath_tcp::SegmentDropReason) -> Self {
        use towpath_tcp::SegmentDropReason as Tcp;
        match reason {
            Tcp::AfterClose => Self::TcpAfterClose,
            Tcp::OutOfWindow => Self::TcpOutOfWindow,
            Tcp::Paws => Self::TcpPaws,
            Tcp::TimestampMissing => Self::TcpTimestampMissing,
            Tcp::BadAck => Self::TcpBadAck,
            Tcp::NoAck => Self::TcpNoAck,
            Tcp::SynInWindow => Self::TcpSynInWindow,
            Tcp::ResetInWindow => Self::TcpResetInWindow,
            Tcp::ResetIgnored => Self::TcpResetIgnored,
            Tcp::TooManyRanges => Self::TcpTooManyRanges,
            Tcp::NoRoom => Self::TcpNoRoom,
            Tcp::Unexpected => Self::TcpUnexpected,
            _ => Self::TcpUnacceptable,
        }
    }
}

/// Number of dropped packets by reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drops([u64; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Drops {
    /// Counts one packet.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Returns the number of packets dropped for `reason`.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the total number of dropped packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over names and counts, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DropReason::ALL.iter().map(|reason| (reason.as_str(), self.of(*reason)))
    }
}

impl std::ops::AddAssign<&Drops> for Drops {
    fn add_assign(&mut self, other: &Drops) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }
}
