//! A router: an engine without programs that forwards packets between ports.
//!
//! ```text
//!   port lan ─┐                                  ┌─ port wan
//!             ├─ poll ─► Stack (forwarding) ─► submit
//!   port dmz ─┘   own addresses: ARP, ND, ping   └─
//! ```
//!
//! - [`Plan`]: the configuration of a router, whose ports, routes and rules are checked for
//!   consistency;
//! - [`FlowTracker`]: connection tracking and address translation;
//! - [`DnsService`]: a DNS forwarder for the hosts of some ports;
//! - [`router`]: creates the engine of a plan, which the caller runs.
//!
//! Cost: no copy and no allocation per packet beyond those of the ports.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dns;
mod plan;
mod router;
mod tracker;

pub use dns::{DnsControl, DnsService};
pub use plan::{
    Hop, Plan, PlanPart, PlannedNeighbor, PlannedPort, PlannedRoute, RouterPlanError, Target,
};
pub use router::{OpenPort, RouterError, Settings, router};
pub use tracker::{FlowTracker, ShownRule, TrackerSettings};
