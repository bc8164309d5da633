//! A port that translates packets between IPv6 hosts and IPv4 servers (RFC 6146, RFC 7915).
//!
//! ```text
//!  IPv6 host ─► lan ─► router ─► nat64: submit ─┐ IPv6 to IPv4, source from the pool
//!                       router ◄─ nat64: poll ◄─┘
//!                       └─► masquerade ─► wan ─► IPv4 server
//! ```
//!
//! A router sends IPv6 packets to addresses of the translation prefix by this port, and receives
//! them from it as IPv4 packets. Their sources are addresses of a pool, one for each IPv6 host. The
//! connection tracker of the router translates these sources and ports like those of other hosts.
//! Answers take the same way back.
//!
//! Rules of an access list therefore see the packet of each version. Both versions count as a hop.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod port;
#[cfg(test)]
mod tests;

pub use port::{Nat64Config, Nat64Port, POOL, QUEUE_MAX};
