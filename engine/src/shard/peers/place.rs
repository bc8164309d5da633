//! Position of a shard among those of its engine, and the notification of peers.

use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_ring::{Rung, Status, ring_engine};
use towpath_shm::Fd;
use towpath_shm::layout::{SHARDS_MAX, shard_of};
use towpath_stack::ShardId;

/// A shard's number, and the number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardPlace {
    pub number: u32,
    pub of: u32,
}

impl ShardPlace {
    /// Returns the bit of this shard.
    pub fn own(self) -> u16 {
        1 << self.number
    }

    /// Returns the id of this shard in its stack.
    pub fn id(self) -> ShardId {
        ShardId(self.number as u8)
    }

    /// Iterates over the shards whose bits are set.
    pub fn shards_of(self, bits: u16) -> impl Iterator<Item = ShardId> {
        let shards = (0..self.of).filter(move |shard| bits & 1 << shard != 0);
        shards.map(|shard| ShardId(shard as u8))
    }

    /// Returns the bits of all shards.
    pub fn all(self) -> u16 {
        u16::MAX >> (SHARDS_MAX - self.of)
    }

    /// Returns the shard of a slot, or `None` if it is this one.
    pub fn elsewhere(self, slot: u32) -> Option<ShardId> {
        let shard = shard_of(slot, self.of);
        (shard != self.number).then_some(ShardId(shard as u8))
    }
}

/// A peer shard and its notification.
#[derive(Debug)]
pub(crate) struct PeerShard {
    /// The peer's status page, which tells whether it sleeps.
    status: Status,
    rung: Rung,
    bell: Arc<Fd>,
}

impl PeerShard {
    /// Creates the peer that publishes `status` and polls `bell`.
    pub fn new(status: Status, bell: Arc<Fd>) -> Self {
        Self { status, rung: Rung::default(), bell }
    }

    /// Wakes the peer if it sleeps. Data for it must be published before.
    pub fn wake(&self) {
        ring_engine(&self.status, &self.rung, self.bell.as_fd());
    }
}
