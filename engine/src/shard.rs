//! The data path: a stack, its ports, its sockets and the rings of the programs that have them.
//!
//! A shard knows a process by its channel only. The registry knows which process may attach or
//! fork, and its descriptors; the two tell each other by [`mail`](crate::mail).
//!
//! Its parts know of each other in one direction: each one calls those above it in this list, and
//! gets them as arguments. [`turn`] alone sees all of them.
//!
//! | part | what it has |
//! |---|---|
//! | [`peers`] | the other shards of the engine |
//! | [`net`] | the stack, its ports, and the descriptors that wake the shard |
//! | [`sockets`] | the slots that programs see, and the host of the stack; `options` of a socket |
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
