//! Ethernet interfaces of this machine by packet sockets (packet(7)): a stack beside the
//! kernel, on a network card or a veth.
//!
//! ```text
//!   network ── interface ──┬── kernel: frames to the interface's own address
//!                          └── PacketSocket: frames to the stack's address, and to groups
//! ```
//!
//! - [`PacketSocket::open`] opens an interface for a stack, which has an Ethernet address of
//!   its own or some ports of the kernel's addresses. [`OpenError`] says what to do when that
//!   is refused.
//! - [`PacketSocket::open_group`] opens one for several shards: the kernel gives the frames of
//!   a flow to the socket of its shard (PACKET_FANOUT).
//! - [`PacketSocket`] is a [`Port`](towpath_pool::Port). Frames have up to 64 KiB of TCP or
//!   UDP, both ways: virtio-net headers leave checksum and segmentation to the kernel.
//!
//! With ports of the kernel's own addresses, the kernel would answer as well. A program at the
//! entrance of the kernel's stack (tcx) drops the frames of which the stack has copies.
//!
//! The kernel drops frames to a stack's own Ethernet address, because they are another host's
//! (PACKET_OTHERHOST). The kernel neither answers nor forwards them. The interface keeps its
//! addresses and its traffic. Promiscuous mode, and the reception of all groups, end with the
//! socket, also when the process is killed. An interface does not receive frames that its own
//! kernel sends: this host does not reach the stack by it, as with a macvlan.
//!
//! Budget:
//! - up to [`BATCH`] frames per system call, each way;
//! - a copy of ours for frames of up to [`COPY_MAX`] bytes, and the kernel's alone for larger
//!   ones.
#![warn(missing_docs)]

mod filter;
mod open;
mod rx;
mod sys;
mod tx;

pub use open::{Counters, OpenError, PacketSocket, Parts};
pub use rx::COPY_MAX;
pub use sys::BATCH;
