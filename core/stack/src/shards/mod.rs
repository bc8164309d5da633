//! Several stacks that are one host: shards, which [`Stack::shards`](crate::Stack::shards) makes.
//! Each has a thread, and owns what the keyed hash of a flow says
//! (`docs/decisions/0008-shards.md`). What a program sees of its sockets does not depend on how
//! many there are, nor on where packets arrive.
//!
//! ```text
//!  packet ─► subject: about what? ─► handing: whose? ─┬─ mine ──────► net, rx, sockets
//!                                                     └─ another's ─► post ─► its next turn
//! ```
//! Reading order: `owner` says which shard a flow belongs to, `subject` what a packet is about,
//! `handing` where it goes. `post` has the rings from shard to shard, and `bulletin` what the first
//! one says of neighbours. `common` is what all of them can look at; `announced` says what of a
//! socket the others know, and `shadows` how they know it. `children` are the connections for a
//! listener of another shard, `claims` those that are not with their owner. `member` is what a
//! stack has of all this, and has none of when it is alone.
//!
//! Nothing here is on the way of a packet of the own shard but its flow's hash, a read of which
//! shards a port is with, and for each batch, and each call of a program, a read of whether
//! anything has changed.

mod announced;
mod bulletin;
mod children;
mod claims;
mod common;
mod handing;
mod member;
mod owner;
mod post;
mod shadows;
mod subject;

pub(crate) use announced::Announced;
pub(crate) use common::Common;
pub(crate) use member::Member;
pub use owner::{Owners, ShardId};
pub(crate) use post::Child;
