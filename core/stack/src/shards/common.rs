//! State that all shards of a host read: the shards that use each UDP port and echo identifier, and
//! changes of announced sockets.
//!
//! Changes are rare: they concern listeners, ports that several shards use, and flows that are not
//! in the shard that owns them. Each shard has a list of the changes that it has not applied yet.
//! The shard reads a counter once per batch of packets to detect new changes. A call that makes a
//! change returns only after all lists contain it. Packets that result from the call are therefore
//! handled after the change was applied.

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
    /// Queues of updates from the first shard, one for each receiving shard.
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

    /// Returns the queue of updates from the first shard to `shard`.
    #[inline]
    pub fn update_queue(&self, shard: ShardId) -> &UpdateQueue {
        &self.bulletins[shard.index()]
    }

    /// Returns the sets of shards with sockets on each UDP port, or on each echo identifier if
    /// `echo` is true.
    pub fn port_shards(&self, echo: bool) -> &PortShards {
        if echo { &self.echo } else { &self.udp }
    }

    /// Adds a change to the lists of all shards except `by`, which makes the change.
    pub fn post(&self, by: ShardId, change: &PeerChange) {
        for (n, news) in self.news.iter().enumerate() {
            if n != by.index() {
                news.post(change.clone());
            }
        }
    }

    /// Returns the set of shards that must be woken; it is usually empty. A shard must be woken if
    /// it has too many changes to apply, or has connections that must be reset.
    pub fn far_behind(&self) -> u16 {
        let far = |news: &UnseenChanges| {
            let unseen = news.unseen.load(Ordering::Relaxed);
            unseen >= CHANGES_UNSEEN_MAX || news.is_urgent.load(Ordering::Relaxed)
        };
        (0..).zip(&self.news).fold(0, |all, (n, news)| all | u16::from(far(news)) << n)
    }

    /// Returns whether [`Self::far_behind`] contains the shard because it has connections that must
    /// be reset.
    #[inline]
    pub fn is_urgent(&self, shard: ShardId) -> bool {
        self.news[shard.index()].is_urgent.load(Ordering::Relaxed)
    }

    /// Returns the changes for `shard` after the first `seen` changes; `None` if there are no more.
    #[inline]
    pub fn changes(&self, shard: ShardId, seen: u64) -> Option<VecDeque<PeerChange>> {
        let news = &self.news[shard.index()];
        // Use Acquire, so that a thread that reads the number also sees the changes in the list.
        if news.posted.load(Ordering::Acquire) == seen {
            return None;
        }
        let mut changes = news.changes.lock().unwrap_or_else(PoisonError::into_inner);
        news.unseen.store(0, Ordering::Relaxed);
        news.is_urgent.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *changes))
    }
}

/// Changes that were posted to one shard (stack) and that it has not applied yet. The alignment
/// ensures that the entries of two shards are in different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct UnseenChanges {
    /// Number of changes that were posted so far. The number is incremented after a change was
    /// added to the list.
    posted: AtomicU64,
    /// Number of changes in the list that the shard (stack) has not read yet.
    unseen: AtomicU32,
    /// Whether a listener was closed for which this shard may have waiting connections.
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

/// Change of a socket or flow that every shard (stack) of the host must apply.
#[derive(Debug, Clone)]
pub(crate) enum PeerChange {
    /// A socket of another shard has new properties. `None` if the socket was closed, or no longer
    /// receives packets.
    Shadow { table: PortProtocol, seat: u32, shadow: Option<Box<Shadow>> },
    /// A flow is now in the shard `shard`, which does not own it. `None` if the flow was returned
    /// to its owner.
    Excepted { flow: Flow, shard: Option<ShardId> },
}

/// Properties of a socket that its shard (stack) announces to the other shards.
#[derive(Debug, Clone)]
pub(crate) struct Shadow {
    pub shard: ShardId,
    pub id: SocketId,
    /// Number that the owner of the stack assigned to the socket.
    pub user: u32,
    pub family: Family,
    pub bound: BoundAddr,
    pub device: Option<IfaceId>,
    pub kind: ShadowKind,
}

/// Properties of an announced socket that depend on its kind.
#[derive(Debug, Clone)]
pub(crate) enum ShadowKind {
    /// A listener. `room` is the number of free places in its accept queue. All shards read this
    /// number, but only the listener's shard writes it.
    Listener { settings: Box<StreamSettings>, room: Arc<AtomicU32>, note: ListenerNote },
    /// A datagram socket. `peer` contains its addresses and ports if it is connected.
    Datagram { echo: bool, peer: Option<Flow> },
}

/// For each port, the set of shards (stacks) that have sockets on it, as bits. A set is changed
/// under the lock of the table of bound sockets, and read for every datagram.
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
