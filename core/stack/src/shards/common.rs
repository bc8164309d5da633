//! State that all shards of a host read: which shards have a port of UDP or an echo identifier, and
//! changes of commonly known sockets.
//!
//! Changes are few: listeners, ports that several shards have, connections that are not with their
//! owner. Each shard has a list of changes that it has not seen. A word, read once for each batch
//! of packets, says whether there are any. Calls that make a change return after all lists have it,
//! so no packet that follows from it is judged without it.

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

/// State common to all shards of a host.
#[derive(Debug)]
pub(crate) struct Common {
    pub owners: Owners,
    news: Box<[UnseenChanges]>,
    /// News of the first shard, for each shard.
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

    /// News of the first shard for `shard`.
    #[inline]
    pub fn update_queue(&self, shard: ShardId) -> &UpdateQueue {
        &self.bulletins[shard.index()]
    }

    /// The shards that have sockets on a port of UDP, or an echo identifier.
    pub fn port_shards(&self, echo: bool) -> &PortShards {
        if echo { &self.echo } else { &self.udp }
    }

    /// Lets all shards but `by` know of a change.
    pub fn post(&self, by: ShardId, change: &PeerChange) {
        for (n, news) in self.news.iter().enumerate() {
            if n != by.index() {
                news.post(change.clone());
            }
        }
    }

    /// Shards to wake for changes, a bit each; usually none. Each has too many unseen changes, or
    /// connections that wait to be reset.
    pub fn far_behind(&self) -> u16 {
        let far = |news: &UnseenChanges| {
            let unseen = news.unseen.load(Ordering::Relaxed);
            unseen >= CHANGES_UNSEEN_MAX || news.is_urgent.load(Ordering::Relaxed)
        };
        (0..).zip(&self.news).fold(0, |all, (n, news)| all | u16::from(far(news)) << n)
    }

    /// Whether a shard is among those of [`Self::far_behind`] for its waiting connections.
    #[inline]
    pub fn is_urgent(&self, shard: ShardId) -> bool {
        self.news[shard.index()].is_urgent.load(Ordering::Relaxed)
    }

    /// Changes for `shard` since it saw `seen` changes.
    #[inline]
    pub fn changes(&self, shard: ShardId, seen: u64) -> Option<VecDeque<PeerChange>> {
        let news = &self.news[shard.index()];
        // Acquire: a thread that sees the number sees the list with it.
        if news.posted.load(Ordering::Acquire) == seen {
            return None;
        }
        let mut changes = news.changes.lock().unwrap_or_else(PoisonError::into_inner);
        news.unseen.store(0, Ordering::Relaxed);
        news.is_urgent.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *changes))
    }
}

/// Changes that a shard has not seen, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct UnseenChanges {
    /// How many there were so far, as shows once they are in the list.
    posted: AtomicU64,
    /// How many are in the list.
    unseen: AtomicU32,
    /// A listener is gone that connections may wait for.
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

/// Something that every shard has to know.
#[derive(Debug, Clone)]
pub(crate) enum PeerChange {
    /// Properties of a socket for other shards; `None`: the socket is gone, or takes no packets any
    /// more.
    Shadow { table: PortProtocol, seat: u32, shadow: Option<Box<Shadow>> },
    /// A flow is with another shard than its owner; `None`: no more.
    Excepted { flow: Flow, shard: Option<ShardId> },
}

/// A socket of another shard, as this one knows it.
#[derive(Debug, Clone)]
pub(crate) struct Shadow {
    pub shard: ShardId,
    pub id: SocketId,
    /// Its owner's number.
    pub user: u32,
    pub family: Family,
    pub bound: BoundAddr,
    pub device: Option<IfaceId>,
    pub kind: ShadowKind,
}

/// Properties by the kind of the socket.
#[derive(Debug, Clone)]
pub(crate) enum ShadowKind {
    /// A listener, with the number of places left in its accept queue, which its shard alone
    /// writes.
    Listener { settings: Box<StreamSettings>, room: Arc<AtomicU32>, note: ListenerNote },
    /// With its peer.
    Datagram { echo: bool, peer: Option<Flow> },
}

/// Shards that have sockets on a port, a bit each. Changed under the lock of the port's holders,
/// and read for every datagram.
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
