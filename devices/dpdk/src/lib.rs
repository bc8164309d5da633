//! DPDK ports: network cards and virtual devices with poll-mode drivers.
//!
//! ```text
//!   card ── poll-mode driver ── mbufs ══ frames of packets ── Queue: Port ── shard
//! ```
//!
//! - [`open`] initializes EAL with the user's arguments and starts its only port, with one queue
//!   per shard (thread of the stack). [`OpenError`] tells the user what to do.
//! - [`Queue`] is a [`Port`](towpath_pool::Port). A received mbuf becomes a packet without copying.
//!   If that packet is sent again, the mbuf is sent as it is; other packets are copied to mbufs.
//! - `shim/` contains C wrappers of DPDK's inline functions.
//!
//! EAL is initialized once per process and never cleaned up, because frames stay mapped: see
//! [`towpath_pool::Packet::in_frame`]. The port is closed with its last queue.
//!
//! Budget:
//! - a driver call per [`BURST`] frames and direction, and no system call of ours;
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
