//! Data: packets in and out. Each shard has one of its own, which knows of the host what its snapshot says, and of
//! neighbours what it was told. It asks nobody while it has a packet in hand: what it cannot deal with, control gets
//! later.
//!
//! ```text
//!            receive()                                        send()
//!  frame ─► link ─► ip: validate ─► verdict ─► reassemble   packet ─► ip header ─► next hop ─► cut? ─► output
//!             │ arp    │ malformed      │ martians  │          │ checksum             │ ▲
//!             ▼        ▼                ▼           ▼          ▼                      ▼ │
//!           Punt     drop()           drop()    Received     loopback queue      Notice Order
//! ```
//!
//! Reading order: `receive` and `send` are the two paths, one page each; [`Data`], in `tables`, has what both use.
//! `forward` sends packets to other hosts on, with `option_stamp` and `refragment`, and `transit`
//! those of a batch that need no second look, by `plans`. Rules judge packets in `hooks`.
//! `verdict` says what becomes of what comes in, `way` which way a packet goes, `mtu` how big it may be. `next_hop`
//! has what goes in front of the packets to each neighbour, and what waits for one; `output` is the queue in front of a
//! device; `orders` has what control tells.
//! `reassembly` and `fragment` are each other's inverse, `offload` does what a device cannot on the way out, and
//! `gro` is the same for the way in. `icmp` reads errors, `report` makes them, `error_limit` says how many; `ident`
//! has the identifications of packets. It knows nothing of control (`cargo xtask tidy`).
//!
//! Path MTUs of datagrams are here, and not in control: packets look them up. Who sent the datagram believes the report
//! about it, and the others are told, so that each shard knows what a host with one would.

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
mod option_stamp;
mod orders;
mod output;
mod plans;
mod reassembly;
mod receive;
mod redirect;
mod redirect_limit;
mod refragment;
mod report;
mod send;
mod tables;
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
