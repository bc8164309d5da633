//! Structure of a scenario file. Unknown keys are errors.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use towpath_tcp::CongestionKind;

use crate::units::{HostNames, Rate, Share, Size, StartTime, Time};

/// Content of a scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub title: Spanned<String>,
    pub description: Option<Spanned<String>>,
    pub duration: Spanned<Time>,
    pub sample: Option<Spanned<Time>>,
    #[serde(default = "one")]
    pub seed: u64,
    #[serde(default)]
    pub limits: LimitKeys,
    pub topology: Option<Spanned<TopologyKeys>>,
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostKeys>,
    #[serde(default, rename = "switch")]
    pub switches: Vec<SwitchKeys>,
    #[serde(default, rename = "link")]
    pub links: Vec<LinkKeys>,
    #[serde(default, rename = "flow")]
    pub flows: Vec<FlowKeys>,
    #[serde(default, rename = "variant")]
    pub variants: Vec<VariantKeys>,
    /// Lists of values by their path. Each combination of these values is a variant.
    pub sweep: Option<Spanned<toml::Table>>,
}

fn one() -> u64 {
    1
}

#[derive(Debug, Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitKeys {
    pub events: u64,
    pub memory: Size,
}

impl Default for LimitKeys {
    /// By default, allow some minutes of CPU time, and an amount of memory that any machine has.
    fn default() -> Self {
        Self { events: 200_000_000, memory: Size(1 << 30) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    Pair,
    Dumbbell,
    Star,
    #[serde(rename = "parking_lot")]
    ParkingLot,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostKeys {
    pub name: Spanned<String>,
    pub address: Option<Spanned<String>>,
    pub gateway: Option<Spanned<String>>,
    pub device: Option<Spanned<String>>,
    pub initial_window: Option<u8>,
    pub recv_buffer: Option<Spanned<Size>>,
    pub recv_buffer_max: Option<Spanned<Size>>,
    pub send_buffer: Option<Spanned<Size>>,
    pub delayed_ack: Option<Time>,
    pub tcp: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SwitchKeys {
    pub name: Spanned<String>,
}

/// Keys for one direction of a link.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Way {
    pub rate: Option<Rate>,
    pub delay: Option<Time>,
    pub jitter: Option<Time>,
    pub loss: Option<Share>,
    pub burst: Option<BurstKeys>,
    pub lose: Option<Spanned<LoseKeys>>,
    pub reorder: Option<Share>,
    pub duplicate: Option<Share>,
    pub corrupt: Option<Share>,
    pub down: Option<Vec<OutageKeys>>,
    pub qdisc: Option<Spanned<String>>,
    pub device: Option<Spanned<DeviceKeys>>,
}

/// Keys for a device with a ring, which is between the queue and the link.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceKeys {
    pub ring: Option<usize>,
    pub frames: Option<usize>,
    pub delay: Option<Time>,
    pub overhead: Option<Size>,
    #[serde(default)]
    pub bql: bool,
}

/// Keys for burst losses (Gilbert-Elliott model).
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BurstKeys {
    pub enter: Share,
    pub leave: Share,
    pub lost: Option<Share>,
}

/// Keys for an outage, in which one direction of a link is down.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutageKeys {
    pub at: Time,
    #[serde(rename = "for")]
    pub length: Option<Time>,
}

/// Keys for losses by the number of the packet.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoseKeys {
    pub first: u64,
    pub count: u64,
}

