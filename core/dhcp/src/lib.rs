//! DHCPv4 (RFC 2131, RFC 2132) for the hosts of an Ethernet link, without I/O.
//!
//! ```text
//!   on_frame(now, frame) ──► Client / Server ──► poll_frame() ──► frames to send
//!   on_timeout(now) ───────►                 ──► poll_event() ──► leases, for their owner
//! ```
//!
//! A client has no address before it has a lease. Client and server therefore exchange whole
//! Ethernet frames instead of using UDP sockets. The caller passes the time and a random number
//! generator, so equal calls have equal results.
//!
//! - [`DhcpClient`]: obtains and keeps a [`Lease`];
//! - [`DhcpServer`]: grants the addresses of a pool;
//! - [`DhcpMessage`]: a message, parsed and emitted;
//! - [`frame`]: Ethernet frames of messages and of ARP.
//!
//! The codec is not a dependency, because the crates with one bring a resolver or a URL parser.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod frame;

mod client;
mod lease;
mod message;
mod server;

pub use client::{ClientConfig, ClientCounters, ClientEvent, DhcpClient, LeaseLoss};
pub use frame::{CLIENT_PORT, SERVER_PORT};
pub use lease::{KeptLease, Lease, LeaseError, LeaseRoute};
pub use message::{BootOp, ClasslessRoute, DhcpMessage, DhcpOptions, MessageError, MessageKind};
pub use server::{DhcpServer, LeaseRecord, POOL_MAX, Reservation, ServerConfig, ServerCounters};
