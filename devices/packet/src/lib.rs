//! Ethernet interfaces of this machine by packet sockets (packet(7)): a stack beside the kernel, on
//! a network card or a veth.
//!
//! ```text
//!   network ── interface ──┬── kernel: frames to the interface's own address
//!                          └── PacketSocket: frames to the stack's address, and to groups
//! ```
//!
//! - [`PacketSocket::open`] opens an interface for a stack with an Ethernet address of its own; see
//!   [`OpenError`] for what to do when that is refused.
//! - [`PacketSocket`] is a [`Port`](towpath_pool::Port). Frames have up to 64 KiB of TCP or
//!   UDP, both ways: virtio-net headers leave checksum and segmentation to the kernel.
//!
//! The kernel drops frames to the stack's Ethernet address, because they are another host's
//! (PACKET_OTHERHOST): it neither answers nor forwards them. The interface keeps its addresses and
//! its traffic. Promiscuous mode, and the reception of all groups, end with the socket, also when
//! the process is killed. An interface does not receive frames that its own kernel sends:
//! this host does not reach the stack by it, as with a macvlan.
//!
//! Budget:
//! - up to [`BATCH`] frames per system call, each way;
//! - a copy of ours for frames of up to [`COPY_MAX`] bytes, and the kernel's alone for larger ones.
#![warn(missing_docs)]

mod filter;
mod interface;
mod open;
mod rx;
mod sys;
mod tx;

pub use interface::Interface;
pub use open::{Counters, OpenError, PacketSocket};
pub use rx::COPY_MAX;
pub use sys::BATCH;
