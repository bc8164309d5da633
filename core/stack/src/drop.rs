//! Why packets are lost. Every packet that the stack throws away has one of these reasons: a
//! counter here, and a packet in the trace when tracing is on.

/// DropDirection of a dropped packet, seen from the host.
enum DropDirection {
    /// Received, also to be forwarded.
    Inbound,
    /// Sent by the host, or already forwarded to an output queue.
    Outbound,
}

/// Declares the reasons, their direction, names and number in one place, so that a new reason needs
/// one line.
macro_rules! drop_reasons {
    ($( $(#[$doc:meta])* $variant:ident: $direction:ident = $name:literal, )*) => {
        /// Why a packet was thrown away.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum DropReason { $( $(#[$doc])* $variant, )* }

        impl DropReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [DropReason] = &[ $( DropReason::$variant, )* ];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name in counters and traces.
            pub const fn as_str(self) -> &'static str {
                match self { $( DropReason::$variant => $name, )* }
            }

            /// Whether a packet is dropped for this reason on its way out of the host.
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
    // Sockets and transports; the IP layer's reasons follow further down.
    /// TCP, UDP or ICMP checksum does not match.
    TransportChecksum: Inbound = "transport_checksum",
    /// Transport header cut short or inconsistent.
    TransportMalformed: Inbound = "transport_malformed",
    /// A TCP segment from or to a broadcast or multicast address (RFC 9293 3.9.2.3).
    TcpNotUnicast: Inbound = "tcp_not_unicast",
    /// A TCP segment for which there is no connection and no listener; answered by a reset unless
    /// it was one.
    TcpNoSocket: Inbound = "tcp_no_socket",
    /// A segment of a half-open connection or a TIME-WAIT that was answered with an ACK or a reset.
    /// Also a segment that came before the owner decided about its SYN.
    TcpUnacceptable: Inbound = "tcp_unacceptable",
    /// For a connection that is closed, or bytes after the program was gone.
    TcpAfterClose: Inbound = "tcp_after_close",
    /// No part of a segment is in the receive window; most are old duplicates.
    TcpOutOfWindow: Inbound = "tcp_out_of_window",
    /// An old timestamp (RFC 7323 5).
    TcpPaws: Inbound = "tcp_paws",
    /// Timestamps were negotiated and the segment has none (RFC 7323 3.2).
    TcpTimestampMissing: Inbound = "tcp_timestamp_missing",
    /// An ACK of bytes that were never sent, or of far too old ones (RFC 5961 5).
    TcpBadAck: Inbound = "tcp_bad_ack",
    /// A segment without ACK on a connection whose handshake has begun (RFC 9293 3.10.7.4).
    TcpNoAck: Inbound = "tcp_no_ack",
    /// A SYN on a synchronised connection (RFC 5961 4).
    TcpSynInWindow: Inbound = "tcp_syn_in_window",
    /// A RST in the window that is not exactly at RCV.NXT (RFC 5961 3).
    TcpResetInWindow: Inbound = "tcp_reset_in_window",
    /// A RST that no segment of ours can have caused.
    TcpResetIgnored: Inbound = "tcp_reset_ignored",
    /// Bytes out of order beyond the ranges that are remembered.
    TcpTooManyRanges: Inbound = "tcp_too_many_ranges",
    /// Bytes for which the receive FIFO has no room, though the window had.
    TcpNoRoom: Inbound = "tcp_no_room",
    /// A TTL or hop limit below the socket's minimum (IP_MINTTL, IPV6_MINHOPCOUNT).
    TcpMinTtl: Inbound = "tcp_min_ttl",
    /// A segment in SYN-SENT that is no SYN, and no reset that may refuse the connection.
    TcpUnexpected: Inbound = "tcp_unexpected",
    /// In-window bytes for which there was no buffer memory.
    TcpNoMemory: Inbound = "tcp_no_memory",
    /// A segment to be sent whose bytes are not in the send buffer: a fault of ours.
    TcpPayloadMissing: Outbound = "tcp_payload_missing",
    /// SYN to a listener whose accept queue is full.
    ListenOverflow: Inbound = "listen_overflow",
    /// Final ACK of a handshake while the accept queue was full or the owner had no room.
    AcceptOverflow: Inbound = "accept_overflow",
    /// SYN to a listener that may not have more half-open connections, all of them young.
    SynCacheFull: Inbound = "syn_cache_full",
    /// A segment that may come from a client whose half-open connection was displaced, and is not
    /// answered by a reset for that.
    HalfOpenDisplaced: Inbound = "half_open_displaced",
    /// To a listener: SYN and FIN at once, or neither SYN nor ACK.
    TcpBadFlags: Inbound = "tcp_bad_flags",
    /// A TIME-WAIT entry displaced by a newer one.
    TimeWaitFull: Inbound = "time_wait_full",
    /// A SYN on an any-address interface that waited for a decision, displaced by a newer one.
    PendingFull: Inbound = "pending_full",
    /// A repeated SYN whose decision is pending.
    PendingDuplicate: Inbound = "pending_duplicate",
    /// No memory or no place for another socket.
    SocketTableFull: Inbound = "socket_table_full",
    /// A datagram to a port without a socket.
    UdpNoSocket: Inbound = "udp_no_socket",
    /// A datagram that its socket had no room for.
    UdpNoRoom: Inbound = "udp_no_room",
    /// A datagram, or an echo reply, that its socket's filter drops (SO_ATTACH_FILTER).
    UdpFiltered: Inbound = "udp_filtered",
    /// A datagram, or an echo reply, for a program whose filters are late by too many packets.
    UdpFilterBusy: Inbound = "udp_filter_busy",
    /// An echo reply without a socket that waits for it.
    EchoNoSocket: Inbound = "echo_no_socket",
    /// An ICMP error that matches no connection or fails the sequence check (RFC 5927).
    IcmpErrorStray: Inbound = "icmp_error_stray",
    /// A transport protocol this stack does not speak.
    UnknownProtocol: Inbound = "unknown_protocol",
    /// For another shard, which does not keep up.
    ShardFull: Inbound = "shard_full",
    /// No route to where a segment should go.
    NoRoute: Outbound = "no_route",
    // The IP layer.
    /// Link header cut short, or an 802.3 length instead of a type.
    FrameMalformed: Inbound = "frame_malformed",
    /// A frame to another station.
    FrameNotOurs: Inbound = "frame_not_ours",
    /// A frame of a protocol or VLAN that this host does not take part in.
    FrameUnknown: Inbound = "frame_unknown",
    /// ARP or neighbour discovery message that is malformed or fails its validity checks.
    NeighborMalformed: Inbound = "neighbor_malformed",
    /// An ARP answer with another MAC address than one of less than a second ago.
    NeighborContradicted: Inbound = "neighbor_contradicted",
    /// Offload metadata contradict the packet's headers: a checksum at another place than the
    /// protocol's, or segments of another protocol, header length or number.
    OffloadInvalid: Inbound = "offload_invalid",
    /// IP header malformed: version, lengths, options, extension headers.
    IpMalformed: Inbound = "ip_malformed",
    /// IPv4 header checksum does not match.
    IpChecksum: Inbound = "ip_checksum",
    /// A source-routed packet.
    IpSourceRoute: Inbound = "ip_source_route",
    /// An address that may not be where it is (RFC 1122 3.2.1.3).
    Martian: Inbound = "martian",
    /// To an address of another host: this one does not forward.
    NotLocal: Inbound = "not_local",
    /// To be sent on, and its TTL or hop limit ends here.
    TransitTtl: Inbound = "transit_ttl",
    /// To be sent on, and the check of its source by the routes refuses it (RFC 3704).
    TransitSource: Inbound = "transit_source",
    /// To be sent on, and one of its addresses is for one link only.
    TransitScope: Inbound = "transit_scope",
    /// To be sent on, and no route leads to its destination.
    TransitNoRoute: Inbound = "transit_no_route",
    /// To be sent on, and the route to its destination is a blackhole.
    TransitBlackhole: Inbound = "transit_blackhole",
    /// To be sent on, and the route says that its destination is unreachable.
    TransitUnreachable: Inbound = "transit_unreachable",
    /// To be sent on, and the route prohibits it.
    TransitProhibited: Inbound = "transit_prohibited",
    /// To be sent on, and too big for the next link, where routers may not cut it.
    TransitTooBig: Inbound = "transit_too_big",
    /// A rule drops it.
    FilterDrop: Inbound = "filter_drop",
    /// A rule rejects it, with an error to its sender.
    FilterReject: Inbound = "filter_reject",
    /// A fragment that hides a part of a transport header from rules (RFC 1858, RFC 3128). First
    /// fragments lack a part of it; those at offset 8 or 16 could overwrite it.
    FilterFragment: Inbound = "filter_fragment",
    /// Rules cannot find the transport header behind malformed extension headers (RFC 7112).
    FilterHidden: Inbound = "filter_hidden",
    /// A rule keeps a packet of this host from leaving.
    FilterOutput: Outbound = "filter_output",
    /// To a group that this host has not joined.
    NotJoined: Inbound = "not_joined",
    /// A fragment that contradicts the others of its datagram, or that could never fit.
    FragmentInvalid: Inbound = "fragment_invalid",
    /// Fragments overlap: the datagram is dropped whole (RFC 5722).
    FragmentOverlap: Inbound = "fragment_overlap",
    /// Too many fragments, or too many bytes in reassembly.
    FragmentLimit: Inbound = "fragment_limit",
    /// The other fragments did not arrive in time.
    FragmentTimeout: Inbound = "fragment_timeout",
    /// ICMP message malformed or with a wrong checksum.
    IcmpMalformed: Inbound = "icmp_malformed",
    /// ICMP message of a kind that is not acted on.
    IcmpIgnored: Inbound = "icmp_ignored",
    /// The next hop did not answer ARP or neighbour solicitations.
    NeighborUnreachable: Outbound = "neighbor_unreachable",
    /// More packets wait for one neighbour than may.
    NeighborQueueFull: Outbound = "neighbor_queue_full",
    /// More packets wait for neighbours, all together, than may.
    NeighborQueuesFull: Outbound = "neighbor_queues_full",
    /// Not for a link: its TTL is 0, or its group is within this host (RFC 1122 3.2.1.7, RFC 4291
    /// 2.7).
    HostScope: Outbound = "host_scope",
    /// Longer than the path takes and not to be fragmented, or than IP can state.
    TooBig: Outbound = "too_big",
    /// The device does not keep up.
    OutputFull: Outbound = "output_full",
    /// Too many packets of this host to itself.
    LoopbackFull: Outbound = "loopback_full",
    /// Received by an interface that the operator set down.
    LinkDown: Inbound = "link_down",
    /// To be sent by an interface that the operator set down.
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

/// Dropped packets by reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drops([u64; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Drops {
    /// Counts one.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Packets dropped for `reason`.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Packets dropped in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Names and counts, in a fixed order.
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
