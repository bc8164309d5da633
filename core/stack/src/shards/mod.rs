//! Shards: several stacks that form one host, created by [`Stack::shards`](crate::Stack::shards).
//! Each shard has its own thread, and owns the flows that a keyed hash assigns to it
//! (`docs/decisions/0008-shards.md`). The behaviour that programs see does not depend on the number
//! of shards, or on where packets arrive.
//!
//! ```text
//!  packet ─► subject: flow ─► handing: owner ─┬─ this shard ─► net, rx, sockets
//!                                             └─ peer shard ─► post ─► next turn of the peer
//! ```
//!
//! Reading order: `owner` maps a flow to its shard, `subject` extracts the flow from a packet, and
//! `handing` dispatches packets. `post` contains the rings between shards, and `update_queue` the
//! neighbour updates from the first shard. `common` is state that all shards read. `announced`
//! lists sockets that other shards must know, and `shadows` are the table entries that represent
//! them there. `children` are connections for a listener of another shard. `claims` are for
//! connections whose flow belongs to another shard than their socket. `member` is a stack's state
//! as a shard; a single stack has none.
//!
//! A packet that belongs to the shard on which it arrives needs the hash of its flow. For UDP, it
//! also needs the set of shards that use its port. For each batch of packets, and each call of a
//! program, counters are read to detect changes.

mod announced;
mod children;
mod claims;
mod common;
mod handing;
mod member;
mod offers;
mod owner;
mod post;
mod shadows;
mod subject;
mod update_queue;

pub(crate) use announced::Announced;
pub(crate) use common::Common;
pub(crate) use member::{Member, PeerShards};
pub use owner::{Owners, ShardId};
pub(crate) use post::OfferedChild;
