//! A program's way to the host's network without privileges.
//!
//! The program's stack is joined in memory to a second stack, which takes every address for its
//! own. The second one turns each flow that reaches it into a socket of the host:
//!
//! ```text
//!   program's stack ═══ Port ═══ inner stack ─── flows ─── host sockets
//!    10.0.2.15            │        any address     │        epoll
//!                      Gateway                 tcp udp echo
//! ```
//!
//! - The host makes a connection first, and then the gateway answers. So a refusal is a refusal, an
//!   unreachable host is unreachable, and a reset is a reset.
//! - The gateway's own address stands for the host's loopback, and another one for its nameservers.
//! - Forwarded ports go the other way: the host listens, the program is connected to.
//!
//! [`Gateway`] is a [`towpath_pool::Port`]: the owner of the program's stack turns it as well, on
//! the same thread, and sleeps on its descriptor. Bytes are copied once on the way out, from the
//! program's FIFO into that of the inner stack. On the way in they are only copied into the
//! program's FIFO, the system calls aside. Idle flows hold no buffer memory.
//!
//! The other end of the link need not be a program. [`Outer`] says which kind of link there is.
//! [`Runner`] joins a gateway to a device, as a TUN, with clients of any kind behind it.
//! Connections leave by [`Egress`], directly or by an [`Upstream`] server (`dialer`); the gateway
//! refuses those that come back (`loops`).
//!
//! A stack of several shards has a gateway for each ([`Gateway::shards`]). State that these share
//! is in `siblings`. By `order` connections that they make side by side come to the program as they
//! came to the host.
//!
//! Reading order: `gateway`, `tcp`, `flow`, `udp`, `echo`, `dns`, `forward` (on `listeners`);
//! `context` is what they have in common, `budget` how many flows there may be. Bytes wait in
//! `link` and `fifo`, `dns` asks `nameservers`, `icmp` brings errors of the host to the program.

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
#[allow(unsafe_code)] // The system calls on FIFO memory; see there.
mod sys;
mod tcp;
mod train;
mod udp;

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
