//! A port whose packets come out of a capture: pcap or pcapng, at the times that it has.
//!
//! [`Replay`] is an IP link: the Ethernet headers of a capture name stations that are not there.
//! The packets come as far apart as they were recorded, from the first call of
//! [`poll`](towpath_pool::Port::poll) on. Packets that the stack sends are dropped and counted.
//!
//! Checksums are verified as of any received packet. Packets that were captured on the machine that
//! sent them often lack theirs, since its network card puts them in. The stack drops such packets.
//!
//! ```
//! use towpath_pool::{Batch, Pool, Port};
//! use towpath_replay::Replay;
//!
//! // A pcap file of raw IP packets (link type 101): a header, and one packet of one byte.
//! let mut file = Vec::new();
//! for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 101, /* packet: */ 7, 0, 1, 1] {
//!     file.extend_from_slice(&word.to_le_bytes());
//! }
//! file.push(0x45);
//! let mut replay = Replay::new(std::io::Cursor::new(file))?;
//! let (mut pool, mut batch) = (Pool::default(), Batch::new());
//! assert_eq!(replay.poll(0, &mut pool, &mut batch, 64), 1);
//! assert_eq!(batch[0].linear(), [0x45]);
//! # Ok::<(), towpath_replay::ReplayError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod records;
mod replay;

pub use records::ReplayError;
pub use replay::{Counters, Replay, ReplayStats, Start};

#[cfg(test)]
mod tests;
