//! Headers on the wire: typed parsing and emitting of every protocol the stack speaks.
//!
//! Every header is a small `Copy` struct with the same two doors:
//!
//! - `parse(&[u8])` checks the bytes once and returns the header with the place of its payload. It
//!   never panics, whatever the bytes are, and a length it returns has been checked against the buffer,
//!   so that layers above may slice by it.
//! - `emit(&self, &mut [u8])` writes the header and returns its length. A buffer too short for the
//!   header is a mistake of the caller and panics.
//!
//! Checksums are apart from parsing, because a device that has verified one spares the work:
//! [`checksum`] sums, the protocol modules know what is covered.
//!
//! Reading order: [`ethernet`] and [`arp`]; [`ipv4`], [`ipv6`] and its extension headers in
//! [`ipv6_ext`]; [`tcp`] and [`udp`]; [`icmpv4`], [`icmpv6`] with [`ndp`] and [`mld`], [`igmp`]. What an
//! address means is in [`addr`] and [`prefix`].
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod protocol;

pub mod ethernet;

pub mod arp;

pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;

pub mod tcp;
pub mod udp;

pub mod icmpv4;
pub mod icmpv6;
pub mod igmp;
pub mod mld;
pub mod ndp;

pub mod addr;
pub mod checksum;
pub mod prefix;

pub use addr::MacAddr;
pub use error::ParseError;
pub use prefix::Prefix;
pub use protocol::IpProtocol;
