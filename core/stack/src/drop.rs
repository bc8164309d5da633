//! Reasons for dropping packets. Every dropped packet is counted by its reason, and traced if
//! tracing is enabled.

/// Direction of a dropped packet as seen from the host.
enum DropDirection {
    /// The packet was received, possibly to be forwarded.
    Inbound,
    /// The packet was sent by the host, or was to be queued for output after forwarding.
    Outbound,
}

/// Declares all drop reasons with their directions and names, so that adding a reason takes only
/// one line.
macro_rules! drop_reasons {
    ($( $(#[$doc:meta])* $variant:ident: $direction:ident = $name:literal, )*) => {
        /// Reason for dropping a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum DropReason { $( $(#[$doc])* $variant, )* }

        impl DropReason {
            /// All reasons, in the order in which they are counted.
            pub const ALL: &'static [DropReason] = &[ $( DropReason::$variant, )* ];
            /// Number of reasons for dropping packets.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name of the reason in counters and traces.
            pub const fn as_str(self) -> &'static str {
                match self { $( DropReason::$variant => $name, )* }
            }

            /// Returns whether the dropped packet was an outgoing one.
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
    // Reasons of sockets and transport protocols. Reasons of the IP layer follow further below.
    /// Packet with an invalid TCP, UDP or ICMP checksum.
    TransportChecksum: Inbound = "transport_checksum",
    /// Truncated or inconsistent transport header.
    TransportMalformed: Inbound = "transport_malformed",
    /// TCP segment from or to a broadcast or multicast address (RFC 9293 3.9.2.3).
    TcpNotUnicast: Inbound = "tcp_not_unicast",
    /// TCP segment that belongs to no connection or listener. The segment is answered by a reset,
    /// unless it is a reset itself.
    TcpNoSocket: Inbound = "tcp_no_socket",
    /// TCP segment that is not acceptable for a half-open connection or a TIME-WAIT state, and was
    /// answered by an ACK or a reset. Segments that arrive before the owner of the stack accepts or
    /// refuses their SYN are included.
    TcpUnacceptable: Inbound = "tcp_unacceptable",
    /// TCP segment for a closed connection, or bytes that arrived after the program closed the
    /// socket.
    TcpAfterClose: Inbound = "tcp_after_close",
    /// TCP segment entirely outside the receive window, usually an old duplicate.
    TcpOutOfWindow: Inbound = "tcp_out_of_window",
    /// TCP segment with an old timestamp (PAWS, RFC 7323 5).
    TcpPaws: Inbound = "tcp_paws",
    /// TCP segment without a timestamp, although timestamps were negotiated (RFC 7323 3.2).
    TcpTimestampMissing: Inbound = "tcp_timestamp_missing",
    /// TCP segment that acknowledges bytes that were never sent, or whose acknowledgment number is
    /// too old (RFC 5961 5).
    TcpBadAck: Inbound = "tcp_bad_ack",
    /// TCP segment without the ACK flag on a connection whose handshake has begun (RFC 9293
    /// 3.10.7.4).
    TcpNoAck: Inbound = "tcp_no_ack",
    /// SYN on a synchronized connection (RFC 5961 4).
    TcpSynInWindow: Inbound = "tcp_syn_in_window",
    /// RST in the window but not exactly at RCV.NXT (RFC 5961 3).
    TcpResetInWindow: Inbound = "tcp_reset_in_window",
    /// RST that cannot be the answer to any segment we sent.
    TcpResetIgnored: Inbound = "tcp_reset_ignored",
    /// Out-of-order bytes of a TCP connection that has the maximum number of out-of-order ranges.
    TcpTooManyRanges: Inbound = "tcp_too_many_ranges",
    /// Bytes within the receive window that do not fit in the receive buffer.
    TcpNoRoom: Inbound = "tcp_no_room",
    /// TCP segment whose TTL or hop limit is below the socket's minimum (IP_MINTTL,
    /// IPV6_MINHOPCOUNT).
    TcpMinTtl: Inbound = "tcp_min_ttl",
    /// TCP segment in state SYN-SENT that is neither a SYN nor a valid reset.
    TcpUnexpected: Inbound = "tcp_unexpected",
    /// Bytes within the receive window for which no memory was available.
    TcpNoMemory: Inbound = "tcp_no_memory",
    /// Outgoing TCP segment whose bytes are not in the send buffer; this is an internal error.
    TcpPayloadMissing: Outbound = "tcp_payload_missing",
    /// SYN to a listener whose accept queue is full.
    ListenOverflow: Inbound = "listen_overflow",
    /// Last ACK of a handshake, received while the listener's accept queue was full or the owner of
    /// the stack had no room for a socket.
    AcceptOverflow: Inbound = "accept_overflow",
    /// SYN to a listener that has the maximum number of half-open connections, all of them too
    /// recent to be evicted. The SYN could not be answered by a SYN cookie either.
    SynCacheFull: Inbound = "syn_cache_full",
    /// Segment without a valid SYN cookie, to a listener that recently sent SYN cookies or evicted
    /// half-open connections. The segment may be from a client whose half-open connection was
    /// evicted, so it is not answered by a reset.
    HalfOpenDisplaced: Inbound = "half_open_displaced",
    /// TCP segment to a listener with both SYN and FIN, or with neither SYN nor ACK.
    TcpBadFlags: Inbound = "tcp_bad_flags",
    /// Entry of a connection in TIME-WAIT, evicted by a newer one because the table was full.
    TimeWaitFull: Inbound = "time_wait_full",
    /// SYN to an address that is not the host's own. A newer SYN evicted it before the owner of the
    /// stack accepted or refused it.
    PendingFull: Inbound = "pending_full",
    /// Retransmission of a SYN that waits to be accepted or refused by the owner of the stack.
    PendingDuplicate: Inbound = "pending_duplicate",
    /// Packet for which a socket should be created, although there was no memory or free table
    /// entry.
    SocketTableFull: Inbound = "socket_table_full",
    /// UDP datagram to a port without a socket.
    UdpNoSocket: Inbound = "udp_no_socket",
    /// UDP datagram that did not fit in the receive queue of the destination socket.
    UdpNoRoom: Inbound = "udp_no_room",
    /// Datagram or echo reply rejected by the socket's filter (SO_ATTACH_FILTER).
    UdpFiltered: Inbound = "udp_filtered",
    /// Datagram or echo reply for a program with too many packets that wait for its socket filters.
    UdpFilterBusy: Inbound = "udp_filter_busy",
    /// ICMP echo reply without a matching socket.
    EchoNoSocket: Inbound = "echo_no_socket",
    /// ICMP error without a matching connection, or whose quoted sequence number was not in flight
    /// (RFC 5927).
    IcmpErrorStray: Inbound = "icmp_error_stray",
    /// Packet of an unsupported transport protocol.
    UnknownProtocol: Inbound = "unknown_protocol",
    /// Packet for another shard (another stack of this host) whose queue is full.
    ShardFull: Inbound = "shard_full",
    /// Outgoing segment for whose destination there is no route.
    NoRoute: Outbound = "no_route",
    // Reasons of the IP layer.
    /// Frame with a truncated link header, or with an 802.3 length instead of an Ethernet type.
    FrameMalformed: Inbound = "frame_malformed",
    /// Frame to the Ethernet address of another station.
    FrameNotOurs: Inbound = "frame_not_ours",
    /// Frame of an unsupported network protocol or VLAN.
    FrameUnknown: Inbound = "frame_unknown",
    /// ARP or neighbour discovery message that is malformed or fails its validity checks.
    NeighborMalformed: Inbound = "neighbor_malformed",
    /// ARP answer whose MAC address contradicts that of another answer less than a second before.
    NeighborContradicted: Inbound = "neighbor_contradicted",
    /// Packet whose offload metadata contradict its headers: the position of the checksum, the
    /// protocol, the header length, or the number of segments.
    OffloadInvalid: Inbound = "offload_invalid",
    /// Malformed IP header: invalid version, lengths, options or extension headers.
    IpMalformed: Inbound = "ip_malformed",
    /// Invalid IPv4 header checksum.
    IpChecksum: Inbound = "ip_checksum",
    /// Packet with a source route option or a routing header.
    IpSourceRoute: Inbound = "ip_source_route",
    /// Invalid source or destination address (RFC 1122 3.2.1.3).
    Martian: Inbound = "martian",
    /// Packet to another host's address while forwarding is disabled.
    NotLocal: Inbound = "not_local",
    /// Forwarded packet whose TTL or hop limit expired.
    TransitTtl: Inbound = "transit_ttl",
    /// Forwarded packet that failed reverse path filtering (RFC 3704): the route to its source uses
    /// another interface.
    TransitSource: Inbound = "transit_source",
    /// Forwarded packet with a link-scoped address.
    TransitScope: Inbound = "transit_scope",
    /// Packet to be forwarded, without a route to its destination.
    TransitNoRoute: Inbound = "transit_no_route",
    /// Packet to be forwarded, whose route is a blackhole route.
    TransitBlackhole: Inbound = "transit_blackhole",
    /// Packet to be forwarded, whose route is an unreachable route.
    TransitUnreachable: Inbound = "transit_unreachable",
    /// Packet to be forwarded, whose route is a prohibit route.
    TransitProhibited: Inbound = "transit_prohibited",
    /// Packet to be forwarded that exceeds the MTU of the outgoing link, and must not be
    /// fragmented.
    TransitTooBig: Inbound = "transit_too_big",
    /// Incoming or forwarded packet dropped by a rule of the packet filter.
    FilterDrop: Inbound = "filter_drop",
    /// Incoming or forwarded packet that a rule of the packet filter rejected, which is answered by
    /// an error.
    FilterReject: Inbound = "filter_reject",
    /// Fragment that hides a part of the transport header from the packet filter (RFC 1858, RFC
    /// 3128). The fragment is a first one with an incomplete header, or a later one that could
    /// overwrite the header.
    FilterFragment: Inbound = "filter_fragment",
    /// Packet with malformed extension headers, which hide the transport header from the packet
    /// filter (RFC 7112).
    FilterHidden: Inbound = "filter_hidden",
    /// Packet sent by this host that a rule of the packet filter dropped.
    FilterOutput: Outbound = "filter_output",
    /// Packet to a multicast group that this host has not joined.
    NotJoined: Inbound = "not_joined",
    /// Fragment that contradicts other fragments of its datagram or exceeds the maximum length.
    FragmentInvalid: Inbound = "fragment_invalid",
    /// Overlapping fragments; the whole datagram is dropped (RFC 5722).
    FragmentOverlap: Inbound = "fragment_overlap",
    /// Fragment that exceeds the maximum number of fragments or bytes in reassembly.
    FragmentLimit: Inbound = "fragment_limit",
    /// Fragments of a datagram that was still incomplete at the reassembly timeout.
    FragmentTimeout: Inbound = "fragment_timeout",
    /// ICMP message that is malformed, or has an invalid checksum.
    IcmpMalformed: Inbound = "icmp_malformed",
    /// ICMP message of an unsupported type.
    IcmpIgnored: Inbound = "icmp_ignored",
    /// Outgoing packet whose next hop did not answer ARP requests or neighbour solicitations.
    NeighborUnreachable: Outbound = "neighbor_unreachable",
    /// Outgoing packet, dropped because too many packets already wait for the link address of its
    /// next hop.
    NeighborQueueFull: Outbound = "neighbor_queue_full",
    /// Outgoing packet, dropped because too many packets already wait for the link addresses of all
    /// next hops together.
    NeighborQueuesFull: Outbound = "neighbor_queues_full",
    /// Outgoing packet that must not leave the host: its TTL is 0, or its multicast group is
    /// interface-local (RFC 1122 3.2.1.7, RFC 4291 2.7).
    HostScope: Outbound = "host_scope",
    /// Outgoing packet that exceeds the path MTU and must not be fragmented, or that exceeds the
    /// maximum IP length.
    TooBig: Outbound = "too_big",
    /// Outgoing packet that was dropped because the device queue was full.
    OutputFull: Outbound = "output_full",
    /// Packet from the host to itself that was dropped because the loopback queue was full.
    LoopbackFull: Outbound = "loopback_full",
    /// Packet received on an interface that is set down.
    LinkDown: Inbound = "link_down",
    /// Packet to be sent on an interface that is set down.
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

/// Number of dropped packets for each reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drops([u64; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Drops {
    /// Counts one packet that was dropped for `reason`.
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

    /// Iterates over the names of all reasons and the numbers of packets, in a fixed order.
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
