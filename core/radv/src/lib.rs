//! Router advertisements (RFC 4861 §6.2) with nameservers and search domains (RFC 8106), for the
//! hosts of an Ethernet link, without I/O.
//!
//! ```text
//!   on_frame(now, solicitation) ─┐
//!   on_timeout(now) ─────────────┼──► RouterAdvertiser ──► poll_frame() ──► advertisements
//!   set_addresses(now, ...) ─────┘
//! ```
//!
//! - [`RouterAdvertiser`]: decides when to send;
//! - [`AdvertConfig`], [`LinkAddresses`]: the content of advertisements.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod advertiser;
mod frame;
#[cfg(test)]
mod tests;

pub use advertiser::{AdvertConfig, AdvertCounters, LinkAddresses, RouterAdvertiser};
pub use frame::{PREFIXES_MAX, SERVERS_MAX, concerns};
