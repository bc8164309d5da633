//! What all shards of a host can look at: which of them a port of UDP or an echo identifier is
//! with, and what has changed in the sockets that they all know of.
//!
//! Changes are few: listeners, ports that several shards have, connections that are not with their
//! owner. Each shard has a list of those that it has not seen, and looks at one word, once for each
//! batch of packets, whether there are any. A change is in the lists before the call that made it
//! returns, so that no packet that follows from it is judged without it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::bulletin::Bulletin;
use super::{Owners, ShardId};
use crate::bind_addr::Table;
use crate::flow::Flow;
use crate::host::{Family, ListenerNote, SocketId};
use crate::limits::CHANGES_UNSEEN_MAX;
use crate::net::IfaceId;
use crate::socket::{Bound, Settings};

/// Of all shards of a host.
#[derive(Debug)]
pub(crate) struct Common {
    pub owners: Owners,
    news: Box<[News]>,
    /// What the first shard said to each of the others.
    bulletins: Box<[Bulletin]>,
    udp: PortShards,
    echo: PortShards,
}

impl Common {
    pub fn new(owners: Owners) -> Arc<Self> {
        let news = (0..owners.count()).map(|_| News::default()).collect();
        let bulletins = (0..owners.count()).map(|_| Bulletin::default()).collect();
        Arc::new(Self { owners, news, bulletins, udp: PortShards::new(), echo: PortShards::new() })
    }

    /// What the first shard said to `shard`.
    #[inline]
    pub fn bulletin(&self, shard: ShardId) -> &Bulletin {
        &self.bulletins[shard.index()]
    }

    /// The shards that have sockets on a port of UDP, or an echo identifier.
    pub fn port_shards(&self, echo: bool) -> &PortShards {
        if echo { &self.echo } else { &self.udp }
    }

    /// Lets all shards but `by` know of a change.
    pub fn post(&self, by: ShardId, change: &Change) {
        for (n, news) in self.news.iter().enumerate() {
            if n != by.index() {
                news.post(change.clone());
            }
        }
    }

    /// The shards that have to be woken for changes, a bit each: as a rule none. They have not
    /// looked for long, or connections that wait there are to be reset.
    pub fn far_behind(&self) -> u16 {
        let far = |news: &News| {
            let unseen = news.unseen.load(Ordering::Relaxed);
            unseen >= CHANGES_UNSEEN_MAX || news.is_urgent.load(Ordering::Relaxed)
        };
        (0..).zip(&self.news).fold(0, |all, (n, news)| all | u16::from(far(news)) << n)
    }

    /// Whether a shard is among those of [`Self::far_behind`] for what waits there.
    #[inline]
    pub fn is_urgent(&self, shard: ShardId) -> bool {
        self.news[shard.index()].is_urgent.load(Ordering::Relaxed)
    }

    /// What has changed for `shard` since it saw `seen` changes.
    #[inline]
    pub fn changes(&self, shard: ShardId, seen: u64) -> Option<VecDeque<Change>> {
        let news = &self.news[shard.index()];
        // Acquire: who sees the number sees the list with it.
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
struct News {
    /// How many there were so far, as shows once they are in the list.
    posted: AtomicU64,
    /// How many are in the list.
    unseen: AtomicU32,
    /// A listener is gone that connections may wait for.
    is_urgent: AtomicBool,
    changes: Mutex<VecDeque<Change>>,
}

impl News {
    fn post(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = matches!(change, Change::Shadow { table: Table::Tcp, shadow: None, .. });
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
pub(crate) enum Change {
    /// What the others know of a socket, from now on; `None`: it is gone, or takes nothing any
    /// more.
    Shadow { table: Table, seat: u32, shadow: Option<Box<Shadow>> },
    /// A flow is with another shard than its owner; `None`: no more.
    Excepted { flow: Flow, shard: Option<ShardId> },
}

/// What a shard knows of a socket of another one.
#[derive(Debug, Clone)]
pub(crate) struct Shadow {
    pub shard: ShardId,
    pub id: SocketId,
    /// Its owner's number.
    pub user: u32,
    pub family: Family,
    pub bound: Bound,
    pub device: Option<IfaceId>,
    pub kind: ShadowKind,
}

/// What depends on the kind of the socket.
#[derive(Debug, Clone)]
pub(crate) enum ShadowKind {
    /// A listener, with the number of places left in its accept queue, which its shard alone
    /// writes.
    Listener { settings: Box<Settings>, room: Arc<AtomicU32>, note: ListenerNote },
    /// With its peer.
    Datagram { echo: bool, peer: Option<Flow> },
}

/// For each port the set of shards that have sockets on it, a bit each: changed under the lock that
/// says who holds the port, and read for every datagram.
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
