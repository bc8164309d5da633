//! A router: an engine without programs that forwards packets between ports.
//!
//! ```text
//!   port lan ─┐                                  ┌─ port wan
//!             ├─ poll ─► Stack (forwarding) ─► submit
//!   port dmz ─┘   own addresses: ARP, ND, ping   └─
//! ```
//!
//! - [`Plan`]: the router in words, checked: ports, routes and rules that fit each other;
//! - [`router`]: the engine of a plan, whose owner runs it.
//!
//! Budget: no copy and no allocation per packet beyond the ports' own.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod plan;
mod router;

pub use plan::{Hop, Plan, PlanPart, PlannedPort, PlannedRoute, RouterPlanError, Target};
pub use router::{OpenPort, RouterError, Settings, router};
