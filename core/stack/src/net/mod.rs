//! IP layer: converts received frames to transport packets for this host, and sent packets to
//! frames. The layers above it have the sockets.
//!
//! Two parts divide the work. The **data** part receives and sends packets; each shard has one. The
//! **control** part manages the host's configuration, and the neighbours on its links; a host has
//! one.
//!
//! ```text
//!      owner: addresses, routes, groups      transport: routes, send   frames, received packets
//!                  │                                    │                        │
//!                  ▼                                    ▼                        ▼
//!   ┌────────────────────────────────┐ Snapshot ┌───────────────────────────────────────────┐
//!   │ control                        │─────────►│ data (one per shard)                      │
//!   │  interfaces, SLAAC, detection, │ commands │  validation, verdict, reassembly, headers,│
//!   │  neighbours, routers, routes,  │─────────►│  next hops with their link headers,       │
//!   │  group reports, timers         │◄─────────│  datagrams' path MTUs, limit of errors,   │
//!   └────────────────────────────────┘ packets, │  identifications                          │
//!                                       reports └───────────────────────────────────────────┘
//! ```
//!
//! **Messages between the parts** (`messages`):
//!
//! - A `Snapshot` is the configuration that the data parts use: interfaces, addresses, groups,
//!   routes and rules. A snapshot never changes; a data part replaces its own between two packets.
//!   Unchanged parts are shared with the previous snapshot.
//! - A `NeighborUpdate` has the MAC address of one neighbour. Neighbours change often, so they are
//!   not in the snapshot: a change affects one entry in each data part. If a router stops
//!   answering, the new snapshot differs only in the list of such routers.
//! - A `ControlPacket` is a received packet for control, such as ARP or neighbour discovery.
//! - A `DataReport` reports an event of a next hop: a packet was sent to it, or TCP made progress
//!   through it. A neighbour in use causes one report per second.
//! - A `DataCommand` requests that a data part sends a packet, drops one, or applies an update.
//!
//! **Several shards.** [`Net`] is the IP layer of one shard. Its `ControlAccess` has the control
//! part, or a reference to the one that the shards share behind a lock. The first shard runs
//! control. The other shards send their control packets and reports to it in batches, through the
//! rings between shards. Updates return through these rings.
//!
//! - Each neighbour has a bit set of the shards that use it, and its updates go to those. If a
//!   shard reports a use again, only that shard gets the answer. A program that sends to absent
//!   hosts therefore burdens only its own shard and the first one.
//! - Queues in both directions are bounded. A shard drops packets whose neighbour it cannot report
//!   (`NEIGHBOR_REPORTS_MAX`). A shard that does not read its updates in time requests all
//!   neighbours again (`UPDATES_WAITING_MAX`).
//! - Path MTUs of datagrams use the same queues. If a socket accepts a report, its shard sends it
//!   to the first shard, which sends it to all others.
//! - Each shard checks for a new snapshot once per batch, by reading a counter.
//! - Joins of groups and changes by the owner run in control at once, on the caller's thread. The
//!   lock in `control_access` is for these calls.
//!
//! A *way* is an interface with a next hop: the module `way` chooses the way of a packet by its
//! route.
//!
//! Reading order: [`Net`] in `layer`, with its `config` and `control_access`; `messages`,
//! `snapshot`; `relay` for several shards; then `data` and `control`. `owner` and `transport` have
//! the calls from above. `iface`, `route`, `received` and `ip` have the types of these calls.
//! `locals` has the addresses of a snapshot. `fib` has its routes in a `towpath_lpm::Trie`, with
//! the `failures` of routers; a router's lookup is a `towpath_lpm::Flat`. `source` selects source
//! addresses (RFC 6724). Every limit is in `limits`, every counter in `trace`.
//!
//! Budget: a received TCP segment needs two fast hash lookups, one per address. A sent segment
//! needs none for its route and next hop, because its connection caches both. Neither direction
//! allocates memory or takes a lock.

mod changes;
mod config;
mod control;
mod control_access;
mod data;
mod failures;
mod fib;
pub(crate) mod hash;
mod iface;
mod ip;
mod kernel_routes;
mod keys;
mod layer;
pub mod limits;
mod link_header;
mod locals;
pub(crate) mod lru;
mod messages;
mod owner;
mod received;
mod relay;
pub(crate) mod route;
mod rule_set;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod trace;
mod transport;

pub use changes::{Change, Fault, How, Refused, RouteSpec};
pub use config::{Forwarding, NetConfig, SourceCheck};
pub use control::{NeighborInfo, NeighborState};
pub use data::{EchoOut, HookPacket, Load, Output, SendError, Tracker, Unreachable};
pub use data::{coalesce, verify_transport};
pub(crate) use data::{connection, datagrams, mtu, place, quoted_flow};
pub use iface::{Address, AddressState, IfaceId, InterfaceConfig, Origin};
pub use ip::{Fragmenting, Ip};
pub use kernel_routes::{KernelRoute, KernelRoutes};
pub use keys::Keys;
pub use layer::Net;
pub(crate) use messages::{HopKey, NeighborUpdate, ToControl};
pub use received::{Conflict, Echo, IcmpError, Local, Looped, Received};
pub use route::{HopId, Route, RouteEntry, RouteError, RouteKind, metric_unless_given};
pub use rule_set::{Logged, RuleSet};
pub use snapshot::Link as Interface;
pub use trace::{ControlCounters, DataCounters, DroppedCopy, NetCounters, Traffic};
