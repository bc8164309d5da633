//! A link in one direction: a queue, a rate, and the impairments of a real wire.
//!
//! ```text
//!  on_packet ─► mtu ─► limit ─► queue (a Qdisc) ─► rate
//!  rate ─► duplicate ─► loss ─► corrupt ─► delay, reorder ─► poll_packet
//! ```
//!
//! No I/O, no clock: `now_ns` is an argument that never decreases. All random numbers come from one
//! [`Dice`], so the same calls produce the same packets at the same times. Each impairment has its
//! own random stream. If the loss model changes, the delays of the packets therefore stay the same.
//!
//! Names and semantics follow tc-netem(8), with one difference: a lost packet takes transmission
//! time, as on a wire. A queue in front of the rate makes the link a bottleneck; the default queue
//! is a pfifo. A [`RingDevice`] is an alternative bottleneck: a network card in front of a link
//! without a rate, below a [`TransmitPath`](towpath_qdisc::TransmitPath).
//!
//! A [`Cable`] has a link in each direction between two [`Port`](towpath_pool::Port)s, for stacks
//! driven by one thread in virtual time.
//!
//! # Usage
//! * Call [`Link::on_packet`] at one end, and [`Link::poll_packet`] at the other end until it
//!   returns `None`, and again at [`Link::next_timeout_ns`].
//! * Both calls append dropped packets to a list, so that the caller can count them or reuse their
//!   memory.
//!
//! # Example
//! ```
//! use towpath_link::{Carried, Dice, Link, LinkConfig, Queueable};
//!
//! #[derive(Debug, Clone, PartialEq)]
//! struct Frame(Vec<u8>);
//!
//! impl Queueable for Frame {
//!     fn bytes(&self) -> usize {
//!         self.0.len()
//!     }
//! }
//!
//! impl Carried for Frame {
//!     fn duplicate(&self) -> Self {
//!         self.clone()
//!     }
//!     fn flip_bit(&mut self, bit: u64) {
//!         self.0[bit as usize / 8] ^= 1 << (bit % 8);
//!     }
//! }
//!
//! // 8 Mbit/s: a byte takes one microsecond.
//! let config = LinkConfig { rate: Some(8_000_000), delay_ns: 5_000_000, ..LinkConfig::default() };
//! let (mut link, mut drops) = (Link::new(config, Dice::new(1, 0)), Vec::new());
//! link.on_packet(0, Frame(vec![0; 1000]), &mut drops);
//! link.on_packet(0, Frame(vec![1; 1000]), &mut drops);
//! assert_eq!(link.next_timeout_ns(), Some(1_000_000), "the first one has been sent whole");
//! assert_eq!(link.poll_packet(5_999_999, &mut drops), None);
//! assert!(link.poll_packet(6_000_000, &mut drops).is_some());
//! assert!(link.poll_packet(7_000_000, &mut drops).is_some());
//! assert_eq!(link.next_timeout_ns(), None);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cable;
mod chance;
mod config;
mod flight;
mod link;
mod netem;
mod ring_device;
mod stats;
#[cfg(test)]
mod tests;

pub use cable::{Cable, CableConfig, CableEnd, Observer};
pub use chance::Probability;
pub use config::{Chance, LinkConfig, Loss};
pub use link::{Carried, Link};
pub use netem::{Netem, NetemError};
pub use ring_device::{RingConfig, RingDevice};
pub use stats::LinkStats;
pub use towpath_qdisc::{Dice, DropCause, Dropped, Ecn, Qdisc, Queueable, QueuedPacket};
