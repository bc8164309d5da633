//! Ethernet interfaces of this machine through XDP sockets (AF_XDP). The kernel's network stack
//! does not receive frames that are for this stack.
//!
//! ```text
//!   network ── interface ── XDP program ──┬── XdpSocket: frames of the stack
//!                                         └── kernel: all other frames
//! ```
//!
//! - [`XdpSocket::open`] loads and attaches the BPF program, and binds the socket. [`OpenError`]
//!   tells the user what to do.
//! - [`XdpSocket`] is a [`Port`](towpath_pool::Port). XDP sockets have no offloads, so each frame
//!   has one segment.
//! - [`Queue`] is the socket without its descriptors: four rings and the memory for frames.
//!
//! The BPF program is detached when the socket is closed, even if the process is killed.
//!
//! Budget: one copy per frame and direction, and no system call for received frames.
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
