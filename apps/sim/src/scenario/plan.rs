//! Plan of a run: a validated scenario in which names are resolved to indices, and defaults are
//! filled in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use towpath_link::{LinkConfig, RingConfig};
use towpath_qdisc::{Dice, QueueLimitsConfig};
use towpath_tcp::{CongestionKind, TcpDefaults};

use super::file::{FlowEnd, LeaveKind, StallKind};
use crate::queue::QueueSpec;

/// Plan of a run. Contains all parameters of the run except the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Title of the scenario.
    pub title: String,
    /// Description of the scenario for the report.
    pub description: String,
    /// Name of the variant. Empty for a scenario without variants.
    pub variant: String,
    /// Values that the variant replaces, by the path of the key.
    pub set: BTreeMap<String, String>,
    /// Default seed, which the command line can override.
    pub seed: u64,
    /// Duration of a run in ns.
    pub duration_ns: u64,
    /// Sampling interval of the series in ns.
    pub sample_ns: u64,
    /// Maximum number of events in a run.
    pub events_max: u64,
    /// Maximum memory that a run may use, in bytes.
    pub memory_max: u64,
    /// First bytes of the MAC addresses of simulated hosts.
    pub macs: [u8; 4],
    /// Hosts, in the order of the file.
    pub hosts: Vec<HostPlan>,
    /// Names of the switches, in the order of the file.
    pub switches: Vec<String>,
    /// Links between the hosts and switches.
    pub links: Vec<LinkPlan>,
    /// Flows. A flow in the file has an entry per pair of hosts and repetition.
    pub flows: Vec<FlowPlan>,
}

/// Plan of a host.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Name of the host in the file.
    pub name: String,
    /// IPv4 address of the host.
    pub address: Ipv4Addr,
    /// Prefix length of the host's network.
    pub prefix_len: u8,
    /// Router to other networks; `None` without one.
    pub gateway: Option<Ipv4Addr>,
    /// Real device behind which the host is; `None` for a simulated host.
    pub device: Option<HostDevice>,
    /// Initial congestion window of a connection in segments.
    pub initial_window: u8,
    /// Receive buffer of a connection in bytes.
    pub recv_buffer: u32,
    /// Maximum size to which the receive buffer of a connection may grow, in bytes.
    pub recv_buffer_max: u32,
    /// Send buffer of a connection in bytes. `None` if it starts at 64 KiB and grows with the
    /// congestion window.
    pub send_buffer: Option<u32>,
    /// Maximum time by which an ACK is delayed.
    pub delayed_ack: Duration,
    /// Defaults for the TCP connections of the host.
    pub tcp: TcpDefaults,
    /// Whether a topology generated the host. In that case, a host entry with its name adds keys to
    /// it.
    pub(crate) is_generated: bool,
}

/// Default prefix length of the hosts' network: 10.0.0.0/8.
pub const PREFIX_LEN: u8 = 8;

/// Real device of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// Device in the user's notation, such as `packet:eth1`.
    pub words: String,
    /// Line of the file, from 1.
    pub line: usize,
    /// Whether the scenario contains the address of the host, so that flows can be sent to it.
    pub has_address: bool,
}

/// Host or switch, identified by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Index of a host.
    Host(usize),
    /// Index of a switch.
    Switch(usize),
}

/// Plan of a link.
#[derive(Debug, Clone)]
pub struct LinkPlan {
    /// Name of the link in the file, or a name derived from its endpoints.
    pub name: String,
    /// Hosts or switches at the ends of the link.
    pub ends: [Place; 2],
    /// Forward and backward direction of the link.
    pub ways: [WayPlan; 2],
}

/// Plan of one direction of a link.
#[derive(Debug, Clone)]
pub struct WayPlan {
    /// Rate, delay and impairments of the direction.
    pub config: LinkConfig,
    /// Queueing discipline. With `None`, a switch has a pfifo of 1000 packets. A host stops sending
    /// while its device is busy, so that no packet is dropped.
    pub queue: Option<QueueSpec>,
    /// Outages of the direction, in order of time and without overlap.
    pub outages: Vec<Outage>,
    /// Device between the queueing discipline and the link. With `None`, the link takes the next
    /// packet itself when it is free.
    pub device: Option<DevicePlan>,
    /// Real device at the end of the direction.
    pub exit: Option<ExitPlan>,
    /// Whether packets come from a real device.
    pub is_entrance: bool,
}

/// Plan of a real device, as an exit of the simulated network.
#[derive(Debug, Clone, PartialEq)]
pub struct ExitPlan {
    /// Maximum number of frames in the device.
    pub ring: usize,
    /// Byte queue limits, if enabled.
    pub limits: Option<QueueLimitsConfig>,
    /// Queueing discipline above the device. None: as for [`WayPlan::queue`].
    pub queue: Option<QueueSpec>,
}

impl Default for ExitPlan {
    fn default() -> Self {
        Self { ring: RingConfig::default().descriptors, limits: None, queue: None }
    }
}

/// Period in which one direction of a link is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Start of the outage in ns.
    pub from_ns: u64,
    /// End of the outage in ns, or `u64::MAX` if it does not end.
    pub until_ns: u64,
}

