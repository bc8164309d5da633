//! Back end of a virtio network device for a virtual machine: the vhost-user protocol, without
//! root.
//!
//! ```text
//!   guest ── virtqueues in guest memory ──── VhostPort: the stack
//!              QEMU ── Unix socket, eventfds ──┘
//! ```
//!
//! Read virtio 1.2 §2.7 (split virtqueues) and §5.1 (network device) first, and QEMU's
//! docs/interop/vhost-user. QEMU is the front end: it connects to our socket, sends the guest's
//! memory as descriptors, and the places of the virtqueues. Frames then bypass QEMU.
//!
//! - [`VhostPort::open`] listens at a path. At most one front end is connected at a time. Front
//!   ends may disconnect and connect again, and the guest may restart.
//! - [`NetDevice`] moves frames between packets and the guest's virtqueues without system calls,
//!   so that tests and fuzzers can drive it with memory of their own.
//!
//! The guest and the front end are hostile. Descriptors and indices are copied once and then
//! validated. Frames are copied, and their virtio header is checked against the copy. A malformed
//! virtqueue stops until the driver resets it. Guest memory must be a memfd with a sealed size,
//! since access beyond the end of a file that shrinks would raise SIGBUS.
//!
//! Budget: one copy per byte in each direction, no allocation per frame, and at most one system
//! call (a notification) per batch. Frames of 64 KiB keep their offload metadata.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod chain;
mod device;
mod features;
mod front_end;
mod memory;
mod message;
mod port;
mod receive;
mod ring;
mod send;
mod socket;
mod watched;

pub use device::{NetDevice, QUEUES, RX, TX, VhostCounters};
pub use features::OFFERED;
pub use front_end::FrontEndError;
pub use memory::{GuestMemory, GuestMemoryError, RegionSpec};
pub use port::{VhostEvent, VhostPort};
pub use ring::{RingAddresses, RingError, RingSetup};
pub use send::SendEnd;
pub use towpath_stream::OpenError;

#[cfg(test)]
mod tests;
