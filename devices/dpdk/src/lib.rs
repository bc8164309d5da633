//! DPDK ports: network cards and virtual devices with poll-mode drivers.
//!
//! ```text
//!   card ── poll-mode driver ── mbufs ══ frames of packets ── Queue: Port ── shard
//! ```
//!
//! - [`open`] initializes EAL with the user's arguments and starts the only DPDK port, with one
//!   queue per shard (thread of the stack). [`OpenError`] tells the user what to do.
//! - [`Queue`] is a [`Port`](towpath_pool::Port). A received mbuf becomes a packet without copying.
//!   A packet in an mbuf is sent without copying. Packets in other buffers are copied to mbufs.
//! - `shim/` contains C wrappers of DPDK's inline functions.
//!
//! EAL is initialized once per process and never cleaned up, because the memory of frames must stay
//! mapped: see [`towpath_pool::Packet::in_frame`]. The port is closed when its last queue is
//! dropped.
//!
//! Budget:
//! - a driver call per [`BURST`] frames and direction, and no system call by this crate;
//! - while idle, polls without result, and sleeps of up to [`SLEEP_MAX_NS`].
//!
//! Without the feature `dpdk` the crate is empty.
#![cfg_attr(
    not(feature = "dpdk"),
    allow(rustdoc::broken_intra_doc_links, reason = "what is linked comes with the feature")
)]
#![cfg(feature = "dpdk")]
#![warn(missing_docs)]

mod eal;
mod error;
mod open;
mod pace;
mod rx;
mod sys;
mod tx;

pub use error::OpenError;
pub use open::{Counters, Opened, Options, PortInfo, Queue, open};
pub use pace::SLEEP_MAX_NS;
pub use sys::BURST;
