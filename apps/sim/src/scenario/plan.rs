//! A scenario that is checked: every name is an index, every value is there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use towpath_link::{LinkConfig, RingConfig};
use towpath_qdisc::{Dice, QueueLimitsConfig};
use towpath_tcp::CongestionKind;

use super::file::{FlowEnd, LeaveKind, StallKind};
use crate::queue::QueueSpec;

/// Everything that a run needs but its seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Title of the scenario.
    pub title: String,
    /// Sentences for the report.
    pub description: String,
    /// Name of the variant; empty for a scenario without variants.
    pub variant: String,
    /// Values of the variant, by their path.
    pub set: BTreeMap<String, String>,
    /// Seed unless the command line has one.
    pub seed: u64,
    /// Length of a run.
    pub duration_ns: u64,
    /// Time between two samples of the series.
    pub sample_ns: u64,
    /// Events after which a run is given up.
    pub events_max: u64,
    /// Bytes of packets and samples after which a run is given up.
    pub memory_max: u64,
    /// Hosts, in the order of the file.
    pub hosts: Vec<HostPlan>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links between two of them.
    pub links: Vec<LinkPlan>,
    /// Flows, one for each pair of hosts and each count.
    pub flows: Vec<FlowPlan>,
}

/// A host.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Name in the file.
    pub name: String,
    /// Address in [`NET`].
    pub address: Ipv4Addr,
    /// First congestion window in segments.
    pub initial_window: u8,
    /// Bytes of the receive buffer of a connection: the window that it offers.
    pub recv_buffer: u32,
    /// Bytes that the receive buffer may grow to.
    pub recv_buffer_max: u32,
    /// Bytes of the send buffer; `None`: it starts at 64 KiB and grows with the congestion window.
    pub send_buffer: Option<u32>,
    /// Time for which an ACK waits for company.
    pub delayed_ack: Duration,
    /// Made by a generator: a host of the file with its name adds to it.
    pub(crate) is_generated: bool,
}

/// The network that all hosts are on: 10.0.0.0/8.
pub const NET: &str = "/8";

/// A host or a switch, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A host.
    Host(usize),
    /// A switch.
    Switch(usize),
}

/// A link.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    /// Name in the file, or of its ends.
    pub name: String,
    /// Ends of the link.
    pub ends: [Place; 2],
    /// Direction from the first end to the second, and the one back.
    pub ways: [WayPlan; 2],
}

/// Plan of a direction of a link.
#[derive(Debug, Clone)]
pub struct WayPlan {
    /// Rate, delay and impairments.
    pub config: LinkConfig,
    /// Discipline in front of the rate. None: a switch has a pfifo of 1000 packets; a host stops
    /// sending while its device is busy, so that nothing is lost there.
    pub queue: Option<QueueSpec>,
    /// Times in which nothing that is sent arrives, in their order and apart.
    pub outages: Vec<Outage>,
    /// Device between the discipline and the link. None: the link takes a packet when it is free.
    pub device: Option<DevicePlan>,
}

/// A time in which a direction of a link is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Start of the outage.
    pub from_ns: u64,
    /// End of the outage; `u64::MAX` for none.
    pub until_ns: u64,
}

/// A time in which the program at one end of a flow does not read, or does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// End of the flow whose program stalls.
    pub end: FlowEnd,
    /// Reading or writing.
    pub what: StallKind,
    /// Start of the stall.
    pub from_ns: u64,
    /// End of the stall.
    pub until_ns: u64,
}

/// The moment at which a program leaves its connection early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// End of the flow whose program leaves.
    pub end: FlowEnd,
    /// Close or reset.
    pub how: LeaveKind,
    /// Time.
    pub at_ns: u64,
}

/// Plan of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlan {
    /// Ring, rate and interrupts.
    pub ring: RingConfig,
    /// Byte queue limits.
    pub limits: Option<QueueLimitsConfig>,
}

