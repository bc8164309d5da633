//! The other shards of the engine: which there are, how they are woken, and what they tell each
//! other.

pub(crate) mod message;
pub(crate) mod place;

use std::sync::Arc;

use towpath_shm::Fd;

use crate::shard::peers::place::PeerShard;

/// The other shards of the engine.
#[derive(Debug, Default)]
pub(crate) struct ShardPeers {
    /// Peers by number; `None` for this shard. Empty when it is alone.
    pub list: Vec<Option<PeerShard>>,
    /// Notification that the other shards send.
    pub bell: Option<Arc<Fd>>,
}

impl ShardPeers {
    /// Wakes those of the shards that sleep, a bit each.
    pub(crate) fn wake_shards(&self, shards: u16) {
        for (n, peer) in self.list.iter().enumerate() {
            if let Some(peer) = peer.as_ref().filter(|_| shards & 1 << n != 0) {
                peer.wake();
            }
        }
    }
}
