//! Ports of DPDK: network cards and virtual devices that poll-mode drivers move frames of.
//!
//! ```text
//!   card ── poll-mode driver ── mbufs ══ frames of packets ── Queue: Port ── shard
//! ```
//!
//! - [`open`] starts EAL with the user's arguments, and takes its only port into service, with a
//!   queue for each shard. [`OpenError`] says what to do when that is refused.
//! - [`Queue`] is a [`Port`](towpath_pool::Port). A received mbuf is the frame of its packet: no
//!   byte is copied. A frame that comes back by `submit` is sent as it is, and other packets are
//!   copied into mbufs once.
//! - `shim/` is C of this crate, which wraps the inline functions of DPDK.
//!
//! EAL starts once in a process and is never ended, because frames stay mapped: see
//! [`towpath_pool::Packet::in_frame`]. The port is closed with the last of its queues.
//!
//! Budget:
//! - a call of the driver per [`BURST`] frames, each way; no system call of ours;
//! - between frames a poll that finds nothing, and sleeps of up to [`SLEEP_MAX_NS`].
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
