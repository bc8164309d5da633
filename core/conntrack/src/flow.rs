//! Flows in the table of a connection tracker, and their timeouts.

use core::time::Duration;

use crate::tcp::{TcpPhase, TcpTrack};
use crate::tuple::{FlowDirection, Tuple};

/// State of a flow, which determines its timeout: how long the flow is kept without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowClass {
    /// A TCP connection whose handshake is not complete.
    TcpOpening,
    /// An established TCP connection.
    TcpEstablished,
    /// A TCP connection of which both ends sent a FIN, or one end sent a reset.
    TcpClosing,
    /// UDP packets in one direction only.
    UdpUnanswered,
    /// UDP packets in both directions.
    UdpAnswered,
    /// UDP packets in both directions, including one from the client after the first reply.
    UdpAssured,
    /// An ICMP query without a reply.
    IcmpUnanswered,
    /// An ICMP query with replies.
    IcmpAnswered,
    /// Packets in one direction only, of a protocol whose states the tracker does not know.
    OtherUnanswered,
    /// Packets in both directions, of a protocol whose states the tracker does not know.
    OtherAnswered,
}

/// Kind of evictable flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionRank {
    /// Flows whose destination has not answered, or whose handshake is not complete.
    Unanswered,
    /// Flows that were answered, but are closed or may be forged.
    Answered,
}

impl EvictionRank {
    pub(crate) const ALL: [Self; 2] = [Self::Unanswered, Self::Answered];
}

impl FlowClass {
    /// All flow classes, in the order of their discriminants.
    pub const ALL: [Self; 10] = [
        Self::TcpOpening,
        Self::TcpEstablished,
        Self::TcpClosing,
        Self::UdpUnanswered,
        Self::UdpAnswered,
        Self::UdpAssured,
        Self::IcmpUnanswered,
        Self::IcmpAnswered,
        Self::OtherUnanswered,
        Self::OtherAnswered,
    ];

    /// Returns the name of the class, as shown in listings of flows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TcpOpening => "opening",
            Self::TcpEstablished => "established",
            Self::TcpClosing => "closing",
            Self::UdpUnanswered | Self::IcmpUnanswered | Self::OtherUnanswered => "unanswered",
            Self::UdpAnswered | Self::IcmpAnswered | Self::OtherAnswered => "answered",
            Self::UdpAssured => "assured",
        }
    }

    /// Returns the protocol of the flows of this class: `tcp`, `udp`, `icmp` or `other`.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::TcpOpening | Self::TcpEstablished | Self::TcpClosing => "tcp",
            Self::UdpUnanswered | Self::UdpAnswered | Self::UdpAssured => "udp",
            Self::IcmpUnanswered | Self::IcmpAnswered => "icmp",
            Self::OtherUnanswered | Self::OtherAnswered => "other",
        }
    }

    /// Returns the rank of flows of this class if they are evicted from a full table. Answered ICMP
    /// queries and UDP requests are evictable too, because an attacker can provoke the answer with
    /// one forged request.
    pub(crate) const fn eviction_rank(self) -> Option<EvictionRank> {
        match self {
            Self::TcpOpening
            | Self::UdpUnanswered
            | Self::IcmpUnanswered
            | Self::OtherUnanswered => Some(EvictionRank::Unanswered),
            Self::TcpClosing | Self::UdpAnswered | Self::IcmpAnswered => {
                Some(EvictionRank::Answered)
            }
            Self::TcpEstablished | Self::UdpAssured | Self::OtherAnswered => None,
        }
    }

    pub(crate) const fn of_tcp(phase: TcpPhase) -> Self {
        match phase {
            TcpPhase::Opening => Self::TcpOpening,
            TcpPhase::Established => Self::TcpEstablished,
            TcpPhase::Closing => Self::TcpClosing,
        }
    }

    /// Returns the class of a flow after a packet in direction `way`. The classes of TCP flows do
    /// not change here, because their segments determine them.
    pub(crate) const fn after(self, way: FlowDirection) -> Self {
        match (self, way) {
            (Self::UdpUnanswered, FlowDirection::Reply) => Self::UdpAnswered,
            (Self::UdpAnswered, FlowDirection::Original) => Self::UdpAssured,
            (Self::IcmpUnanswered, FlowDirection::Reply) => Self::IcmpAnswered,
            (Self::OtherUnanswered, FlowDirection::Reply) => Self::OtherAnswered,
            (class, _) => class,
        }
    }
}

/// Timeout of each flow class: how long a flow is kept without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTimeouts(pub [Duration; FlowClass::ALL.len()]);

