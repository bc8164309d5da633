//! BPF programs that decide where the kernel delivers a frame, and the bpf(2) calls that load and
//! attach them. The programs are assembled instruction by instruction.
//!
//! - [`Steering`] distributes flows among the queues of a TAP device, or among the packet sockets
//!   of an interface.
//! - [`Claim`] selects the frames of an interface that the stack receives through an XDP socket or
//!   a packet socket. The kernel receives all other frames.
//! - [`load`], [`SocketMap`], [`attach_xdp`] and [`attach_ingress`] execute the bpf(2) calls.
//! - [`Pour`] makes the kernel send frames at the maximum rate, for measurements.
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
