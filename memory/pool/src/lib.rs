//! Packets: where their bytes lie while they travel through the stack, and what is known about
//! them.
//!
//! A [`Packet`] has a linear part (headers, and for received packets everything) in a buffer from a
//! [`Pool`]. A tail of [`Fragments`] may follow, which point into a socket's FIFO: payload on its
//! way out that was not copied. The FIFO keeps the bytes for as long as the packet is there. After
//! [`Pool::give`] it may use their place again, in whatever order packets come back. Code that
//! keeps a packet for seconds calls [`Packet::linearize`] first. Otherwise it would keep the
//! program from writing, and a whole window of memory from others.
//!
//! [`Meta`] travels with the packet: checksum state, segment size, VLAN, time of arrival, hash. A
//! device may leave these steps to the stack, or the stack to the device.
//!
//! # Example
//! A packet is written from the inside out: the payload first, then each header in front of what is
//! there.
//! ```
//! use towpath_pool::Pool;
//!
//! let mut pool = Pool::default();
//! let mut packet = pool.take(1500);
//! packet.push_back(7).expect("taken with room").copy_from_slice(b"payload");
//! packet.push_front(8).copy_from_slice(b"headers ");
//! assert_eq!(packet.linear(), b"headers payload");
//!
//! // On its way in the headers are taken off again.
//! assert_eq!(packet.pull_front(8), Some(()));
//! assert_eq!(packet.linear(), b"payload");
//! assert_eq!(packet.pull_front(8), None);
//!
//! // The next packet of that size gets the same buffer.
//! pool.give(packet);
//! pool.take(64);
//! assert_eq!(pool.allocated(), 1);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod counters;
mod packet;
mod port;

pub use packet::{Batch, Checksum, Meta, Owner, Packet, Pool, Protocol, Segmentation};
pub use port::{LinkType, Offloads, Port, PortCounters};
pub use towpath_shm::{Fragments, Stretch};
