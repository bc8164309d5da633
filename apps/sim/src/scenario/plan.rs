//! A validated scenario: names are resolved to indices, and defaults are filled in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use towpath_link::{LinkConfig, RingConfig};
use towpath_qdisc::{Dice, QueueLimitsConfig};
use towpath_tcp::{CongestionKind, TcpDefaults};

use super::file::{FlowEnd, LeaveKind, StallKind};
use crate::queue::QueueSpec;

/// Plan of a run: all parameters except the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Title of the scenario.
    pub title: String,
    /// Description for the report.
    pub description: String,
    /// Name of the variant; empty for a scenario without variants.
    pub variant: String,
    /// Values of the variant, by their path.
    pub set: BTreeMap<String, String>,
    /// Default seed; the command line may override it.
    pub seed: u64,
    /// Duration of a run in ns.
    pub duration_ns: u64,
    /// Sampling interval of the series in ns.
    pub sample_ns: u64,
    /// Maximum number of events of a run.
    pub events_max: u64,
    /// Maximum memory of a run in bytes.
    pub memory_max: u64,
    /// Hosts, in the order of the file.
    pub hosts: Vec<HostPlan>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links between hosts and switches.
    pub links: Vec<LinkPlan>,
    /// Flows, one per pair of hosts and repetition.
    pub flows: Vec<FlowPlan>,
}

/// Plan of a host.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Name in the file.
    pub name: String,
    /// Address in [`NET`].
    pub address: Ipv4Addr,
    /// Initial congestion window in segments.
    pub initial_window: u8,
    /// Receive buffer of a connection in bytes.
    pub recv_buffer: u32,
    /// Maximum that the receive buffer may grow to, in bytes.
    pub recv_buffer_max: u32,
    /// Send buffer in bytes. None: starts at 64 KiB and grows with the congestion window.
    pub send_buffer: Option<u32>,
    /// Maximum delay of a delayed ACK.
    pub delayed_ack: Duration,
    /// Defaults of TCP connections.
    pub tcp: TcpDefaults,
    /// Whether a topology generated the host. A host entry with its name then adds keys to it.
    pub(crate) is_generated: bool,
}

/// Prefix length of the network of all hosts: 10.0.0.0/8.
pub const NET: &str = "/8";

/// Host or switch, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A host.
    Host(usize),
    /// A switch.
    Switch(usize),
}

/// Plan of a link.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    /// Name in the file, or a name derived from its endpoints.
    pub name: String,
    /// Endpoints of the link.
    pub ends: [Place; 2],
    /// Forward and backward direction.
    pub ways: [WayPlan; 2],
}

/// Plan of a direction of a link.
#[derive(Debug, Clone)]
pub struct WayPlan {
    /// Rate, delay and impairments.
    pub config: LinkConfig,
    /// Queueing discipline. None: a switch has a pfifo of 1000 packets; a host stops sending while
    /// its device is busy, so that no packet is dropped.
    pub queue: Option<QueueSpec>,
    /// Outages in order of time, without overlap.
    pub outages: Vec<Outage>,
    /// Device between queueing discipline and link. None: the link itself takes the next packet
    /// when it is free.
    pub device: Option<DevicePlan>,
}

/// Time in which a link's direction is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Start of the outage in ns.
    pub from_ns: u64,
    /// End of the outage in ns; `u64::MAX` if it does not end.
    pub until_ns: u64,
}

/// Time in which a program does not read, or does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Endpoint whose program stalls.
    pub end: FlowEnd,
    /// Whether reading or writing stalls.
    pub what: StallKind,
    /// Start of the stall in ns.
    pub from_ns: u64,
    /// End of the stall in ns.
    pub until_ns: u64,
}

/// Early leave of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// Endpoint whose program leaves.
    pub end: FlowEnd,
    /// Whether the connection is closed or reset.
    pub how: LeaveKind,
    /// Time of the leave in ns.
    pub at_ns: u64,
}

/// Plan of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlan {
    /// Ring, rate and interrupts of the device.
    pub ring: RingConfig,
    /// Byte queue limits, if enabled.
    pub limits: Option<QueueLimitsConfig>,
}

/// Plan of a flow.
#[derive(Debug, Clone)]
pub struct FlowPlan {
    /// Name in the file, followed by a number if there are several.
    pub name: String,
    /// Index of the source host.
    pub from: usize,
    /// Index of the destination host.
    pub to: usize,
    /// Start time in ns, or the minimum of a range.
    pub start_ns: u64,
    /// Length in ns of the range from which each run draws a start. 0 means that `start_ns` is
    /// fixed.
    pub start_range_ns: u64,
    /// Time in ns after which no new data is sent.
    pub stop_ns: u64,
    /// Congestion control of both endpoints.
    pub congestion: CongestionKind,
    /// Traffic pattern.
    pub traffic: Traffic,
    /// Stalls of programs, for exchanges.
    pub stalls: Vec<Stall>,
    /// Early leaves of programs, for exchanges.
    pub leaves: Vec<Leave>,
}

/// Traffic pattern of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Traffic {
    /// Sends as fast as the connection accepts data.
    Bulk {
        /// Bytes to send; None means until the stop.
        bytes: Option<u64>,
    },
    /// Alternates between sending and pausing, on a connection or with datagrams.
    OnOff {
        /// Lengths of the phases.
        phases: PhasesPlan,
        /// Rate in bits per second while sending; None means as fast as the connection accepts
        /// data.
        rate: Option<u64>,
        /// Payload length of each datagram in bytes; None means a TCP connection.
        datagram: Option<u64>,
    },
    /// Sequential requests and responses on one connection.
    Request {
        /// Length of a request in bytes.
        request: u64,
        /// Length of a response in bytes.
        response: u64,
        /// Mean of the exponentially distributed pause after a response, in ns.
        think_ns: u64,
    },
    /// Simultaneous transfers in both directions of one connection.
    Exchange {
        /// Bytes from the source to the destination.
        bytes: u64,
        /// Bytes from the destination to the source.
        back: u64,
        /// Rate in bits per second at which the programs read; None means unlimited.
        read_rate: Option<u64>,
    },
    /// Datagrams at a constant bit rate.
    Cbr {
        /// Payload rate in bits per second.
        rate: u64,
        /// Payload length of each datagram in bytes.
        size: u64,
    },
    /// Periodic echo requests.
    Ping {
        /// Interval in ns.
        interval_ns: u64,
    },
}

/// Lengths of the phases of on-off traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhasesPlan {
    /// Mean length of on phases in ns.
    pub on_ns: u64,
    /// Mean length of off phases in ns; 0 means always on.
    pub off_ns: u64,
    /// Whether phases have constant instead of exponentially distributed lengths.
    pub is_constant: bool,
}

impl Traffic {
    /// Returns the name used in tables.
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

    /// Returns whether the flow uses TCP.
    pub fn is_tcp(&self) -> bool {
        let is_datagram = matches!(self, Self::OnOff { datagram: Some(_), .. });
        !is_datagram && !matches!(self, Self::Cbr { .. } | Self::Ping { .. })
    }
}

/// First random stream of the start times. Hosts use the streams below.
const START_STREAMS: u64 = 1 << 34;

impl Plan {
    /// Returns the plan of a run, in which each range of start times is replaced by a time drawn
    /// using `seed`.
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

    /// Returns the name of a host or switch.
    pub fn name_of(&self, place: Place) -> &str {
        match place {
            Place::Host(host) => &self.hosts[host].name,
            Place::Switch(switch) => &self.switches[switch],
        }
    }
}
