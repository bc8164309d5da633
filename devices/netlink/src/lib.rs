//! Reads links, addresses, routes, next-hop objects and neighbours of the kernel, and follows their
//! changes, by rtnetlink(7).
//!
//! ```text
//!   KernelSocket::dump(request)  ──► all objects of a kind        KernelSocket::read ──► changes
//!                     │                                                  │
//!                     └────────► KernelMessage { action, object } ◄────────────┘
//! ```
//!
//! - [`KernelSocket`] sends requests and receives messages; [`DumpError`] tells whether to repeat a
//!   dump.
//! - [`KernelMessage`] is a parsed message. Truncated or unknown messages are ignored.
//! - [`NetNamespace`] runs a function in a network namespace, whose sockets stay in it.
//!
//! Cost: the kernel packs about 300 routes into each read of 32 KiB.
#![warn(missing_docs)]

mod attributes;
mod message;
mod namespace;
mod request;
mod route;
mod socket;
mod sys;

pub use message::{
    AddressMessage, KernelMessage, KernelObject, LinkMessage, MessageAction, NeighborMessage,
    NextHopMessage,
};
pub use namespace::NetNamespace;
pub use request::DumpRequest;
pub use route::{HopMessage, RouteMessage, TABLE_MAIN};
pub use socket::{DumpError, KernelSocket};

#[cfg(test)]
mod tests;
