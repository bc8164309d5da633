//! Links that carry Ethernet frames over a Unix stream socket: to a virtual machine, without root
//! privileges, or between two stacks on one machine.
//!
//! ```text
//!   guest ── QEMU -netdev stream ── Unix socket ── StreamPort: the stack
//! ```
//!
//! Each frame is preceded by its length in 4 bytes, in network byte order. QEMU (`-netdev stream`)
//! and passt use this format.
//!
//! - [`StreamPort::open`] connects to the peer that listens at a path. If there is none, it listens
//!   at this path. [`OpenError`] tells the user what to do.
//! - [`PeerFinder`] does so for links of other kinds, such as memif.
//! - [`StreamPort`] is a [`Port`](towpath_pool::Port). At most one peer is connected at a time; it
//!   may disconnect and connect again. Peers are processes of the same user, or of root.
//!
//! Budget: one system call for all frames of a batch in each direction, up to [`BUFFER`] bytes.
//! Each byte is copied twice: by this crate, and by the kernel. The format has no offload metadata.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod finder;
mod frames;
mod link;
mod open;
mod port;

pub use finder::PeerFinder;
pub use frames::{BUFFER, FRAME_MAX};
pub use open::{LinkRole, OpenError, PeerListener};
pub use port::{Counters, StreamPort};

#[cfg(test)]
mod tests;
