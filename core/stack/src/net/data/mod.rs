//! Data: packets in and out. Each shard has a data part, which knows the host by a snapshot, and
//! neighbours by updates. A packet never waits for an answer of control: the data part hands it to
//! control, or queues a notice, and goes on.
//!
//! ```text
//!            receive()                             send()
//!  frame ─► link ─► ip: validate ─► verdict      packet ─► ip header ─► next hop ─► cut? ─► output
//!             │ arp    │ malformed      │ martians  │ checksum             │ ▲
//!             ▼        ▼                ▼           ▼                      ▼ │
//!           Punt     drop()   drop() or Received loopback queue       Notice Order
//! ```
//!
//! Reading order: `receive` and `send` are the two paths, one page each; [`Data`], in `tables`, has
//! what both use. `forward` sends packets to other hosts on, with `option_stamp` and `refragment`,
//! and `transit` those of a batch that need no second look, by `plans`. Rules judge packets in
//! `hooks`; `reject` drops and answers those refused. `verdict` decides about a received packet,
//! `way` finds the route and source address of one to send, `mtu` its size limit. `next_hop` has
//! the link header for each neighbour, and the packets that wait for one. `output` is the queue in
//! front of a device; `orders` executes those of control. `reassembly` is the inverse of
//! `fragment`. `offload` cuts and sums on the way out for a device that cannot, and `gro` merges on
//! the way in. `offload_check` validates what the sender of a received packet left to a device.
//! `icmp` reads errors, `report` makes them, `error_limit` bounds them; `ident` has the
//! identifications of packets, and `timeouts` removes expired entries. The data part does not use
//! control (`cargo xtask tidy` checks).
//!
//! Path MTUs of datagrams are here and not in control, because packets look them up. The shard
//! whose socket believed a report tells all others, so that all go by the same path MTUs.

mod commands;
mod error_limit;
mod forward;
mod fragment;
mod gro;
mod hooks;
mod icmp;
mod ident;
pub(crate) mod mtu;
mod next_hop;
mod offload;
mod offload_check;
mod option_stamp;
mod output;
mod plans;
mod reassembly;
mod receive;
mod redirect;
mod redirect_limit;
mod refragment;
mod reject;
mod report;
mod send;
mod tables;
mod timeouts;
mod transit;
mod verdict;
mod way;

pub use gro::coalesce;
pub(crate) use icmp::quoted_flow;
pub use offload::verify_transport;
pub use output::{Load, Output};
pub(crate) use output::{connection, datagrams, place};
pub use report::Unreachable;
pub use send::{EchoOut, SendError};
pub(super) use tables::Data;
