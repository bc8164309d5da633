//! Wakes the other shards (event loops) of the engine, and defines the messages that shards
//! exchange.

pub(crate) mod message;
pub(crate) mod place;

use std::sync::Arc;

use towpath_shm::Fd;

use crate::shard::peers::place::PeerShard;

/// The other shards of the same engine.
#[derive(Debug, Default)]
pub(crate) struct ShardPeers {
    /// Peer shards (event loops) by number. The entry of this shard is `None`. Empty if the engine
    /// has only one shard.
    pub list: Vec<Option<PeerShard>>,
    /// Eventfd by which peer shards (event loops) notify this shard. `None` if the engine has only
    /// one shard.
    pub bell: Option<Arc<Fd>>,
}

impl ShardPeers {
    /// Wakes the sleeping peers among `shards`, a bit set of shard numbers.
    pub(crate) fn wake_shards(&self, shards: u16) {
        for (n, peer) in self.list.iter().enumerate() {
            if let Some(peer) = peer.as_ref().filter(|_| shards & 1 << n != 0) {
                peer.wake();
            }
        }
    }
}
