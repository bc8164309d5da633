//! A router of its own: ports, addresses, routes and rules on one thread, without programs.
//!
//! ```text
//!   port lan ─┐                                  ┌─ port wan
//!             ├─ poll ─► Stack (forwarding) ─► submit
//!   port dmz ─┘   own addresses: ARP, ND, ping   └─
//! ```
//!
//! - [`Plan`]: the router in words, checked: ports, routes and rules that fit each other;
//! - [`Router`]: the stack with its ports, turned by its owner;
//! - [`RouterRunner`]: a thread's loop, which sleeps on the ports' descriptors;
//! - [`RouterRemote`]: a handle for other threads, whose jobs are done between two turns.
//!
//! Budget: no copy and no allocation per packet beyond the ports' own.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod plan;
mod remote;
mod router;
mod runner;

pub use plan::{Hop, Plan, PlanPart, PlannedPort, PlannedRoute, RouterPlanError, Target};
pub use remote::{RouterGone, RouterRemote};
pub use router::{OpenPort, Router, Settings};
pub use runner::{Ended, RouterRunner, RunnerWoken};
