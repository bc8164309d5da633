//! Ethernet interfaces of this machine by XDP sockets (AF_XDP): a stack beside the kernel whose
//! frames the kernel's own stack never sees.
//!
//! ```text
//!   network ── interface ── XDP program ──┬── XdpSocket: frames of the stack
//!                                         └── kernel: all others
//! ```
//!
//! - [`XdpSocket::open`] loads and attaches the program, and binds the socket; see
//!   [`OpenError`] for what to do when that is refused.
//! - [`XdpSocket`] is a [`Port`](towpath_pool::Port). Frames have one segment each: an XDP socket
//!   has no offloads.
//! - [`Queue`] is the socket without its descriptors: four rings, and the frames that they name.
//!
//! The program goes with the socket, also when the process is killed.
//!
//! Budget: a copy of each frame each way, and no system call for received ones.
#![warn(missing_docs)]

mod beside;
mod chunks;
mod left_out;
mod open;
mod queue;
mod ring;
mod sys;

pub use chunks::{BadDescriptor, CHUNK, Chunks};
pub use open::{Counters, Mode, OpenError, Parts, XdpProperties, XdpSocket};
pub use queue::Queue;
pub use ring::{Ring, RingLayout};
