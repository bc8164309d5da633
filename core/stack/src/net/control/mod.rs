//! Control: the host's configuration, and the neighbours on its links. A host has one, whatever the
//! number of shards: two would both answer an ARP request, and could disagree about a neighbour.
//!
//! ```text
//!   Punt: ARP, discovery, groups ─►┐                    ┌─► Snapshot: interfaces, addresses,
//!   Notice: used, confirmed ──────►│ Control            │             groups, routes
//!   calls of the owner ───────────►│ tables, schedule   ├─► Order: a packet to send or to drop
//!   timeouts ─────────────────────►┘                    └─► News of a neighbour
//! ```
//!
//! Reading order: [`Control`] is in `tables`; `hear` takes control packets and reports. `host` has
//! the calls of the owner. `interface`, `addresses` and `routes` have the resulting state, and
//! `gateways` the routers that routes lead through. `neighbor` is the state machine of neighbours,
//! `solicit` asks where they are, and `arp` and `ndp` handle messages about them. `slaac` processes
//! router advertisements and makes addresses; `discovery` and `learnt` keep the advertised values.
//! `groups` has the groups joined, and `membership` reports them. `frames` builds what is sent.
//! `draft` checks a list of changes before `apply` makes them, `publish` makes a snapshot of the
//! result. `schedule` has tasks for later, `timeouts` does them. Control does not use the data part
//! (`cargo xtask tidy` checks).

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
