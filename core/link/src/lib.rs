//! A link in one direction: a queue, a rate, and the impairments of a real wire.
//!
//! ```text
//!  on_packet ─► mtu ─► limit ─► queue (a Qdisc) ─► rate
//!  rate ─► duplicate ─► loss ─► corrupt ─► delay, reorder ─► poll_packet
//! ```
//!
//! No I/O, no clock: `now_ns` is an argument that never goes back. Numbers are drawn from one
//! [`Dice`], so that the same calls give the same packets at the same times. Each impairment has a
//! stream of its own: another loss does not change which packets are delayed by how much.
//!
//! Names and meaning are those of tc-netem(8). The one difference: a lost packet has used its share
//! of the rate, as on a wire. A queue in front of the rate makes the link a bottleneck; without one
//! it is a pfifo. A [`RingDevice`] is the other kind of bottleneck: a network card in front of a
//! link without a rate, below a [`TransmitPath`](towpath_qdisc::TransmitPath).
//!
//! A [`Cable`] is a link each way between two [`Port`](towpath_pool::Port)s, for stacks that one
//! thread turns in virtual time.
//!
//! # The caller's duty
//! * [`Link::on_packet`] at one end, [`Link::poll_packet`] at the other until it gives nothing, and
//!   again at [`Link::next_timeout_ns`].
//! * Both collect dropped items in a list; the caller counts these or reuses their memory.
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
//! // 8 Mbit/s: a byte takes a microsecond.
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
