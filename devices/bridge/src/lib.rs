//! Learning bridge that combines Ethernet ports into one link (IEEE 802.1Q-2018 clause 8).
//!
//! ```text
//!            stack           one interface, with the bridge's address
//!              │
//!           Bridge           learns behind which port an address is
//!         ┌────┼────┐
//!       port  port  port     TAP devices, Ethernet interfaces, VLANs
//! ```
//!
//! A frame is forwarded to the port on which its destination address was seen as a source. Frames
//! to groups and to unknown addresses are flooded to all other ports. The stack receives frames to
//! its own address and to groups.
//!
//! - An address is removed [`BridgeConfig::ageing_ns`] after its last frame, and each port can
//!   learn at most [`BridgeConfig::addresses_max`] addresses. So a flood on one port exhausts only
//!   that port's limit. Frames to addresses that were not learned are flooded and counted.
//! - Frames to 01-80-C2-00-00-00 to -0F are not forwarded (802.1Q table 8-1): spanning tree, LLDP,
//!   pause.
//! - Spanning tree is not supported, so ports of a bridge must not be connected elsewhere. Frames
//!   from the stack's own address are dropped and counted as `own_address`, which indicates such a
//!   loop.
//! - Each port has a transmit queue of 1000 frames; further frames are dropped.
//!
//! [`TwinPort`] joins a port with a device of the kernel instead, in which routing daemons run:
//!
//! ```text
//!          stack                 kernel: daemons of routing protocols
//!            │                     │
//!         TwinPort ────────────── twin     frames that a TwinSelection selects
//!            │
//!          port                            frames of both
//! ```
//!
//! ```
//! use towpath_bridge::{Bridge, BridgeConfig};
//! use towpath_pool::{Batch, Pool, Port};
//! # use std::os::fd::BorrowedFd;
//! # use towpath_pool::{LinkType, Offloads};
//! # struct Loopback(Batch);
//! # impl Port for Loopback {
//! #     fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
//! #         let n = self.0.len().min(max);
//! #         out.extend(self.0.drain(..n));
//! #         n
//! #     }
//! #     fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
//! #         let n = batch.len();
//! #         self.0.extend(batch.drain(..));
//! #         n
//! #     }
//! #     fn offloads(&self) -> Offloads {
//! #         Offloads::default()
//! #     }
//! #     fn link_type(&self) -> LinkType {
//! #         LinkType::Ethernet
//! #     }
//! #     fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
//! #         None
//! #     }
//! # }
//!
//! let ports: Vec<Box<dyn Port + Send>> =
//!     (0..2).map(|_| Box::new(Loopback(Batch::new())) as _).collect();
//! let mut bridge = Bridge::new(ports, BridgeConfig::new([2, 0, 0, 0, 0, 1]))?;
//! let stats = bridge.stats();
//!
//! // A broadcast of the stack is sent on both ports.
//! let (mut pool, mut batch) = (Pool::default(), Batch::new());
//! let mut frame = pool.take(60);
//! frame.push_back(60).expect("room").fill(0xff);
//! frame.linear_mut()[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! batch.push_back(frame);
//! bridge.submit(0, &mut pool, &mut batch);
//! assert_eq!(stats.counters().flooded, 1);
//! # Ok::<(), towpath_bridge::BridgeError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod bridge;
mod selection;
mod stats;
mod twin;
mod wakes;

pub use bridge::{Bridge, BridgeConfig, BridgeError};
pub use selection::{NoTwinRule, TwinRule, TwinRules, TwinSelection};
pub use stats::{BridgeStats, Counters};
pub use twin::{OwnAddresses, TwinCounters, TwinPort};

#[cfg(test)]
mod tests;
