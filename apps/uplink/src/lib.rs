//! Links of stacks, and their transfer to another process.
//!
//! - [`DeviceSpec`]: a device in the user's notation, such as `xdp:eth1`; [`DEVICES`]: all drivers;
//! - [`Plan`]: a user's specification of a link, whose published ports are [`PublishedRange`]s; its
//!   functions open the link;
//! - [`Shape`]: configuration of a stack on its link; [`PackedLink`]: configuration of the link;
//! - [`LaunchSpec`]: both of them, and further settings of an engine in PROGRAM's process, which
//!   receives it with open descriptors and creates an [`Uplink`] from it;
//! - [`LaunchSocket`]: the socket between that process and `towpath run`, for the launch spec and
//!   later messages;
//! - [`Namespaced`]: configuration of a device between the gateway and a network namespace;
//! - [`NetemSpec`]: emulated links with delay and loss in front of a port;
//! - [`LeaseClient`]: obtains the addresses of a port, and applies them to an engine;
//! - [`LeaseServer`]: serves addresses to the hosts of a port;
//! - [`PortAdvertiser`]: sends router advertisements to the hosts of a port;
//! - [`Lender`]: opens a device for a process without privileges, which gets a [`BorrowedDevice`];
//! - [`Counting`]: a port whose counters can be read after the port was dropped.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod assemble;
mod claims;
mod coalescing;
mod counting;
mod device;
mod dhcp;
mod dhcp_server;
mod facts;
mod host_routes;
mod kernel_ports;
mod launch;
mod lend;
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
mod router_adverts;
mod shape;
mod tap_network;
mod turns;
mod twin;
mod unix_sockets;
mod uplink;

pub use address::{other_host, parse_cidr, station_mac};
pub use claims::Claims;
pub use counting::{Counting, Layer, Tally, layers};
pub use device::{
    DEVICES, DeviceDriver, DeviceRequest, DeviceSite, DeviceSpec, DeviceTraits, DeviceUse,
    OpenDevice, ParameterKind, spec::names as device_names,
};
pub use dhcp::{DhcpNotice, DhcpSettings, Lease, LeaseClient, LeaseLoss, lease_metric};
pub use dhcp_server::{LeaseRecord, LeaseServer, POOL_MAX, Reservation, ServerConfig};
pub use launch::{LaunchMessage, LaunchSocket, LaunchSpec, Said};
pub use lend::{BorrowedDevice, Lender};
pub use mtu::{Followed, LinkChange, MTUS, MtuFollower, set_engine_mtu};
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
pub use router_adverts::{AdvertConfig, PortAdvertiser};
pub use shape::{PackedLink, Resolver, Route, Shape};
pub use towpath_bpf::{PortRange, Transport};
pub use towpath_pool::PortCounters;
pub use towpath_tcp::TcpDefaults;
pub use twin::{TwinSite, TwinSpec, Twinned};
pub use uplink::{Uplink, now_ns};
