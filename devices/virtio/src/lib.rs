//! The virtio-net header, used by Linux's TUN/TAP devices, packet sockets and virtual machines. The
//! header describes the work that is still to be done for a packet: its checksum and segmentation.
//!
//! - [`parse`] parses the header of a received frame, and checks it against the frame;
//! - [`emit`] creates the header of a frame to be sent.
//!
//! Budget: a few loads and stores per packet, and no allocation.
//!
//! ```
//! use towpath_pool::{Checksum, Meta};
//! use towpath_virtio::{HEADER_LEN, emit, parse};
//!
//! let frame = [0; 60];
//! let checksum = Checksum::Partial { start: 34, offset: 16 };
//! let header = emit(&Meta { checksum, ..Meta::default() }, &frame)?;
//! assert_eq!(header.len(), HEADER_LEN);
//! assert_eq!(parse(&header, &frame)?.checksum, checksum);
//! # Ok::<(), towpath_virtio::Malformed>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod header;

pub use header::{HEADER_LEN, HEADER_LEN_LEGACY, Malformed, emit, parse};