//= https://www.rfc-editor.org/rfc/rfc5382#section-5
//# In such cases, the value of the "established
//# connection idle-timeout" MUST NOT be less than 2 hours 4 minutes.
//# The value of the "transitory connection idle-timeout" MUST NOT be
//# less than 4 minutes.
const TCP_ESTABLISHED: Duration = Duration::from_secs(7440);
const TCP_TRANSITORY: Duration = Duration::from_secs(240);
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.3
//# REQ-5:  A NAT UDP mapping timer MUST NOT expire in less than two
//# minutes, unless REQ-5a applies.
const UDP_UNANSWERED: Duration = Duration::from_secs(120);
//= https://www.rfc-editor.org/rfc/rfc4787#section-4.3
//# c) A default value of five minutes or more for the NAT UDP mapping
//# timer is RECOMMENDED.
const UDP_ANSWERED: Duration = Duration::from_secs(300);
//= https://www.rfc-editor.org/rfc/rfc5508#section-3.2
//# REQ-2: An ICMP Query session timer MUST NOT expire in less than 60
//# seconds.
const ICMP: Duration = Duration::from_secs(60);
/// Timeouts for protocols whose states are not tracked. Unanswered flows are kept 120 s as for UDP,
/// answered ones for Linux's `nf_conntrack_generic_timeout`.
const OTHER_UNANSWERED: Duration = Duration::from_secs(120);
const OTHER_ANSWERED: Duration = Duration::from_secs(600);

impl Default for FlowTimeouts {
    fn default() -> Self {
        Self(FlowClass::ALL.map(|class| match class {
            FlowClass::TcpEstablished => TCP_ESTABLISHED,
            FlowClass::TcpOpening | FlowClass::TcpClosing => TCP_TRANSITORY,
            FlowClass::UdpUnanswered => UDP_UNANSWERED,
            FlowClass::UdpAnswered | FlowClass::UdpAssured => UDP_ANSWERED,
            FlowClass::IcmpUnanswered | FlowClass::IcmpAnswered => ICMP,
            FlowClass::OtherUnanswered => OTHER_UNANSWERED,
            FlowClass::OtherAnswered => OTHER_ANSWERED,
        }))
    }
}

/// Number of packets and bytes of a flow in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowTraffic {
    /// Number of packets.
    pub packets: u64,
    /// Total length of these packets in bytes, IP headers included.
    pub bytes: u64,
}

/// Number that stands for no entry in lists linked by entry numbers.
pub(crate) const NONE: u32 = u32::MAX;

/// A flow in the table of the connection tracker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrackedFlow {
    /// Addresses and ports of the flow's packets as they arrive at the router, one tuple per
    /// direction.
    pub tuples: [Tuple; 2],
    pub tcp: TcpTrack,
    pub traffic: [FlowTraffic; 2],
    /// Time of the flow's last packet in nanoseconds. To save writes, it may be up to one second
    /// too early.
    pub last_ns: u64,
    /// Links of the list of flows of the same class. The list is ordered by the time of their last
    /// packets.
    pub newer: u32,
    pub older: u32,
    /// Links of the list of evictable flows of the same source and rank, in the same order. Unused
    /// if the flow is not evictable.
    pub source_newer: u32,
    pub source_older: u32,
    /// Generation of the table slot, incremented each time that a new flow is stored in the slot.
    pub generation: u32,
    /// Number of the table slot of the flow's source address. The slot counts the flows of the
    /// address.
    pub source: u32,
    /// Number of the table slot of the port mapping used for the flow's translated source, or
    /// [`NONE`].
    pub mapping: u32,
    /// Number of the interface whose address replaced the source address; 0 without masquerading.
    pub masquerade: u16,
    pub class: FlowClass,
    pub is_live: bool,
    pub is_answered: bool,
}

impl TrackedFlow {
    /// Returns the addresses and ports of packets in direction `way` after translation.
    pub(crate) fn translated(&self, way: FlowDirection) -> Tuple {
        self.tuples[way.reverse() as usize].inverse()
    }

    /// Returns whether addresses or ports of the flow's packets are translated.
    pub(crate) fn is_translated(&self) -> bool {
        self.tuples[0].inverse() != self.tuples[1]
    }
}

/// Description of a flow for listings and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowInfo {
    /// Number of the flow. Never reused for a later flow.
    pub id: u64,
    /// Addresses and ports of the packets of the flow's initiator, as they arrive at the router.
    pub original: Tuple,
    /// Addresses and ports of the reply packets, as they arrive at the router.
    pub reply: Tuple,
    /// State of the flow.
    pub class: FlowClass,
    /// Packets and bytes from the flow's initiator.
    pub sent: FlowTraffic,
    /// Packets and bytes of the replies.
    pub received: FlowTraffic,
    /// Time after which the flow is removed unless another packet arrives.
    pub expires_in: Duration,
}
