//! Ethernet interfaces of this machine through packet sockets (packet(7)). The kernel and the stack
//! both use the interface, for example a network card or a veth.
//!
//! ```text
//!   network ── interface ──┬── kernel: frames to the interface's own address
//!                          └── PacketSocket: frames to the stack's address, and to groups
//! ```
//!
//! - [`PacketSocket::open`] opens an interface for a stack that has its own Ethernet address, or
//!   some ports of the kernel's addresses. [`OpenError`] describes remedies.
//! - [`PacketSocket::open_group`] opens an interface for several shards. The kernel delivers the
//!   frames of a flow to the socket of its shard (PACKET_FANOUT).
//! - [`PacketSocket`] is a [`Port`](towpath_pool::Port). Frames have up to 64 KiB of TCP or
//!   UDP, both ways: virtio-net headers leave checksum and segmentation to the kernel.
//!
//! With ports of the kernel's own addresses, the kernel would answer as well. Therefore a tcx
//! program, at the entrance of the kernel's stack, drops the frames of which the stack has copies.
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
