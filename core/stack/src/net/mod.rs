//! The IP layer: from frames to transport packets for this host, and back. It knows no sockets.
//!
//! It has two parts that know nothing of each other's work. **Data** moves packets, and there may
//! be one for each shard, on threads of their own; **control** knows what this host is and who is
//! on its links, and there is one of it.
//!
//! ```text
//!           owner: addresses, routes, groups                transport: routes, send    frames, received packets
//!                        │                                             │                       │
//!                        ▼                                             ▼                       ▼
//!   ┌──────────────────────────────────────┐  Snapshot  ┌───────────────────────────────────────────────┐
//!   │ control                              │───────────►│ data (one a shard)                            │
//!   │  interfaces, SLAAC, detection,       │   Order    │  validation, verdict, reassembly, headers,    │
//!   │  neighbours, routers, routes,        │───────────►│  next hops with their link headers, path MTUs │
//!   │  groups as they are reported, timers │◄───────────│  of datagrams, limit of errors, identifiers   │
//!   └──────────────────────────────────────┘ Punt,      └───────────────────────────────────────────────┘
//!                                            Notice
//! ```
//!
//! **What passes.** A `Snapshot` is what packets need to know of the host; nobody changes it, and
//! data goes by it until it is given another one, between two packets. What changes often is not in
//! it: where neighbours are is told in `News`, one neighbour at a time, and each data part keeps it
//! in places of its own, so that a neighbour that moves costs one entry and no snapshot. A router
//! that stops answering makes a snapshot that differs by the list of such routers; a route or an
//! address copies what `snapshot` says. A `Punt` is a packet that is for control, a `Notice`
//! something that happened to a next hop: it is used, or the transport heard from beyond it. An
//! `Order` is a packet to send, or news. Of a neighbour in use there is one notice a second.
//!
//! [`Net`] is both on one thread: control hears of each packet before the next one. Of several
//! shards each has a data part, and the first one runs control: punts and notices of the others go
//! to it through the rings between shards, in batches, and news come back beside these. A neighbour
//! has its users, a bit for each shard, and what changes of it goes to these; who says that it uses
//! one is answered alone; who sends to hosts that are not there makes work for its own shard and
//! the first. What waits to be told is bounded both ways: a shard does not keep packets that it
//! cannot ask for (`NEIGHBOR_NOTICES_MAX`), and one that does not take its news asks for all
//! neighbours anew (`NEWS_WAITING_MAX`). Path MTUs of datagrams go the same way, from the shard
//! whose socket believed a report by the first one to all. Of a snapshot each shard learns by a
//! word that it looks at once a batch. Joins of groups and changes by the owner are made by control
//! at once, whichever thread calls: that is what its lock is for (`seat`).
//!
//! Reading order: [`Net`] in `layer`, with its `config` and `seat`; `told`, `snapshot`; `relay` for
//! several shards; then `data` and `control`, whose pages go on. `owner` and `transport` are what
//! the two are called for. `iface`, `route`, `received` and `ip` are what is asked, given and told.
//! `locals` has the addresses of a snapshot, `fib` its routes, in a `towpath_lpm::Trie`, with the
//! `failures` of routers; a router looks up in a `towpath_lpm::Flat`. `source` chooses the address
//! to send from. Every limit is in `limits`, what is counted in `trace`.
//!
//! Budget: a TCP segment to an address of ours costs two cheap hash lookups (its two addresses) on
//! the way in. On the way out it costs none to find its route and next hop, for its connection
//! keeps both. It costs no allocation, and no lock.

mod changes;
mod config;
mod control;
mod data;
mod failures;
mod fib;
pub(crate) mod hash;
mod iface;
mod ip;
mod keys;
mod layer;
pub mod limits;
mod link_header;
mod locals;
pub(crate) mod lru;
mod owner;
mod received;
mod relay;
pub(crate) mod route;
mod rule_set;
mod seat;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod told;
mod trace;
mod transport;

pub use changes::{Change, Fault, How, Refused, RouteSpec};
pub use config::{Forwarding, NetConfig, SourceCheck};
pub use control::{Neighbor, NeighborState};
pub use data::{EchoOut, Load, Output, SendError, Unreachable, coalesce, verify_transport};
pub(crate) use data::{connection, datagrams, mtu, place, quoted_flow};
pub use iface::{Address, AddressState, IfaceId, InterfaceConfig, Origin};
pub use ip::{Fragmenting, Ip};
pub use keys::Keys;
pub use layer::Net;
pub use received::{Echo, IcmpError, Local, Looped, Received};
pub use route::{HopId, Route, RouteEntry, RouteError, RouteKind, metric_unless_given};
pub use rule_set::{Logged, RuleSet};
pub use snapshot::Link as Interface;
pub(crate) use told::{HopKey, News, ToControl};
pub use trace::{ControlCounters, DataCounters, Dropped, NetCounters, Traffic};
