//! Flows, and the times for which they are remembered.

use core::time::Duration;

use crate::tcp::{TcpPhase, TcpTrack};
use crate::tuple::{FlowDirection, Tuple};

/// State of a flow, which determines how long it is remembered without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowClass {
    /// A TCP connection whose handshake is not complete.
    TcpOpening,
    /// An established TCP connection.
    TcpEstablished,
    /// A TCP connection that both ends closed, or one end reset.
    TcpClosing,
    /// UDP packets of one direction.
    UdpUnanswered,
    /// UDP packets of both directions.
    UdpAnswered,
    /// UDP packets of both directions, with a request that followed an answer.
    UdpAssured,
    /// An ICMP query without a reply.
    IcmpUnanswered,
    /// An ICMP query with replies.
    IcmpAnswered,
    /// Packets of another protocol in one direction.
    OtherUnanswered,
    /// Packets of another protocol in both directions.
    OtherAnswered,
}

impl FlowClass {
    /// All classes.
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

    /// Returns the name of the state in listings.
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

    /// Returns the protocol of the flows: `tcp`, `udp`, `icmp` or `other`.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::TcpOpening | Self::TcpEstablished | Self::TcpClosing => "tcp",
            Self::UdpUnanswered | Self::UdpAnswered | Self::UdpAssured => "udp",
            Self::IcmpUnanswered | Self::IcmpAnswered => "icmp",
            Self::OtherUnanswered | Self::OtherAnswered => "other",
        }
    }

    /// Returns whether a full table evicts flows of this class for new ones. Answered ICMP queries
    /// and UDP requests are among them, because a forged request suffices for an answer.
    pub(crate) const fn is_evictable(self) -> bool {
        matches!(
            self,
            Self::TcpOpening
                | Self::TcpClosing
                | Self::UdpUnanswered
                | Self::UdpAnswered
                | Self::IcmpUnanswered
                | Self::IcmpAnswered
                | Self::OtherUnanswered
        )
    }

    pub(crate) const fn of_tcp(phase: TcpPhase) -> Self {
        match phase {
            TcpPhase::Opening => Self::TcpOpening,
            TcpPhase::Established => Self::TcpEstablished,
            TcpPhase::Closing => Self::TcpClosing,
        }
    }

    /// Returns the class after a packet; TCP depends on its segments.
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

/// Times for which flows without packets are remembered, by class.
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
/// Timeouts for protocols without known states: 120 s as for UDP if unanswered, and Linux's
/// `nf_conntrack_generic_timeout` if answered.
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

/// Packets and bytes of a flow in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowTraffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets, from the IP header on.
    pub bytes: u64,
}

/// Absent number of an entry.
pub(crate) const NONE: u32 = u32::MAX;

/// A flow in the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrackedFlow {
    /// Tuples of packets as they arrive, by direction.
    pub tuples: [Tuple; 2],
    pub tcp: TcpTrack,
    pub traffic: [FlowTraffic; 2],
    /// Time of the last packet, up to a second early.
    pub last_ns: u64,
    /// Slots of the next newer and next older flow of the class, by the time of their last packets.
    pub newer: u32,
    pub older: u32,
    /// Incremented when the slot is used again.
    pub generation: u32,
    /// Slot of the source address, for its limit.
    pub source: u32,
    /// Slot of the mapping that gave the flow its source, or [`NONE`].
    pub mapping: u32,
    /// Interface whose address is the translated source; 0 unless masqueraded.
    pub masquerade: u16,
    pub class: FlowClass,
    pub is_live: bool,
    pub is_answered: bool,
}

impl TrackedFlow {
    /// Returns the tuple that packets of a direction have after translation.
    pub(crate) fn translated(&self, way: FlowDirection) -> Tuple {
        self.tuples[way.reverse() as usize].inverse()
    }

    /// Returns whether packets of the flow are rewritten.
    pub(crate) fn is_translated(&self) -> bool {
        self.tuples[0].inverse() != self.tuples[1]
    }
}

/// Description of a flow, for listings and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowInfo {
    /// Number of the flow, which no later flow has.
    pub id: u64,
    /// Tuple of the packets of its first sender, as they arrive.
    pub original: Tuple,
    /// Tuple of the answers, as they arrive.
    pub reply: Tuple,
    /// State.
    pub class: FlowClass,
    /// Traffic in the original direction.
    pub sent: FlowTraffic,
    /// Traffic of the answers.
    pub received: FlowTraffic,
    /// Time after which the flow is removed if no packet arrives.
    pub expires_in: Duration,
}
