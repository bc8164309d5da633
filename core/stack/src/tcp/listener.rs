//! Listening sockets, and the table entries that represent them in other shards (stacks).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use towpath_tcp::Instant;

use crate::host::{Elsewhere, ListenerName, ListenerNote, SocketId};
use crate::settings::StreamSettings;
use crate::shards::{OfferedChild, ShardId};
use crate::tables::slab::List;

/// State of a listening socket, or of a listening socket in another shard.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub settings: StreamSettings,
    pub backlog: u32,
    /// Number of connections in the accept queue.
    pub waiting: u32,
    /// Number of half-open connections with a reserved place in the accept queue. Places are
    /// reserved only for peers in the same process
    /// ([`InterfaceConfig::in_process`](crate::net::InterfaceConfig::in_process)). Otherwise a
    /// flood of SYNs could reserve all places.
    pub promised: u32,
    /// Number of Fast Open connections whose handshake is in progress, or was recently reset.
    pub fast_opening: u32,
    /// Half-open connections of the listener, oldest first.
    pub half_open: List,
    /// Time until which SYN cookies are accepted, and segments without a connection are not
    /// answered by a reset. The time is set when the listener sends a SYN cookie or evicts a
    /// half-open connection, because such segments may be from the affected clients. During a flood
    /// of SYNs, the time is extended again and again.
    pub lenient_until: Instant,
    /// State that the listener shares with other shards (stacks); `None` if there are no other
    /// shards.
    pub among: Option<Box<AmongShards>>,
}

impl ListeningSocket {
    /// Creates a listener that has no connections.
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

    /// Returns whether the accept queue is full. As on Linux, the queue holds one connection more
    /// than the backlog.
    pub fn is_full(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, unqueued, .. }) => {
                room.load(Ordering::Relaxed) == 0 || !unqueued.is_empty()
            }
            _ => self.room() == 0,
        }
    }

    /// Returns the number of free places in the accept queue, if the queue is in this shard.
    pub fn room(&self) -> u32 {
        let taken = self.waiting.saturating_add(self.promised);
        self.backlog.saturating_add(1).saturating_sub(taken)
    }

    /// Returns whether a place in the accept queue may be reserved for a half-open connection. Two
    /// shards may reserve the same place, or a place that a connection in transit between shards
    /// takes. The later connection then waits in its shard.
    pub fn may_promise(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, .. }) => {
                !self.is_full() && self.promised < room.load(Ordering::Relaxed)
            }
            _ => !self.is_full(),
        }
    }

    /// Returns whether a connection must be rejected at the end of its handshake, because the
    /// accept queue has no place for it. `has_place` states whether a place was reserved.
    pub fn turns_away(&self, has_place: bool) -> bool {
        match (has_place, self.among.as_deref()) {
            (false, _) => self.is_full(),
            (true, Some(AmongShards::Shadow { .. })) => false,
            // A place was reserved, but the program may have reduced the backlog since then.
            (true, _) => self.waiting > self.backlog,
        }
    }

    /// Returns the listener in another shard that this entry represents. `user` is the number that
    /// the listener's owner assigned to it.
    pub fn elsewhere(&self, user: u32) -> Option<Elsewhere> {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { shard, id, note, .. }) => {
                Some(Elsewhere { user, note: *note, name: ListenerName { shard: *shard, id: *id } })
            }
            _ => None,
        }
    }

    /// Publishes the number of free places in the accept queue to the other shards. Called after
    /// each change.
    pub fn publish(&self) {
        if let Some(AmongShards::Original { room, .. }) = self.among.as_deref() {
            room.store(self.room(), Ordering::Relaxed);
        }
    }

    /// Returns the next shard whose offer of a connection was rejected, if the accept queue has a
    /// free place again. Shards are selected in round-robin order, so that none of them waits
    /// forever.
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

/// Listener of a host with several shards, as seen by one shard.
#[derive(Debug)]
pub(crate) enum AmongShards {
    /// The listener is in this shard, and its accept queue as well.
    Original {
        /// Number of free places in the accept queue, which the other shards read.
        room: Arc<AtomicU32>,
        /// Bit set of the shards whose offers of connections were rejected, because the accept
        /// queue had no free place.
        turned_away: u16,
        /// Shard that was last notified that a place in the accept queue is free.
        told_last: ShardId,
        /// Data that the owner attached to the listener. The data is copied to the other shards.
        note: ListenerNote,
    },
    /// The entry represents a listener of another shard, for which this shard accepts connections.
    Shadow {
        /// Shard in which the listener is.
        shard: ShardId,
        /// Identifier of the listener in its own shard.
        id: SocketId,
        room: Arc<AtomicU32>,
        /// Data that the owner attached to the listener.
        note: ListenerNote,
        /// Established connections that wait for a free place in the accept queue, oldest first.
        unqueued: VecDeque<OfferedChild>,
    },
}
