//! Listening sockets, and their shadows in other shards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use towpath_tcp::Instant;

use crate::host::{Elsewhere, ListenerName, ListenerNote, SocketId};
use crate::settings::StreamSettings;
use crate::shards::{OfferedChild, ShardId};
use crate::tables::slab::List;

/// State of a listening socket.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub settings: StreamSettings,
    pub backlog: u32,
    /// Number of connections in the accept queue.
    pub waiting: u32,
    /// Half-open connections with a reserved place in the queue, because their peers are in this
    /// process ([`InterfaceConfig::in_process`](crate::net::InterfaceConfig::in_process)). SYNs
    /// from other links reserve no place. Otherwise a flood of SYNs would reserve all.
    pub promised: u32,
    /// Children created by Fast Open whose handshake is in progress, or was reset recently.
    pub fast_opening: u32,
    /// Half-open connections, oldest first.
    pub half_open: List,
    /// Time until which SYN cookies are accepted, and segments without a connection are not
    /// answered with a reset. The listener sent cookies recently, or replaced half-open
    /// connections, and such segments may come from their clients. Each cookie and each replacement
    /// extends the time, for as long as a flood lasts.
    pub lenient_until: Instant,
    /// State shared with peer shards; `None` without peers.
    pub among: Option<Box<AmongShards>>,
}

impl ListeningSocket {
    /// Creates a listener without connections.
    pub fn new(settings: StreamSettings, backlog: u32) -> Self {
        Self {
            settings,
            backlog,
            waiting: 0,
            promised: 0,
            fast_opening: 0,
            half_open: List::default(),
            lenient_until: Instant::ZERO,
            among: None,
        }
    }

    /// Returns whether the queue is full. As on Linux the queue holds one child more than the
    /// backlog.
    pub fn is_full(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, unqueued, .. }) => {
                room.load(Ordering::Relaxed) == 0 || !unqueued.is_empty()
            }
            _ => self.room() == 0,
        }
    }

    /// Returns the number of free places in the queue of this shard.
    pub fn room(&self) -> u32 {
        let taken = self.waiting.saturating_add(self.promised);
        self.backlog.saturating_add(1).saturating_sub(taken)
    }

    /// Returns whether a place may be reserved for a half-open connection. Two shadows may reserve
    /// the same place, or one that a connection in transit takes. The later connection then waits
    /// at its shadow.
    pub fn may_promise(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, .. }) => {
                !self.is_full() && self.promised < room.load(Ordering::Relaxed)
            }
            _ => !self.is_full(),
        }
    }

    /// Returns whether there is no place for a connection whose handshake is complete.
    pub fn turns_away(&self, has_place: bool) -> bool {
        match (has_place, self.among.as_deref()) {
            (false, _) => self.is_full(),
            (true, Some(AmongShards::Shadow { .. })) => false,
            // The program may have reduced the backlog since.
            (true, _) => self.waiting > self.backlog,
        }
    }

    /// Returns the original listener of a shadow; its owner's number for it is `user`.
    pub fn elsewhere(&self, user: u32) -> Option<Elsewhere> {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { shard, id, note, .. }) => {
                Some(Elsewhere { user, note: *note, name: ListenerName { shard: *shard, id: *id } })
            }
            _ => None,
        }
    }

    /// Publishes the number of free places in the queue to other shards, after a change.
    pub fn publish(&self) {
        if let Some(AmongShards::Original { room, .. }) = self.among.as_deref() {
            room.store(self.room(), Ordering::Relaxed);
        }
    }

    /// Returns the next shard whose offer was rejected, if the queue has room again. Shards take
    /// turns, so that none waits forever.
    pub fn next_turned_away(&mut self) -> Option<ShardId> {
        let is_full = self.is_full();
        let Some(AmongShards::Original { turned_away, told_last, .. }) = self.among.as_deref_mut()
        else {
            return None;
        };
        if is_full || *turned_away == 0 {
            return None;
        }
        let behind =
            *turned_away & u16::MAX.checked_shl(told_last.0.into()).map_or(0, |it| it << 1);
        let next = if behind != 0 { behind } else { *turned_away };
        let shard = ShardId(next.trailing_zeros() as u8);
        *turned_away &= !(1 << shard.0);
        *told_last = shard;
        Some(shard)
    }
}

/// A listener of a host with several shards.
#[derive(Debug)]
pub(crate) enum AmongShards {
    /// The listener itself, which has the accept queue.
    Original {
        /// Number of free places in the queue, read by peer shards.
        room: Arc<AtomicU32>,
        /// Shards with children that found no place, as a bit set.
        turned_away: u16,
        /// Shard that was last notified of a free place.
        told_last: ShardId,
        /// Opaque data of the listener's owner, for peer shards.
        note: ListenerNote,
    },
    /// Shadow of a listener of another shard, for which this shard creates connections.
    Shadow {
        /// Shard of the listener.
        shard: ShardId,
        /// Id of the listener in its shard.
        id: SocketId,
        room: Arc<AtomicU32>,
        /// Opaque data of the listener's owner.
        note: ListenerNote,
        /// Established children that found no place, oldest first.
        unqueued: VecDeque<OfferedChild>,
    },
}
