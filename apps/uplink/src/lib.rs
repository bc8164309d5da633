//! What the stack of a run is connected to, and how that gets into another process.
//!
//! - [`Shape`]: the stack's side of its link, in words; [`Link`]: the link;
//! - [`Outfit`]: both, and what else an engine in PROGRAM's process has to know, which goes there with descriptors that
//!   are open already, and is made an [`Uplink`];
//! - [`Home`]: the socket between that process and `towpath run`, by which the outfit comes, and what either has to say
//!   to the other;
//! - [`NetemSpec`]: links with delay and loss in front of a port;
//! - [`Counting`]: ports that leave their counters behind.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counting;
mod home;
mod netem;
mod shape;
mod uplink;

pub use counting::{Counted, Counting, Layer, PortCounters, layers};
pub use home::{Asked, Home, Outfit, Said};
pub use netem::NetemSpec;
pub use shape::{Link, Resolver, Route, Shape};
pub use uplink::Uplink;
