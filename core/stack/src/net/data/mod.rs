//! Data part of the IP layer, which receives and sends packets. Each shard has a data part. The
//! data part gets the configuration of the host as a snapshot, and neighbours by updates. The data
//! part never waits for an answer of the control part: it passes packets and reports to control,
//! and continues.
//!
//! ```text
//!            receive()                             send()
//!  frame ─► link ─► ip: validate ─► verdict      packet ─► ip header ─► next hop ─► cut? ─► output
//!             │ arp    │ malformed      │ martians  │ checksum             │ ▲
//!             ▼        ▼                ▼           ▼                      ▼ │
//!     ControlPacket  drop()   drop() or Received loopback queue  DataReport  DataCommand
//! ```
//!
//! Reading order: `receive` and `send` are the two paths, one page each; [`Data`], in `tables`, has
//! the state of both. `headers` validates IP headers. `verdict` makes the routing decision about a
//! received packet. `forward` forwards packets to other hosts, with `option_stamp` and
//! `refragment`. `transit` forwards packets in batches, using `plans`.
//!
//! - Hooks: `hooks` has the rules and the tracker, which `hook_points`, `forward` and `transit`
//!   call. `fields` reads a packet for rules, and `hook_packet` rewrites it for a tracker. `reject`
//!   drops and answers refused packets.
//! - Sending: `way` finds the route and source address, `mtu` the size limit. `next_hop` has the
//!   link header for each neighbour, and the packets that wait for one. `output` is the queue in
//!   front of a device.
//! - Cuts: `fragment` splits packets, and `reassembly` reassembles them. `offload` segments packets
//!   and computes checksums for a device that cannot, and `gro` merges received segments.
//!   `offload_check` validates the work that the sender of a received packet left to a device.
//! - ICMP: `icmp` handles received messages, `report` sends errors, and `error_limit` limits their
//!   rate.
//! - `commands` executes the commands of control, `ident` has the identifications of packets, and
//!   `timeouts` removes expired entries.
//!
//! The data part does not call the control part (checked by `cargo xtask tidy`).
//!
//! The path MTUs of datagrams are in the data part and not in control, because they are looked up
//! for each packet. If a socket accepts a path MTU report, its shard sends the report to all other
//! shards, so that all use the same path MTUs.

mod commands;
mod error_limit;
mod fields;
mod forward;
mod fragment;
mod gro;
mod headers;
mod hook_packet;
mod hook_points;
mod hooks;
mod icmp;
mod ident;
mod ip_packet;
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
mod refusal;
mod reject;
mod report;
mod send;
mod tables;
mod timeouts;
mod transit;
mod verdict;
mod way;

pub use gro::coalesce;
pub use hook_packet::HookPacket;
pub use hooks::Tracker;
pub(crate) use icmp::quoted_flow;
pub use offload::verify_transport;
pub use output::{Load, Output};
pub(crate) use output::{connection, datagrams, place};
pub use report::Unreachable;
pub use send::{EchoOut, SendError};
pub(super) use tables::Data;
