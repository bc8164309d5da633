//! The other shards of the engine: wakes them, and defines the messages that shards exchange.

pub(crate) mod message;
pub(crate) mod place;

use std::sync::Arc;

use towpath_shm::Fd;

use crate::shard::peers::place::PeerShard;

/// The other shards of the engine.
#[derive(Debug, Default)]
pub(crate) struct ShardPeers {
    /// Peers by number; `None` for this shard. Empty if the engine has one shard.
    pub list: Vec<Option<PeerShard>>,
    /// Notification that peers send to this shard.
    pub bell: Option<Arc<Fd>>,
}

impl ShardPeers {
    /// Wakes sleeping peers whose bits are set.
    pub(crate) fn wake_shards(&self, shards: u16) {
        for (n, peer) in self.list.iter().enumerate() {
            if let Some(peer) = peer.as_ref().filter(|_| shards & 1 << n != 0) {
                peer.wake();
            }
        }
    }
}
