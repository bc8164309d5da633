//! Control part of the IP layer: it manages the host's configuration and neighbours. A host has a
//! single control part, regardless of its number of shards (stacks on several threads). With two
//! control parts, both would answer ARP requests, and they could disagree about neighbours.
//!
//! ```text
//!   ControlPacket: ARP, NDP, groups ──►┐                   ┌─► Snapshot: interfaces, addresses,
//!   DataReport: used, confirmed ──────►│ Control           │             groups, routes
//!   calls of the owner ───────────────►│ tables, schedule  ├─► DataCommand: send or drop a packet
//!   timeouts ─────────────────────────►┘                   └─► NeighborUpdate
//! ```
//!
//! Reading order: `tables` defines [`Control`]. `hear` receives control packets and reports, and
//! `host` has the calls of the owner. `interface`, `addresses` and `routes` hold the configuration,
//! and `gateways` the next-hop routers of routes. `neighbor` is the neighbour state machine,
//! `solicit` sends solicitations, and `arp` and `ndp` handle received messages. `slaac` processes
//! router advertisements and generates addresses; `discovery` and `learnt` store advertised values.
//! `groups` holds the joined groups, and `membership` reports them. `frames` builds packets.
//! `draft` validates a list of changes before `apply` makes them, `kernel_routes` replaces routes
//! taken over from the kernel, and `publish` creates a snapshot. `schedule` holds timed tasks,
//! which `timeouts` runs. Control does not depend on the data part (checked by `cargo xtask tidy`).

mod addresses;
mod apply;
mod arp;
mod discovery;
mod draft;
mod frames;
mod gateways;
mod groups;
mod hear;
mod host;
mod interface;
mod kernel_routes;
mod learnt;
mod membership;
mod ndp;
mod neighbor;
mod publish;
mod routes;
mod schedule;
mod slaac;
mod solicit;
mod tables;
mod timeouts;

pub use neighbor::{NeighborInfo, NeighborState};
pub(super) use tables::Control;
