//! State that all shards of a host read: the shards that use each UDP port and echo identifier, and
//! changes of announced sockets.
//!
//! Changes are rare: listeners, ports shared by several shards, and flows that their owner does not
//! have. Each shard has a list of changes that it has not seen. A counter, read once per batch of
//! packets, tells whether there are any. A call that makes a change returns only after all lists
//! contain it. Packets that result from the call are therefore handled with the change.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::update_queue::UpdateQueue;
use super::{Owners, ShardId};
use crate::host::{Family, ListenerNote, SocketId};
use crate::limits::CHANGES_UNSEEN_MAX;
use crate::net::IfaceId;
use crate::ports::bind_addr::PortProtocol;
use crate::settings::StreamSettings;
use crate::socket::BoundAddr;
use crate::tables::flow::Flow;

/// State shared by all shards of a host.
#[derive(Debug)]
pub(crate) struct Common {
    pub owners: Owners,
    news: Box<[UnseenChanges]>,
    /// Updates from the first shard, by receiving shard.
    bulletins: Box<[UpdateQueue]>,
    udp: PortShards,
    echo: PortShards,
}

impl Common {
    pub fn new(owners: Owners) -> Arc<Self> {
        let news = (0..owners.count()).map(|_| UnseenChanges::default()).collect();
        let bulletins = (0..owners.count()).map(|_| UpdateQueue::default()).collect();
        Arc::new(Self { owners, news, bulletins, udp: PortShards::new(), echo: PortShards::new() })
    }

    /// Returns the updates from the first shard for `shard`.
    #[inline]
    pub fn update_queue(&self, shard: ShardId) -> &UpdateQueue {
        &self.bulletins[shard.index()]
    }

    /// Returns the shards with sockets, by UDP port or echo identifier.
    pub fn port_shards(&self, echo: bool) -> &PortShards {
        if echo { &self.echo } else { &self.udp }
    }

    /// Posts a change to all shards except `by`.
    pub fn post(&self, by: ShardId, change: &PeerChange) {
        for (n, news) in self.news.iter().enumerate() {
            if n != by.index() {
                news.post(change.clone());
            }
        }
    }

    /// Returns the shards to wake for changes, as a bit set; usually empty. Each has too many
    /// unseen changes, or connections that wait for a reset.
    pub fn far_behind(&self) -> u16 {
        let far = |news: &UnseenChanges| {
            let unseen = news.unseen.load(Ordering::Relaxed);
            unseen >= CHANGES_UNSEEN_MAX || news.is_urgent.load(Ordering::Relaxed)
        };
        (0..).zip(&self.news).fold(0, |all, (n, news)| all | u16::from(far(news)) << n)
    }

    /// Returns whether [`Self::far_behind`] contains a shard because of connections that wait.
    #[inline]
    pub fn is_urgent(&self, shard: ShardId) -> bool {
        self.news[shard.index()].is_urgent.load(Ordering::Relaxed)
    }

    /// Returns the changes for `shard` after the first `seen` changes.
    #[inline]
    pub fn changes(&self, shard: ShardId, seen: u64) -> Option<VecDeque<PeerChange>> {
        let news = &self.news[shard.index()];
        // Acquire: a thread that sees the number also sees the list.
        if news.posted.load(Ordering::Acquire) == seen {
            return None;
        }
        let mut changes = news.changes.lock().unwrap_or_else(PoisonError::into_inner);
        news.unseen.store(0, Ordering::Relaxed);
        news.is_urgent.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *changes))
    }
}

/// Changes posted to one shard that it has not taken. Aligned so that the entries of two shards
/// share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct UnseenChanges {
    /// Number of changes posted so far; incremented after a change was added to the list.
    posted: AtomicU64,
    /// Number of changes in the list that the shard has not taken.
    unseen: AtomicU32,
    /// A listener with possibly waiting connections is gone.
    is_urgent: AtomicBool,
    changes: Mutex<VecDeque<PeerChange>>,
}

impl UnseenChanges {
    fn post(&self, change: PeerChange) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let ends =
            matches!(change, PeerChange::Shadow { table: PortProtocol::Tcp, shadow: None, .. });
        changes.push_back(change);
        if ends {
            self.is_urgent.store(true, Ordering::Relaxed);
        }
        self.unseen.fetch_add(1, Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Release);
    }
}

/// Change of a shared socket or flow, which every shard must process.
#[derive(Debug, Clone)]
pub(crate) enum PeerChange {
    /// Properties of a socket for other shards; `None`: the socket is gone, or no longer receives
    /// packets.
    Shadow { table: PortProtocol, seat: u32, shadow: Option<Box<Shadow>> },
    /// A shard that is not the owner of the flow has the flow; `None`: the owner has it again.
    Excepted { flow: Flow, shard: Option<ShardId> },
}

/// A socket of another shard, as announced to this one.
#[derive(Debug, Clone)]
pub(crate) struct Shadow {
    pub shard: ShardId,
    pub id: SocketId,
    /// Number that the owner assigned to the socket.
    pub user: u32,
    pub family: Family,
    pub bound: BoundAddr,
    pub device: Option<IfaceId>,
    pub kind: ShadowKind,
}

/// Properties that depend on the kind of the socket.
#[derive(Debug, Clone)]
pub(crate) enum ShadowKind {
    /// A listener. `room` is the number of free places in its accept queue, written only by its
    /// shard.
    Listener { settings: Box<StreamSettings>, room: Arc<AtomicU32>, note: ListenerNote },
    /// A datagram socket, with its peer if it is connected.
    Datagram { echo: bool, peer: Option<Flow> },
}

/// Shards that have sockets on each port, as bit sets. Changed under the lock of the port's
/// holders, and read for every datagram.
#[derive(Debug)]
pub(crate) struct PortShards(Box<[AtomicU16]>);

impl PortShards {
    fn new() -> Self {
        Self((0..=u16::MAX).map(|_| AtomicU16::new(0)).collect())
    }

    #[inline]
    pub fn get(&self, port: u16) -> u16 {
        self.0[usize::from(port)].load(Ordering::Relaxed)
    }

    pub fn set(&self, port: u16, shards: u16) {
        self.0[usize::from(port)].store(shards, Ordering::Relaxed);
    }
}
