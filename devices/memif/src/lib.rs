//! Memif: a link of Ethernet frames through shared memory, between two processes of a host.
//!
//! ```text
//!   MemifPort: the stack ── rings and buffers in a memfd ── DPDK, VPP, or another stack
//!             └────────── Unix socket, eventfds ───────────┘
//! ```
//!
//! Read the guide of DPDK's net_memif first. The server listens at a socket, and the client
//! connects to it and shares its memory: rings of descriptors, and buffers. Frames then pass
//! without the kernel.
//!
//! - [`MemifPort::open`] takes [`MemifOptions`], which parse from the user's text. At most one peer
//!   is connected at a time. Peers may disconnect and connect again.
//! - [`MemifDevice`] moves frames between packets and the rings without system calls, so that tests
//!   and fuzzers can drive it with memory of their own.
//!
//! The peer is hostile. Indices and descriptors are copied once and then validated, and frames are
//! copied. A client ignores the positions of buffers that its server has written. Invalid data ends
//! the connection. Shared memory must be a memfd with a sealed size, since access beyond the end of
//! a file that shrinks would raise SIGBUS.
//!
//! Budget: one copy per byte in each direction, no allocation per frame, and at most one system
//! call (a notification) per batch. The protocol has no offload metadata.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod device;
mod error;
mod layout;
mod linked;
mod memory;
mod message;
mod options;
mod pace;
mod peer;
mod port;
mod receive;
mod ring;
mod send;
mod server;
mod socket;

pub use device::{ClientMemory, MemifCounters, MemifDevice, RingPair, RingSpace};
pub use error::LinkError;
pub use memory::{SharedMemory, SharedMemoryError};
pub use options::{MemifOptionError, MemifOptions};
pub use port::{MemifEvent, MemifPort};
pub use ring::{MemifRole, RingFault, RingSpec};
pub use towpath_stream::{LinkRole, OpenError};

#[cfg(test)]
mod tests;
