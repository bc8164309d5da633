//! Splits an Ethernet port into a port per VLAN (IEEE 802.1Q).
//!
//! [`split`] takes a port with tagged frames (trunk), and returns one port for each given VLAN. A
//! network stack uses each of them as a separate interface with untagged frames.
//!
//! ```text
//!   stack   eth0      eth0.10     eth0.20
//!             │          │           │        VlanPort: frames without a tag
//!             └──────────┼───────────┘
//!                      trunk                  frames with VLAN tags
//!                        │
//!                   any Ethernet port
//! ```
//!
//! VLAN tags are removed from received frames, whether the device leaves them in the frame or in
//! [`Meta::vlan`](towpath_pool::Meta::vlan). Tags are inserted into sent frames. Received frames of
//! other VLANs are dropped and counted.
//!
//! The ports of a trunk share a lock, which is taken once per batch. The lock is uncontended,
//! because one thread uses all ports of a trunk.
//!
//! ```
//! use towpath_pool::{Batch, Pool, Port};
//! use towpath_vlan::{Vlan, split};
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
//! let office = Vlan::tagged(10)?;
//! let mut ports = split(Loopback(Batch::new()), &[Vlan::Untagged, office])?;
//! let (mut pool, mut batch) = (Pool::default(), Batch::new());
//! let mut frame = pool.take(60);
//! frame.push_back(60).expect("room").fill(7);
//! batch.push_back(frame);
//! ports[1].submit(0, &mut pool, &mut batch);
//! // Frames sent to VLAN 10 are received only there.
//! assert_eq!(ports[0].poll(0, &mut pool, &mut batch, 64), 0);
//! assert_eq!(ports[1].poll(0, &mut pool, &mut batch, 64), 1);
//! assert_eq!(batch[0].linear(), [7; 60]);
//! # Ok::<(), towpath_vlan::VlanError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod tag;
mod trunk;

pub use tag::Vlan;
pub use trunk::{Counters, VlanError, VlanPort, split};

#[cfg(test)]
mod tests;
