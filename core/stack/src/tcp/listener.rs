//! A listening socket, and its stand-ins in other shards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use towpath_tcp::Instant;

use crate::host::{Elsewhere, ListenerName, ListenerNote, SocketId};
use crate::settings::StreamSettings;
use crate::shards::{OfferedChild, ShardId};
use crate::tables::slab::List;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub settings: StreamSettings,
    pub backlog: u32,
    /// Children that the program has not taken.
    pub waiting: u32,
    /// Half-open connections that have a place in the queue already, because their peers are in
    /// this process ([`InterfaceConfig::in_process`](crate::net::InterfaceConfig::in_process)).
    /// Over other links a SYN takes none: otherwise a flood of SYNs would take all.
    pub promised: u32,
    /// Children by Fast Open whose handshake is under way, or was reset not long ago.
    pub fast_opening: u32,
    /// Its half-open connections, oldest first.
    pub half_open: List,
    /// Time until when segments without a connection get no reset, as half-open connections were
    /// displaced lately, and the segments may be from their clients. Each displacement renews it,
    /// for as long as a flood goes on.
    pub lenient_until: Instant,
    /// State among several shards.
    pub among: Option<Box<AmongShards>>,
}

impl ListeningSocket {
    /// A listener without connections.
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

    /// Whether no place is left in the queue. As on Linux the queue holds one more than the
    /// backlog.
    pub fn is_full(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, unqueued, .. }) => {
                room.load(Ordering::Relaxed) == 0 || !unqueued.is_empty()
            }
            _ => self.room() == 0,
        }
    }

    /// Places that are left in the queue of this shard.
    pub fn room(&self) -> u32 {
        let taken = self.waiting.saturating_add(self.promised);
        self.backlog.saturating_add(1).saturating_sub(taken)
    }

    /// Whether a half-open connection may be promised a place. Two shadows may promise the same
    /// one, or one that a connection on its way takes. The connection that comes too late waits
    /// at its shadow.
    pub fn may_promise(&self) -> bool {
        match self.among.as_deref() {
            Some(AmongShards::Shadow { room, .. }) => {
                !self.is_full() && self.promised < room.load(Ordering::Relaxed)
            }
            _ => !self.is_full(),
        }
    }

    /// Whether there is no place for a connection whose handshake ends.
    pub fn turns_away(&self, has_place: bool) -> bool {
        match (has_place, self.among.as_deref()) {
            (false, _) => self.is_full(),
            (true, Some(AmongShards::Shadow { .. })) => false,
            // The program may have made the queue shorter meanwhile.
            (true, _) => self.waiting > self.backlog,
        }
    }

    /// The listener that it is the shadow of, whose owner calls it `user`.
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

    /// Takes the next shard that was turned away, if the queue has room again. Shards take turns,
    /// so that none waits for ever.
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
    /// The socket itself, which has the accept queue.
    Original {
        /// Places left in the queue, which peer shards read.
        room: Arc<AtomicU32>,
        /// Shards that have children for which there was no place, a bit each.
        turned_away: u16,
        /// Shard that was notified last of a free place.
        told_last: ShardId,
        /// Data of its owner for peer shards.
        note: ListenerNote,
    },
    /// Stand-in for a listener of another shard, which makes connections for that.
    Shadow {
        /// Where the socket is.
        shard: ShardId,
        /// Its name there.
        id: SocketId,
        room: Arc<AtomicU32>,
        /// Data of its owner.
        note: ListenerNote,
        /// Established children for which there was no place, the oldest first.
        unqueued: VecDeque<OfferedChild>,
    },
}
