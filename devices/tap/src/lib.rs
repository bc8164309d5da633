//! TAP and TUN devices: exchange Ethernet frames or IP packets with the kernel of this machine.
//! Virtio-net headers let one read or write transfer up to 64 KiB of TCP or UDP data (checksum and
//! segmentation offload in both directions).
//!
//! - [`Tap::open`] creates a device, which is removed when the process ends, or opens one that an
//!   administrator created for this user. [`OpenError`] tells the user what to do.
//! - [`Tap`] is a [`Port`](towpath_pool::Port). `rx` reads one packet per system call. `tx` writes
//!   the packet's buffer and its payload, which may still be in a send FIFO, by one `writev`
//!   without copying.
//! - [`Tap::open_queues`] opens a device with several queues, each a port for one thread.
//!   [`Tap::steer`] makes the kernel put all frames of a flow into the same queue.
//! - [`set_up_host`] assigns addresses to the kernel's interface of the device.
//! - [`add_default_route`] adds a default route through the device.
//! - [`add_routes`] adds routes to networks through the device; [`leads_through`] returns whether
//!   this host sends packets to an address through the device.
//!
//! Budget: one system call per packet or merged packet. Large packets are copied once, by the
//! kernel. Frames of at most [`COPY_MAX`] bytes are copied twice, so that a small frame does not
//! occupy a large buffer.
#![warn(missing_docs)]

mod hand_over;
mod host;
mod kind;
mod open;
mod pace;
mod queues;
mod routes;
mod rx;
mod sys;
mod tx;

pub use hand_over::Parts;
pub use host::{HostError, QUEUE_LEN, set_up_host};
pub use kind::Kind;
pub use open::{Counters, OpenError, Options, Tap, TapCarrier, check_name};
pub use routes::{Marks, Network, add_default_route, add_routes, leads_through};
pub use rx::COPY_MAX;
pub use towpath_bpf::Steering;
