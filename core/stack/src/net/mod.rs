//! The IP layer: from frames to transport packets for this host, and back. It knows no sockets.
//!
//! ```text
//!            receive()                                        send()
//!  frame ─► link ─► ip: validate ─► reassemble ─► local?    packet ─► ip header ─► fragment? ─► segment?
//!             │ arp    │ martians       │ quotas    │          │ checksum               │
//!             ▼        ▼                ▼           ▼          ▼                        ▼
//!         neighbor   drop()          reassembly   Received   loopback queue     neighbor ─► output()
//!                                                                 └─► receive_looped()
//! ```
//!
//! Reading order: [`receive`](Net::receive) in `receive.rs` and [`send`](Net::send) in `send.rs` are the
//! two paths, one page each; `received` is what the one gives, `ip` what the other is told. [`Net`] itself, in
//! `layer`, has the tables that both use. `iface`, `locals`, `route` and `next_hops` say what this host is and
//! where packets go, `learnt` what routers said about that, `mtu` how big packets may be. `neighbor` finds MAC
//! addresses by ARP and neighbour discovery, one state machine for both; `ndp` asks and answers for IPv6,
//! `slaac` listens to routers and makes addresses, `discovery` keeps what they said; `groups` has what was
//! joined, and `membership` reports it. `reassembly` and `fragment` are each other's inverse, `offload` does
//! what a device cannot on the way out, and `gro` is the same for the way in. `icmp` reads errors, `report`
//! makes them, `error_limit` says how many. `schedule` has what is to be done later, `timeouts` does it. Every
//! limit is in `limits`.
//!
//! Budget: a TCP segment to an address of ours costs one hash lookup (its destination) on the way in and
//! one (its neighbour) on the way out, and no allocation.

mod arp;
mod confirmed;
mod control;
mod discovery;
mod error_limit;
mod fragment;
mod gro;
mod groups;
pub(crate) mod hash;
mod icmp;
mod ident;
mod iface;
mod ip;
mod layer;
mod learnt;
pub mod limits;
mod locals;
mod lru;
mod membership;
pub(crate) mod mtu;
mod ndp;
mod neighbor;
mod next_hops;
mod offload;
mod reachable;
mod reassembly;
mod receive;
mod received;
mod report;
mod route;
mod schedule;
mod send;
mod slaac;
#[cfg(test)]
mod tests;
mod timeouts;
mod trace;

pub use gro::coalesce;
pub(crate) use icmp::quoted_flow;
pub use iface::{Address, AddressState, IfaceId, Interface, InterfaceConfig, Origin};
pub use ip::{Fragmenting, Ip};
pub use layer::{Keys, Net, NetConfig};
pub use neighbor::{Neighbor, NeighborState};
pub use offload::verify_transport;
pub use received::{Echo, IcmpError, Local, Looped, Received};
pub use report::Unreachable;
pub use route::{Route, RouteEntry, RouteError};
pub use send::{EchoOut, SendError};
pub use trace::{Dropped, NetCounters};
