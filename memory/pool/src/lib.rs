//! Packet buffers and the metadata of packets.
//!
//! A [`Packet`] has a linear part in a buffer from a [`Pool`]: the headers, and for received
//! packets all bytes. An outgoing packet may also have a tail: [`Fragments`] that refer to payload
//! in a socket's send FIFO, which avoids a copy. The FIFO keeps these bytes until the packet is
//! returned by [`Pool::give`]. Packets may be returned in any order. Call [`Packet::linearize`]
//! before keeping a packet for seconds. Otherwise the FIFO fills up, and its memory cannot be
//! reused.
//!
//! [`Meta`] is the metadata of a packet: checksum state, segment size, VLAN, arrival time, hash.
//! The metadata states whether the stack or the device computes checksums and segments packets.
//!
//! # Example
//! A packet is built from the inside out: the payload first, then each header in front of it.
//! ```
//! use towpath_pool::Pool;
//!
//! let mut pool = Pool::default();
//! let mut packet = pool.take(1500);
//! packet.push_back(7).expect("taken with room").copy_from_slice(b"payload");
//! packet.push_front(8).copy_from_slice(b"headers ");
//! assert_eq!(packet.linear(), b"headers payload");
//!
//! // On receive, headers are removed from the front.
//! assert_eq!(packet.pull_front(8), Some(()));
//! assert_eq!(packet.linear(), b"payload");
//! assert_eq!(packet.pull_front(8), None);
//!
//! // The next packet of this size reuses the buffer.
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