/// Period in which a program does not read, or does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Endpoint of the flow whose program stalls.
    pub end: FlowEnd,
    /// Whether the program stops reading or writing.
    pub what: StallKind,
    /// Start of the stall in ns.
    pub from_ns: u64,
    /// End of the stall in ns.
    pub until_ns: u64,
}

/// Early end of a program's connection, before its transfer is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// Endpoint of the flow whose program leaves.
    pub end: FlowEnd,
    /// Whether the program closes or resets the connection.
    pub how: LeaveKind,
    /// Time at which the program leaves, in ns.
    pub at_ns: u64,
}

/// Maximum number of descriptors of a ring, more than network cards have.
pub(super) const RING_MAX: usize = 65_536;

/// Plan of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlan {
    /// Length of the ring, rate and interrupts of the device.
    pub ring: RingConfig,
    /// Byte queue limits of the device. `None` if disabled.
    pub limits: Option<QueueLimitsConfig>,
}

/// Plan of a flow.
#[derive(Debug, Clone)]
pub struct FlowPlan {
    /// Name of the flow in the file, followed by a number if there are several flows of this name.
    pub name: String,
    /// Index of the source host.
    pub from: usize,
    /// Index of the destination host.
    pub to: usize,
    /// Start time in ns, or the earliest start time of a range.
    pub start_ns: u64,
    /// Length in ns of the range from which each run draws a start time. 0 if the start time is
    /// fixed.
    pub start_range_ns: u64,
    /// Time in ns after which the flow sends no new data.
    pub stop_ns: u64,
    /// Port of the destination; `None` for a port that depends on the number of the flow.
    pub port: Option<u16>,
    /// Congestion control of the connection at both endpoints.
    pub congestion: CongestionKind,
    /// Traffic pattern of the flow.
    pub traffic: Traffic,
    /// Stalls of the programs. Used only by exchanges.
    pub stalls: Vec<Stall>,
    /// Early leaves of the programs. Used only by exchanges.
    pub leaves: Vec<Leave>,
}

/// Traffic pattern of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Traffic {
    /// Sends as fast as the connection accepts data.
    Bulk {
        /// Number of bytes to send. `None` if the flow sends until its stop time.
        bytes: Option<u64>,
    },
    /// Alternates between sending and pausing, on a connection or with datagrams.
    OnOff {
        /// Lengths of the on and off phases.
        phases: PhasesPlan,
        /// Rate in on phases in bits per second. `None` if the flow sends as fast as the connection
        /// accepts data.
        rate: Option<u64>,
        /// Payload length of each datagram in bytes. `None` if the flow uses a TCP connection.
        datagram: Option<u64>,
    },
    /// Sends requests and waits for their responses, one after the other on a single connection.
    Request {
        /// Length of a request in bytes.
        request: u64,
        /// Length of a response in bytes.
        response: u64,
        /// Mean of the exponentially distributed pause after each response, in ns.
        think_ns: u64,
    },
    /// Transfers data in both directions of one connection at the same time.
    Exchange {
        /// Number of bytes from the source to the destination.
        bytes: u64,
        /// Number of bytes from the destination to the source.
        back: u64,
        /// Rate in bits per second at which each program reads. `None` if it is unlimited.
        read_rate: Option<u64>,
    },
    /// Sends datagrams at a constant bit rate.
    Cbr {
        /// Payload rate in bits per second.
        rate: u64,
        /// Payload length of each datagram in bytes.
        size: u64,
    },
    /// Sends echo requests periodically.
    Ping {
        /// Interval between two echo requests in ns.
        interval_ns: u64,
    },
}

/// Lengths of the on and off phases of on-off traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhasesPlan {
    /// Mean length of the on phases in ns.
    pub on_ns: u64,
    /// Mean length of the off phases in ns. 0 if the traffic is always on.
    pub off_ns: u64,
    /// Whether the lengths of the phases are constant. Otherwise they are exponentially
    /// distributed.
    pub is_constant: bool,
}

impl Traffic {
    /// Returns the name of the traffic pattern in tables.
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

    /// Returns whether the traffic uses a TCP connection.
    pub fn is_tcp(&self) -> bool {
        self.datagram_len().is_none() && !matches!(self, Self::Ping { .. })
    }

    /// Returns the payload length of the flow's datagrams in bytes; `None` if it sends none.
    pub fn datagram_len(&self) -> Option<u64> {
        match self {
            Self::OnOff { datagram, .. } => *datagram,
            Self::Cbr { size, .. } => Some(*size),
            _ => None,
        }
    }
}

/// Number of the first random stream for start times. Hosts use the streams below this number.
const START_STREAMS: u64 = 1 << 34;

impl Plan {
    /// Returns the plan of a run with this seed. Each range of start times is replaced by a time
    /// that is drawn from it.
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

    /// Returns the real devices, with the number of their hosts.
    pub fn devices(&self) -> impl Iterator<Item = (usize, &HostDevice)> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter_map(|(number, host)| Some((number, host.device.as_ref()?)))
    }

    /// Returns whether the destination of a flow is a real host.
    pub fn is_to_real(&self, flow: usize) -> bool {
        self.hosts[self.flows[flow].to].device.is_some()
    }

    /// Returns the name of a host or a switch.
    pub fn name_of(&self, place: Place) -> &str {
        match place {
            Place::Host(host) => &self.hosts[host].name,
            Place::Switch(switch) => &self.switches[switch],
        }
    }
}
