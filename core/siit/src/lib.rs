//! Translation of packets between IPv4 and IPv6 (RFC 7915), without I/O.
//!
//! - [`TranslationPrefix`]: IPv6 prefix whose addresses contain IPv4 addresses (RFC 6052);
//! - [`v6_to_v4`] and [`v4_to_v6`]: translate a packet with given addresses;
//! - [`split_v6`]: divides a translated packet into fragments;
//! - [`AddressPool`]: IPv4 addresses that IPv6 hosts get while they send packets.
//!
//! ```
//! use towpath_siit::TranslationPrefix;
//!
//! let prefix: TranslationPrefix = "64:ff9b::/96".parse().unwrap();
//! let embedded = prefix.embed("192.0.2.33".parse()?);
//! assert_eq!(embedded.to_string(), "64:ff9b::c000:221");
//! assert_eq!(prefix.extract(embedded), Some("192.0.2.33".parse()?));
//! # Ok::<(), core::net::AddrParseError>(())
//! ```
//!
//! # Behaviour
//!
//! - Hop limit and TTL are kept, because the router in front of the translator decrements them.
//! - IPv4 options, and IPv6 extension headers other than the fragment header, are removed.
//! - ICMP errors are translated with the packet that they quote. Extensions (RFC 4884) are removed.
//! - Fragments are translated one by one. Fragmented ICMP messages cannot be, because the checksum
//!   of ICMPv6 includes the length of the whole message, and that of ICMPv4 does not.
//!
//! Reading order: `prefix`, `kinds` (ICMP types), `quote`, `to_v4`, `to_v6`, `split`, `pool`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod kinds;
mod pool;
mod prefix;
mod quote;
mod split;
mod sums;
mod to_v4;
mod to_v6;

pub use error::Untranslatable;
pub use pool::{AddressPool, MAPPING_TIMEOUT_NS, PoolRefusal};
pub use prefix::TranslationPrefix;
pub use quote::AddressMap;
pub use split::{FRAGMENT_MTU, split_v6};
pub use to_v4::v6_to_v4;
pub use to_v6::v4_to_v6;
