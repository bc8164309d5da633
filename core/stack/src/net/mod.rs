//! IP layer: converts received frames to transport packets for this host, and sent packets to
//! frames. Sockets are in the layers above.
//!
//! Two parts divide the work. **Data** moves packets; each shard has one, on a thread of its own if
//! there are several. **Control** knows the host's configuration and the neighbours on its links; a
//! host has one.
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
//!   not in the snapshot: a change costs each data part one entry. A router that stops answering
//!   makes a snapshot that differs in the list of such routers alone.
//! - A `ControlPacket` is a received packet for control, as ARP or neighbour discovery.
//! - A `DataReport` reports an event of a next hop: a use, or progress of the transport through it.
//!   A neighbour in use causes one report per second.
//! - A `DataCommand` tells a data part to send a packet, to drop one, or to apply an update.
//!
//! **Several shards.** [`Net`] is one shard's IP layer; its `ControlAccess` says where control is:
//! in this `Net`, or behind a lock that the shards share. The first shard runs control. Control
//! packets and reports of other shards go to it in batches, through the rings between shards, and
//! updates return the same way.
//!
//! - Each neighbour has a bit set of the shards that use it, and its updates go to those. If a
//!   shard reports a use again, only that shard gets the answer. A sender to absent hosts therefore
//!   costs only its own shard and the first one.
//! - Queues in both directions are bounded. A shard drops packets whose neighbour it cannot report
//!   (`NEIGHBOR_REPORTS_MAX`). A shard that does not take its updates asks for all neighbours again
//!   (`UPDATES_WAITING_MAX`).
//! - Path MTUs of datagrams use the same queues: if a socket accepts a report, its shard tells the
//!   first one, which tells all others.
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
//! Budget: a received TCP segment costs two cheap hash lookups, one per address. A sent segment
//! costs none for its route and next hop, because its connection caches both. Neither direction
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
pub use keys::Keys;
pub use layer::Net;
pub(crate) use messages::{HopKey, NeighborUpdate, ToControl};
pub use received::{Conflict, Echo, IcmpError, Local, Looped, Received};
pub use route::{HopId, Route, RouteEntry, RouteError, RouteKind, metric_unless_given};
pub use rule_set::{Logged, RuleSet};
pub use snapshot::Link as Interface;
pub use trace::{ControlCounters, DataCounters, DroppedCopy, NetCounters, Traffic};
