//! Several stacks that are one host: shards. Each has a thread, and owns what the keyed hash of a flow says
//! (`docs/decisions/0008-shards.md`).
//!
//! `owner` says which shard a flow belongs to.

mod owner;

pub use owner::{Owners, ShardId};
