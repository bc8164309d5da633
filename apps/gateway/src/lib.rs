//! Connects a program's stack to the host's network without privileges.
//!
//! The program's stack is connected by a link in memory to a second TCP/IP stack, the inner stack,
//! which accepts packets to every address. The inner stack turns each flow into a socket of the
//! host:
//!
//! ```text
//!   program's stack ═══ Port ═══ inner stack ─── flows ─── host sockets
//!    10.0.2.15            │        any address     │        epoll
//!                      Gateway                 tcp udp echo
//! ```
//!
//! - The gateway answers a SYN of the program only after the host has connected. Therefore the
//!   program sees refusals, unreachable hosts and resets.
//! - The gateway's address is translated to the host's loopback, and a second address to the host's
//!   nameservers.
//! - Forwarded ports work in the opposite direction: the host listens and the gateway connects to
//!   the program.
//!
//! [`Gateway`] is a [`towpath_pool::Port`]: the thread of the program's stack runs it, and sleeps
//! on its descriptor. Besides system calls, outgoing bytes are copied once, from the program's FIFO
//! to a FIFO of the inner stack. Incoming bytes are copied only into the program's FIFO. Idle flows
//! hold no buffer memory.
//!
//! [`Outer`] describes the kind of link. The peer on the link may also be a device instead of a
//! program's stack. [`Runner`] connects a gateway to a device such as a TUN with arbitrary clients.
//! Connections leave by [`Egress`], directly or through an [`Upstream`] server (`dialer`). The
//! gateway refuses connections that are routed back to it (`loops`).
//!
//! A stack with several shards has one gateway per shard ([`Gateway::shards`]); `siblings` holds
//! the state they share. `order` ensures that concurrent connections reach the program in the order
//! in which the host accepted them.
//!
//! Reading order: `gateway`, `tcp`, `flow`, `udp`, `echo`, `dns`, `forward` (on `listeners`).
//! `context` holds shared state, `budget` the flow limits, `link` and `fifo` the buffers. `dns`
//! uses `nameservers`, and `icmp` forwards errors of the host.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod budget;
mod client;
mod config;
mod context;
mod counters;
mod dialer;
mod dns;
mod echo;
mod egress;
mod events;
mod fifo;
mod flow;
mod forward;
mod gate;
mod gateway;
mod icmp;
mod idle;
pub mod limits;
mod lines;
mod link;
mod listener_mirror;
mod listeners;
mod loops;
mod mapping;
mod nameservers;
mod negotiating;
mod notice;
mod order;
mod outer;
mod polled;
mod published;
mod runner;
mod segment;
mod show;
mod siblings;
mod slab;
mod source;
#[allow(unsafe_code)] // System calls on FIFO memory; see the module.
mod sys;
mod tcp;
mod train;
mod udp;
mod urgent;

pub use config::{Forward, ForwardError, ForwardProtocol, GatewayConfig};
pub use counters::Counters;
pub use dialer::Upstream;
pub use egress::Egress;
pub use gateway::Gateway;
pub use listeners::Bound;
pub use nameservers::Nameserver;
pub use negotiating::{Negotiation, NegotiationStep, UpstreamServer};
pub use notice::Notice;
pub use outer::Outer;
pub use polled::{PolledPorts, ProgramKernel, SocketQuestion};
pub use published::PublishWatch;
pub use runner::{Ended, Joint, Runner};
pub use show::{FlowEntry, FlowProtocol};
