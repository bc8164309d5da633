//! The IP layer: from frames to transport packets for this host, and back. It knows no sockets.
//!
//! ```text
//!            receive()                                        send()
//!  frame ─► link ─► ip: validate ─► verdict ─► reassemble   packet ─► ip header ─► next hop ─► cut? ─► output()
//!             │ arp    │ malformed      │ martians  │          │ checksum             ▲
//!             ▼        ▼                ▼           ▼          ▼                      │ Notice, News
//!         neighbor   drop()           drop()    Received     loopback queue       neighbor
//!                                                                 └─► receive_looped()
//! ```
//!
//! Reading order: [`receive`](Net::receive) in `receive.rs` and [`send`](Net::send) in `send.rs` are the
//! two paths, one page each; `verdict` says what becomes of what comes in, `received` is what is given of it, `ip`
//! what the way out is told. [`Net`] itself, in
//! `layer`, has the tables that both use. `iface`, `control`, `route` and `gateways` say what this host is and
//! where packets go, `learnt` what routers said about that. Packets look at a `snapshot` of it: `locals` has the
//! addresses, `fib` the routes, in a `trie`, and `way` says which way one goes, `source` from which address, `mtu` how big
//! it may be. `next_hop` has what goes in
//! front of the packets to each neighbour, and what waits for one; `neighbor` finds MAC addresses by ARP and neighbour
//! discovery, one state machine for both; `exchange` lets these two hear of each other. `ndp` asks and answers for IPv6,
//! `slaac` listens to routers and makes addresses, `discovery` keeps what they said; `groups` has what was
//! joined, and `membership` reports it. `reassembly` and `fragment` are each other's inverse, `offload` does
//! what a device cannot on the way out, and `gro` is the same for the way in. `icmp` reads errors, `report`
//! makes them, `error_limit` says how many. `schedule` has what is to be done later, `timeouts` does it. Every
//! limit is in `limits`.
//!
//! Budget: a TCP segment to an address of ours costs two cheap hash lookups (its two addresses) on the way in. On the way out it
//! costs none to find its route and next hop, for its connection keeps both. It costs no allocation.

mod arp;
mod control;
mod discovery;
mod error_limit;
mod exchange;
mod fib;
mod fragment;
mod gateways;
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
pub(crate) mod next_hop;
mod offload;
mod reassembly;
mod receive;
mod received;
mod report;
mod route;
mod schedule;
mod send;
mod slaac;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod timeouts;
mod trace;
mod trie;
mod verdict;
mod way;

pub use gro::coalesce;
pub use iface::{Address, AddressState, IfaceId, Interface, InterfaceConfig, Origin};
pub use ip::{Fragmenting, Ip};
pub use layer::{Keys, Net, NetConfig};
pub use neighbor::{Neighbor, NeighborState};
pub use next_hop::HopId;
pub use offload::verify_transport;
pub use received::{Echo, IcmpError, Local, Looped, Received};
pub use report::Unreachable;
pub use route::{Route, RouteEntry, RouteError};
pub use send::{EchoOut, SendError};
pub use trace::{Dropped, NetCounters};
