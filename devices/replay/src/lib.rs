//! Port that replays the packets of a pcap or pcapng capture at their recorded times.
//!
//! [`Replay`] is an IP link. The Ethernet headers of the capture are removed, because their
//! stations are not on this link. The packets arrive at their recorded intervals, starting with the
//! first call of [`poll`](towpath_pool::Port::poll). Packets sent by the stack are dropped and
//! counted.
//!
//! Checksums are verified as usual. Packets that were captured on the machine that sent them often
//! have incomplete checksums, because the network card completes them after the capture. The stack
//! drops these packets.
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
