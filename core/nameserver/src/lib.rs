//! A DNS forwarder with a cache, for the hosts of a router's networks, without I/O.
//!
//! ```text
//!   on_query(now, client, message) ──► local names ──► cache ──► upstream server
//!   on_answer, on_failure, on_timeout ───────────────────────────►   │
//!   poll_action() ◄── replies to clients, messages to upstream servers
//! ```
//!
//! - [`DnsForwarder`]: the forwarder, with [`ForwarderConfig`];
//! - [`LocalNames`]: static names, and names of DHCP leases;
//! - [`DnsAction`]: a message to send, or a socket to close.
//!
//! Reading order: `query` (queries of clients), `answer` (answers of upstream servers), `reply`,
//! `cache`, `dns64`, `zones` and `local`, `servers`, `pending`, `forwarder`.
//!
//! The cache stores whole messages by question. Names are compared and skipped, and only the times
//! to live in them are changed. Unknown record types are therefore forwarded as they are (RFC 5625
//! §4.3). The codec is not a dependency, because few record types are parsed. With a prefix for
//! DNS64, names without AAAA records get synthesized ones.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod cache;
mod config;
mod counters;
mod dns64;
mod forwarder;
mod ids;
mod local;
mod pending;
mod query;
mod records;
mod reply;
mod servers;
#[cfg(test)]
mod tests;
mod zones;

pub use config::{DnsAction, DnsClient, DnsExchange, ForwarderConfig, ReplyPath};
pub use counters::ForwarderCounters;
pub use forwarder::DnsForwarder;
pub use local::{LeasedName, LocalNames};
pub use pending::client_group;
pub use query::EDNS_SIZE;
pub use towpath_dns::Protocol;
