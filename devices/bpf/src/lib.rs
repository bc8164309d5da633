//! BPF programs that say where the kernel puts a frame, written instruction by instruction, and
//! the calls that hand them to the kernel (bpf(2)).
//!
//! - [`Steering`] divides the flows of a TAP device among its queues, and those of an interface
//!   among packet sockets.
//! - [`Claim`] says which frames of an interface are a stack's, for an XDP socket or a packet
//!   socket. The kernel gets the others.
//! - [`load`], [`SocketMap`], [`attach_xdp`] and [`attach_ingress`] are the calls.
//! - [`Pour`] has the kernel send frames as fast as it can, for measurements.
//!
//! The kernel verifies each program when it is loaded, and refuses one that could read outside of
//! its frame or run for ever.
#![warn(missing_docs)]

mod assembler;
mod claim;
mod pour;
mod steering;
mod sys;

pub use assembler::BpfInstruction;
pub use claim::{Claim, PortRange, Transport};
pub use pour::Pour;
pub use steering::{Place, Steering};
pub use sys::{Kind, SocketMap, XdpMode, attach_ingress, attach_xdp, load};
