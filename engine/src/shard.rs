//! A shard, one event loop of the data path: a stack, its ports, its sockets, and the rings of the
//! programs that use them.
//!
//! A shard identifies a process by the ID of its channel (connection to the engine). The registry
//! decides which processes may attach or fork, and owns their descriptors. Shards and registry
//! exchange messages by [`mail`](crate::mail).
//!
//! The parts depend on each other in one direction: each part uses those above it in the list,
//! which it gets as arguments. [`turn`] calls all of them.
//!
//! | part | contents |
//! |---|---|
//! | [`peers`] | the other shards of the engine |
//! | [`net`] | the stack, its ports, and the descriptors that wake the shard |
//! | [`sockets`] | the slots that programs see, the stack's `Host`, and socket options |
//! | [`processes`] | channels, and which process holds which socket |
//! | [`requests`] | commands and requests of programs, and queries of other threads |
//! | [`sleep`] | when the shard sleeps |

pub(crate) mod net;
pub(crate) mod peers;
pub(crate) mod processes;
pub(crate) mod requests;
pub(crate) mod sleep;
pub(crate) mod sockets;
#[cfg(test)]
mod steps;
pub(crate) mod turn;

pub use self::net::observers::DroppedPacket;
pub(crate) use self::turn::Shard;
