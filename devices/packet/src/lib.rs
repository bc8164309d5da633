//! Ethernet interfaces of this machine through packet sockets (packet(7)). The interface, for
//! example a network card or a veth, is used by the kernel and by this stack.
//!
//! ```text
//!   network ── interface ──┬── kernel: frames to the interface's own address
//!                          └── PacketSocket: frames to the stack's address, and to groups
//! ```
//!
//! - [`PacketSocket::open`] opens an interface for a network stack. The stack has its own Ethernet
//!   address on the interface, or some TCP and UDP ports of the kernel's addresses. [`OpenError`]
//!   tells the user what to do.
//! - [`PacketSocket::open_group`] opens an interface for several shards (threads of the stack). The
//!   kernel delivers the frames of a flow to the socket of one shard (PACKET_FANOUT).
//! - [`PacketSocket`] is a [`Port`](towpath_pool::Port). Frames have up to 64 KiB of TCP or UDP
//!   data in both directions. Virtio-net headers leave checksums and segmentation to the kernel.
//!
//! If the stack uses ports of the kernel's addresses, the kernel would answer these frames as well.
//! Therefore a tcx BPF program drops them before the kernel processes them. The packet socket has
//! received copies.
//!
//! The kernel drops frames to a stack's own Ethernet address, because they are addressed to another
//! host (PACKET_OTHERHOST). The kernel neither answers nor forwards them. The kernel's addresses
//! and traffic on the interface are not affected. Promiscuous mode, and the reception of all
//! multicast frames, end with the socket, even if the process is killed. An interface does not
//! receive frames that its own kernel sends. Therefore this host cannot reach the stack by the
//! interface, as with a macvlan.
//!
//! Budget:
//! - up to [`BATCH`] frames per system call, in each direction;
//! - a copy by the kernel, and another one for frames of up to [`COPY_MAX`] bytes.
#![warn(missing_docs)]

mod filter;
mod open;
mod rx;
mod sys;
mod tx;

pub use open::{Counters, OpenError, PacketSocket, Parts};
pub use rx::COPY_MAX;
pub use sys::BATCH;
