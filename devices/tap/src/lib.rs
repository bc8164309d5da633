//! TAP and TUN devices: Ethernet frames, or IP packets, to and from the kernel of this machine.
//! Virtio-net headers let one read or write move up to 64 KiB of TCP or UDP (checksum and
//! segmentation offload in both directions).
//!
//! - [`Tap::open`] makes a device, which vanishes with the process, or takes over one that an
//!   administrator made for this user. [`OpenError`] says what to do when that is refused.
//! - [`Tap`] is a [`Port`](towpath_pool::Port). [`rx`](self) reads one packet per call. `tx` hands
//!   the linear part and the tail of a packet to the kernel in one `writev`, without a copy of
//!   ours.
//! - [`Tap::open_queues`] opens a device with several queues, each a port for a thread of its own.
//!   [`Tap::steer`] has the kernel put each flow's frames into the queue of its owner.
//! - [`set_up_host`] gives the kernel's end of the link its addresses.
//! - [`add_default_route`] leads everything else through it.
//! - [`add_routes`] leads networks through it; [`leads_through`] says whether packets of this host
//!   take such a route.
//!
//! Budget: one system call per packet or merged packet. Large packets cost one copy per byte (the
//! kernel's). Frames of at most [`COPY_MAX`] bytes cost two, so that no large buffer is held by a
//! small frame.
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
pub use open::{Counters, OpenError, Options, Tap, check_name};
pub use routes::{Marks, Network, add_default_route, add_routes, leads_through};
pub use rx::COPY_MAX;
pub use towpath_bpf::Steering;
