//! Packets: where their bytes lie while they travel through the stack, and what is known about them.
//!
//! A [`Packet`] has a linear part (headers, and for received packets everything) in a buffer from a
//! [`Pool`], and optionally a tail of [`Fragments`] that point into a socket's FIFO: payload on its
//! way out that nobody copied. Fragments live within one turn of the engine; whoever keeps a packet
//! longer calls [`Packet::linearize`] first, because the FIFO may be released meanwhile.
//!
//! What a device need not or could not do travels with the packet: checksum state, segment size,
//! VLAN, time of arrival, hash ([`Meta`]).

#![forbid(unsafe_code)]

mod packet;
mod port;

pub use packet::{Batch, Checksum, Meta, Packet, Pool, Protocol, Segmentation};
pub use port::{LinkType, Offloads, Port};
pub use towpath_shm::{Fragments, Stretch};
