//! Several stacks that are one host: shards, made by [`Stack::shards`](crate::Stack::shards). Each
//! has a thread, and owns the flows that a keyed hash gives it (`docs/decisions/0008-shards.md`).
//! Programs see the same whatever the number of shards, and wherever packets arrive.
//!
//! ```text
//!  packet ─► subject: about what? ─► handing: whose? ─┬─ mine ──────► net, rx, sockets
//!                                                     └─ another's ─► post ─► its next turn
//! ```
//!
//! Reading order: `owner` maps a flow to its shard, `subject` reads the flow from a packet,
//! `handing` passes packets on. `post` has the rings from shard to shard, and `bulletin` the
//! updates of neighbours from the first one. `common` is state that all shards read. `announced`
//! lists sockets that other shards know, and `shadows` stand for them there. `children` are
//! connections for a listener of another shard. `claims` are connections whose flow belongs to
//! another shard than their socket. `member` is a stack's state as a shard; a single stack has
//! none.
//!
//! Costs for a packet of the own shard: the hash of its flow, and for UDP a read of the shards that
//! have its port. Each batch, and each call of a program, reads words that say whether anything has
//! changed.

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
