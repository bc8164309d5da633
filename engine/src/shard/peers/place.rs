//! The number of a shard within its engine, and how peer shards are woken.

use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_ring::{Rung, Status, ring_engine};
use towpath_shm::Fd;
use towpath_shm::layout::{SHARDS_MAX, shard_of};
use towpath_stack::ShardId;

/// The number of a shard, and how many shards the engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardPlace {
    pub number: u32,
    pub of: u32,
}

impl ShardPlace {
    /// Returns a bit set of shards that contains only this one.
    pub fn own(self) -> u16 {
        1 << self.number
    }

    /// Returns the ID of this shard (event loop) in the network stack.
    pub fn id(self) -> ShardId {
        ShardId(self.number as u8)
    }

    /// Returns the IDs of the shards in a bit set.
    pub fn shards_of(self, bits: u16) -> impl Iterator<Item = ShardId> {
        let shards = (0..self.of).filter(move |shard| bits & 1 << shard != 0);
        shards.map(|shard| ShardId(shard as u8))
    }

    /// Returns a bit set of all shards.
    pub fn all(self) -> u16 {
        u16::MAX >> (SHARDS_MAX - self.of)
    }

    /// Returns the shard that owns a slot; `None` if it is this shard (event loop).
    pub fn elsewhere(self, slot: u32) -> Option<ShardId> {
        let shard = shard_of(slot, self.of);
        (shard != self.number).then_some(ShardId(shard as u8))
    }
}

/// A peer shard (event loop), with the means to wake it.
#[derive(Debug)]
pub(crate) struct PeerShard {
    /// Status page of the peer in shared memory, which tells whether the peer sleeps.
    status: Status,
    rung: Rung,
    bell: Arc<Fd>,
}

impl PeerShard {
    /// Creates a peer shard (event loop) from its status page and its notification descriptor.
    pub fn new(status: Status, bell: Arc<Fd>) -> Self {
        Self { status, rung: Rung::default(), bell }
    }

    /// Wakes the peer shard (event loop) if it sleeps. Publish data for it before this call.
    pub fn wake(&self) {
        ring_engine(&self.status, &self.rung, self.bell.as_fd());
    }
}