/// A flow.
#[derive(Debug, Clone)]
pub struct FlowPlan {
    /// Name in the file, with a number where there are several.
    pub name: String,
    /// Host that starts it.
    pub from: usize,
    /// Host at the other end.
    pub to: usize,
    /// Time of its first packet, or the earliest one of a range.
    pub start_ns: u64,
    /// Length of the range of starts, from which each run draws one. 0: `start_ns` it is.
    pub start_range_ns: u64,
    /// Time after which it offers nothing more.
    pub stop_ns: u64,
    /// Congestion control of both ends.
    pub congestion: CongestionKind,
    /// Pattern of its traffic.
    pub traffic: Traffic,
    /// Times in which programs do not read or write; of an exchange.
    pub stalls: Vec<Stall>,
    /// Programs that leave early; of an exchange.
    pub leaves: Vec<Leave>,
}

/// Pattern of a flow's traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Traffic {
    /// As much as the connection takes, up to a number of bytes.
    Bulk {
        /// Bytes to send; until the stop without it.
        bytes: Option<u64>,
    },
    /// A connection, or datagrams, that are sent for a while and not for a while.
    OnOff {
        /// Times in which it sends and does not.
        phases: PhasesPlan,
        /// Bits per second while it sends; as much as the connection takes without it.
        rate: Option<u64>,
        /// Bytes of payload of each datagram; a TCP connection without it.
        datagram: Option<u64>,
    },
    /// Requests and responses on one connection, one after the other.
    Request {
        /// Bytes of a request.
        request: u64,
        /// Bytes of a response.
        response: u64,
        /// Mean of the pause after a response, of exponential length.
        think_ns: u64,
    },
    /// Bytes in both directions of one connection at once.
    Exchange {
        /// Bytes there.
        bytes: u64,
        /// Bytes back.
        back: u64,
        /// Bits per second that the programs read; as fast as they can without it.
        read_rate: Option<u64>,
    },
    /// Datagrams at a constant bit rate.
    Cbr {
        /// Bits of payload per second.
        rate: u64,
        /// Bytes of payload of each.
        size: u64,
    },
    /// Echo requests at an interval.
    Ping {
        /// Time between two.
        interval_ns: u64,
    },
}

/// Lengths of the phases of on-off traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhasesPlan {
    /// Mean of the time in which it sends.
    pub on_ns: u64,
    /// Mean of the time in which it does not; 0 for traffic that is never off.
    pub off_ns: u64,
    /// Each phase is as long as the mean, instead of exponential.
    pub is_constant: bool,
}

impl Traffic {
    /// Name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bulk { .. } => "bulk",
            Self::OnOff { .. } => "onoff",
            Self::Request { .. } => "request",
            Self::Exchange { .. } => "exchange",
            Self::Cbr { .. } => "cbr",
            Self::Ping { .. } => "ping",
        }
    }

    /// Whether the flow is a TCP connection.
    pub fn is_tcp(&self) -> bool {
        let is_datagram = matches!(self, Self::OnOff { datagram: Some(_), .. });
        !is_datagram && !matches!(self, Self::Cbr { .. } | Self::Ping { .. })
    }
}

/// Streams of dice of the flows' starts; hosts have those below.
const START_STREAMS: u64 = 1 << 34;

impl Plan {
    /// The plan of a run: each range of starts has become the start that `seed` draws from it.
    pub fn drawn(&self, seed: u64) -> Cow<'_, Self> {
        if self.flows.iter().all(|flow| flow.start_range_ns == 0) {
            return Cow::Borrowed(self);
        }
        let mut plan = self.clone();
        for (stream, flow) in (START_STREAMS..).zip(&mut plan.flows) {
            flow.start_ns += Dice::new(seed, stream).below(flow.start_range_ns);
            flow.start_range_ns = 0;
        }
        Cow::Owned(plan)
    }

    /// Name of a host or switch.
    pub fn name_of(&self, place: Place) -> &str {
        match place {
            Place::Host(host) => &self.hosts[host].name,
            Place::Switch(switch) => &self.switches[switch],
        }
    }
}
