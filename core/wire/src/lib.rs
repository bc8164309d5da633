//! Wire formats: typed parsing and emitting of all protocol headers of the stack.
//!
//! Every header is a small `Copy` struct with two functions:
//!
//! - `parse(&[u8])` validates the bytes once, and returns the header with the position of its
//!   payload. `parse` never panics, whatever the bytes are. Returned lengths are checked against
//!   the buffer, so that upper layers may slice by them.
//! - `emit(&self, &mut [u8])` writes the header, and returns its length. Panics if the buffer is
//!   too short, which is a bug of the caller.
//!
//! Checksums are separate from parsing, because a device may have verified them already. The module
//! [`checksum`] computes sums, and the modules of the protocols know which bytes a checksum covers.
//!
//! Reading order: [`ethernet`] and [`arp`]; [`ipv4`], [`ipv6`] and its extension headers in
//! [`ipv6_ext`]; [`tcp`] with [`fast_open`], and [`udp`]; [`icmpv4`], [`icmpv6`] with [`ndp`] and
//! [`mld`], [`igmp`]. [`addr`] and [`prefix`] classify addresses.
//!
//! ```
//! use core::net::Ipv4Addr;
//! use towpath_wire::{IpProtocol, checksum, ipv4, udp};
//!
//! let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
//! let payload = b"hello";
//! let mut datagram = udp::Header { src_port: 5353, dst_port: 53, length: 8 + 5, checksum: 0 };
//! let pseudo = checksum::pseudo_v4(src, dst, IpProtocol::UDP, datagram.length);
//! datagram.checksum = datagram.checksum_for(pseudo, checksum::sum(payload, 0));
//! let packet = ipv4::Header {
//!     tos: 0,
//!     total_len: 20 + datagram.length,
//!     ident: 0,
//!     dont_fragment: true,
//!     more_fragments: false,
//!     fragment_offset: 0,
//!     ttl: 64,
//!     protocol: IpProtocol::UDP,
//!     src,
//!     dst,
//!     options: ipv4::Options::EMPTY,
//! };
//! let mut bytes = [0; 20 + 8 + 5];
//! let at = packet.emit(&mut bytes);
//! let at = at + datagram.emit(&mut bytes[at..]);
//! bytes[at..].copy_from_slice(payload);
//!
//! let (read, ip_payload) = ipv4::Header::parse(&bytes)?;
//! assert_eq!(read, packet);
//! assert!(udp::checksum_ok_v4(&bytes[ip_payload.clone()], pseudo));
//! let (read, udp_payload) = udp::Header::parse(&bytes[ip_payload.clone()])?;
//! assert_eq!((read, &bytes[ip_payload][udp_payload]), (datagram, &payload[..]));
//! # Ok::<(), towpath_wire::ParseError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
mod ecn;
mod error;
mod protocol;

pub mod ethernet;

pub mod arp;

pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;

pub mod fast_open;
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
pub use ecn::Ecn;
pub use error::ParseError;
pub use prefix::Prefix;
pub use protocol::IpProtocol;
