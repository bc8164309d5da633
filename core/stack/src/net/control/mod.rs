//! Control: what this host is, and who is on its links. There is one, whatever the number of
//! shards: two would answer one ARP request, and hold two opinions of one neighbour.
//!
//! ```text
//!   Punt: ARP, discovery, groups ─►┐                    ┌─► Snapshot: interfaces, addresses, groups, routes
//!   Notice: used, confirmed ──────►│ Control            │
//!   calls of the owner ───────────►│ tables, schedule   ├─► Order: a frame or packet to send, one to drop,
//!   timeouts ─────────────────────►┘                    └─► News of a neighbour
//! ```
//!
//! Reading order: [`Control`] is in `tables`, what it is told in `hear`. `host` has what its owner
//! decides, `interface`, `addresses` and `routes` what came of it, with `gateways`, the routers
//! that routes lead through. `neighbor` is the state machine of neighbours; `arp` and `ndp` ask and
//! answer. `slaac` listens to routers and makes addresses, `discovery` and `learnt` keep what they
//! said. `groups` has what was joined, and `membership` reports it. `draft` checks a list of
//! changes before `apply` makes them. `schedule` has tasks for later, `timeouts` does them. Control
//! knows nothing of the data part (`cargo xtask tidy`).

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
