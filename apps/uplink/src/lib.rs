//! The link of a run's stack, and its transfer into another process.
//!
//! - [`DeviceSpec`]: a device in words, as `xdp:eth1`; [`DEVICES`]: all kinds of them;
//! - [`Plan`]: the words of a user, in which ports are [`PublishedRange`], and the opening of a
//!   link by them;
//! - [`Shape`]: the stack's side of its link, in words; [`PackedLink`]: the link;
//! - [`LaunchSpec`]: both, and the other parts of an engine in PROGRAM's process. A launch spec
//!   goes there with open descriptors, and becomes an [`Uplink`];
//! - [`LaunchSocket`]: the socket between that process and `towpath run`, for the launch spec and
//!   later messages;
//! - [`Namespaced`]: both ends of a device, with the gateway at one and a namespace at the other;
//! - [`NetemSpec`]: links with delay and loss in front of a port;
//! - [`Counting`]: ports that leave their counters behind.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod assemble;
mod claims;
mod coalescing;
mod counting;
mod device;
mod facts;
mod host_routes;
mod kernel_ports;
mod launch;
mod mtu;
mod names;
mod namespace;
mod netem;
mod plan;
mod plan_error;
mod publish;
mod random;
mod record;
mod remark;
mod replay;
mod rootless;
mod shape;
mod tap_network;
mod turns;
mod unix_sockets;
mod uplink;

pub use address::{other_host, parse_cidr, station_mac};
pub use claims::Claims;
pub use counting::{Counting, Layer, Tally, layers};
pub use device::{
    DEVICES, DeviceDriver, DeviceRequest, DeviceSite, DeviceSpec, DeviceTraits, DeviceUse,
    OpenDevice, ParameterKind, spec::names as device_names,
};
pub use launch::{LaunchMessage, LaunchSocket, LaunchSpec, Said};
pub use mtu::{Followed, MTUS, MtuFollower, set_engine_mtu};
pub use names::{HostEntry, NameDestination, Names, parse_hostname};
pub use namespace::{BoundPorts, Namespaced};
pub use netem::NetemSpec;
pub use plan::{Connected, Dns, Packed, Plan};
pub use plan_error::{DeviceError, PlanError};
pub use publish::{Protocol, Publish, PublishedRange};
pub use random::random;
pub use record::{Recording, record_drops};
pub use remark::{Remark, Tell};
pub use replay::ReplayEnd;
pub use shape::{PackedLink, Resolver, Route, Shape};
pub use towpath_bpf::{PortRange, Transport};
pub use towpath_pool::PortCounters;
pub use uplink::{Uplink, now_ns};
