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
//! Reading order: [`Control`] is in `tables`; `hear` takes punts and notices. `host` has the calls
//! of the owner. `interface`, `addresses` and `routes` have the resulting state, and `gateways` the
//! routers that routes lead through. `neighbor` is the state machine of neighbours; `arp` and `ndp`
//! ask and answer. `slaac` processes router advertisements and makes addresses; `discovery` and
//! `learnt` keep the advertised values. `groups` has the groups joined, and `membership` reports
//! them. `draft` checks a list of changes before `apply` makes them. `schedule` has tasks for
//! later, `timeouts` does them. Control does not use the data part (`cargo xtask tidy` checks).

mod addresses;
mod apply;
mod arp;
mod discovery;
mod draft;
mod gateways;
mod groups;
mod hear;
mod host;
mod interface;
mod learnt;
mod membership;
mod ndp;
mod neighbor;
mod routes;
mod schedule;
mod slaac;
mod tables;
mod timeouts;

pub use neighbor::{Neighbor, NeighborState};
pub(super) use tables::Control;