/// Defines a struct that includes the keys of [`Way`]. serde's `flatten` cannot be used, because it
/// would accept unknown keys.
macro_rules! with_way {
    ($name:ident { $($own:tt)* }) => {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($own)*
            pub rate: Option<Rate>,
            pub delay: Option<Time>,
            pub jitter: Option<Time>,
            pub loss: Option<Share>,
            pub burst: Option<BurstKeys>,
            pub lose: Option<Spanned<LoseKeys>>,
            pub reorder: Option<Share>,
            pub duplicate: Option<Share>,
            pub corrupt: Option<Share>,
            pub down: Option<Vec<OutageKeys>>,
            pub qdisc: Option<Spanned<String>>,
            pub device: Option<Spanned<DeviceKeys>>,
            pub back: Option<Way>,
        }

        impl $name {
            /// Returns the forward and the backward direction, which differ only in the keys of
            /// `back`.
            pub fn ways(&self) -> [Way; 2] {
                let there = Way {
                    rate: self.rate,
                    delay: self.delay,
                    jitter: self.jitter,
                    loss: self.loss,
                    burst: self.burst,
                    lose: self.lose.clone(),
                    reorder: self.reorder,
                    duplicate: self.duplicate,
                    corrupt: self.corrupt,
                    down: self.down.clone(),
                    qdisc: self.qdisc.clone(),
                    device: self.device.clone(),
                };
                let mut back = there.clone();
                if let Some(own) = self.back.clone() {
                    back.rate = own.rate.or(back.rate);
                    back.delay = own.delay.or(back.delay);
                    back.jitter = own.jitter.or(back.jitter);
                    back.loss = own.loss.or(back.loss);
                    back.burst = own.burst.or(back.burst);
                    back.lose = own.lose.or(back.lose);
                    back.reorder = own.reorder.or(back.reorder);
                    back.duplicate = own.duplicate.or(back.duplicate);
                    back.corrupt = own.corrupt.or(back.corrupt);
                    back.down = own.down.or(back.down);
                    back.qdisc = own.qdisc.or(back.qdisc);
                    back.device = own.device.or(back.device);
                }
                [there, back]
            }
        }
    };
}

with_way! { LinkKeys {
    pub name: Option<Spanned<String>>,
    pub between: Spanned<[String; 2]>,
} }

with_way! { TopologyKeys {
    pub kind: Shape,
    pub n: Option<usize>,
    pub edge_rate: Option<Rate>,
    pub edge_delay: Option<Time>,
} }

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FlowKind {
    Bulk,
    OnOff,
    Request,
    Exchange,
    Cbr,
    Ping,
}

/// Congestion control algorithm, which the file gives by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CongestionName(pub(crate) CongestionKind);

impl<'de> Deserialize<'de> for CongestionName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let kind = CongestionKind::from_name(&name);
        kind.map(Self).ok_or_else(|| Error::unknown_variant(&name, CongestionKind::NAMES))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FlowTransport {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DatagramLengths {
    Exponential,
    Constant,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowKeys {
    pub name: Option<Spanned<String>>,
    pub kind: Spanned<FlowKind>,
    pub from: Spanned<HostNames>,
    pub to: Spanned<HostNames>,
    #[serde(default = "once")]
    pub count: usize,
    #[serde(default)]
    pub start: StartTime,
    pub stagger: Option<Time>,
    pub stop: Option<Time>,
    pub port: Option<u16>,
    pub congestion: Option<CongestionName>,
    pub bytes: Option<Size>,
    pub back: Option<Size>,
    pub read_rate: Option<Rate>,
    pub stall: Option<Vec<StallKeys>>,
    pub leave: Option<Vec<LeaveKeys>>,
    pub request: Option<Size>,
    pub response: Option<Size>,
    pub think: Option<Time>,
    pub on: Option<Time>,
    pub off: Option<Time>,
    pub lengths: Option<DatagramLengths>,
    pub transport: Option<FlowTransport>,
    pub rate: Option<Rate>,
    pub size: Option<Size>,
    pub interval: Option<Time>,
}

/// Endpoint of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowEnd {
    /// Source, which is the endpoint that starts the flow.
    From,
    /// Destination of the flow.
    To,
}

/// Operation that a program suspends while it stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StallKind {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

/// How a program leaves its connection early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaveKind {
    /// Closes the connection with unread or unsent data, as the kernel does for a program that
    /// dies.
    Close,
    /// Resets the connection.
    Reset,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StallKeys {
    pub end: FlowEnd,
    pub what: StallKind,
    pub at: Time,
    #[serde(rename = "for")]
    pub length: Time,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaveKeys {
    pub end: FlowEnd,
    pub how: LeaveKind,
    pub at: Time,
}

fn once() -> usize {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VariantKeys {
    pub name: Spanned<String>,
    #[serde(default)]
    pub set: toml::Table,
}
