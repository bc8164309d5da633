//! Access of a stack to the control part of its host. A single stack owns control. Several shards
//! share it behind a lock, and the first shard runs it. Control packets, reports about next hops,
//! and timers are processed there alone, so that each neighbour is solicited once.
//!
//! Peer shards detect a new snapshot by a counter, which they read once for each batch of packets.
//! If another thread has the snapshot's lock then, the batch uses the previous snapshot, because
//! packets must not wait for a call on another thread.
//!
//! Packets of connections and sockets never take the lock of control. The first shard takes it when
//! control has input or due work. Peer shards take it to list neighbours and routes, and to join or
//! leave a group. A join must be in force in all shards before the call returns.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use towpath_tcp::Instant;

use super::control::Control;
use super::snapshot::Snapshot;

/// Access of a stack to the control part of its host.
#[derive(Debug)]
pub(super) enum ControlAccess {
    /// The stack is the host's only one, and owns control.
    Alone(Box<Control>),
    /// First of several shards, which runs control.
    First(Arc<Shared>),
    /// A shard other than the first. The first shard runs control.
    Other(Arc<Shared>),
}

impl ControlAccess {
    /// Calls `question` with the control part; takes the lock if there are several shards.
    pub(super) fn ask<R>(&self, question: impl FnOnce(&Control) -> R) -> R {
        match self {
            Self::Alone(control) => question(control),
            Self::First(shared) | Self::Other(shared) => question(&lock(&shared.control)),
        }
    }

    /// Returns the current snapshot.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        match self {
            Self::Alone(control) => Arc::clone(control.snapshot()),
            Self::First(shared) | Self::Other(shared) => shared.snapshot(),
        }
    }
}

/// Control part, shared by the shards of a host.
#[derive(Debug)]
pub(super) struct Shared {
    control: Mutex<Control>,
    /// Current snapshot.
    snapshot: Mutex<Arc<Snapshot>>,
    /// Next deadline of control in ns; 0 if it has commands for the data parts.
    due: AtomicU64,
    /// Number of times that another shard made the deadline earlier.
    hurries: AtomicU64,
    seen_by_all: Line,
}

/// Values that all shards read for each batch and before they sleep. The values change only with a
/// snapshot. Aligned to separate cache lines from locks and deadlines, so that writes to those do
/// not evict this line.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// Number of snapshots; incremented after the new snapshot was stored.
    snapshots: AtomicU64,
    /// Routes generation of the current snapshot.
    routes: AtomicU64,
    /// Number of interfaces in the current snapshot.
    links: AtomicUsize,
}

impl Shared {
    pub(super) fn new(control: Control) -> Self {
        let routes = AtomicU64::new(control.snapshot().generation);
        let links = AtomicUsize::new(control.snapshot().host.links.len());
        Self {
            snapshot: Mutex::new(Arc::clone(control.snapshot())),
            due: AtomicU64::new(control.next_timeout().0),
            hurries: AtomicU64::new(0),
            seen_by_all: Line { snapshots: AtomicU64::new(1), routes, links },
            control: Mutex::new(control),
        }
    }

    /// Calls `work` with control under the lock. All shards see a new snapshot before the lock is
    /// released.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Control) -> R) -> R {
        self.with_control(work).0
    }

    /// Like [`Shared::with`], for a shard other than the first. Also returns whether the deadline
    /// of control became earlier; if so, [`Shared::hurries`] tells the first shard.
    pub(super) fn with_from_other<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let (result, sooner) = self.with_control(work);
        if sooner {
            // Release: a thread that reads the new count also sees the deadline.
            self.hurries.fetch_add(1, Ordering::Release);
        }
        (result, sooner)
    }

    fn with_control<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let mut control = lock(&self.control);
        let result = work(&mut control);
        self.show(control.snapshot());
        let due = if control.has_commands() { Instant::ZERO } else { control.next_timeout() };
        // Only written under the lock.
        let before = self.due.swap(due.0, Ordering::Relaxed);
        (result, due.0 < before)
    }

    /// Publishes a snapshot to all shards if it is new. The caller has the lock of control.
    fn show(&self, snapshot: &Arc<Snapshot>) {
        let mut last = lock(&self.snapshot);
        if !Arc::ptr_eq(&last, snapshot) {
            *last = Arc::clone(snapshot);
            self.seen_by_all.routes.store(snapshot.generation, Ordering::Relaxed);
            self.seen_by_all.links.store(snapshot.host.links.len(), Ordering::Relaxed);
            // Release: a thread that reads the new count also sees the snapshot.
            self.seen_by_all.snapshots.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the number of snapshots so far.
    #[inline]
    pub(super) fn snapshots(&self) -> u64 {
        self.seen_by_all.snapshots.load(Ordering::Acquire)
    }

    /// Returns the routes generation of the current snapshot.
    #[inline]
    pub(super) fn routes(&self) -> u64 {
        self.seen_by_all.routes.load(Ordering::Relaxed)
    }

    /// Returns how many times other shards gave control an earlier deadline.
    #[inline]
    pub(super) fn hurries(&self) -> u64 {
        self.hurries.load(Ordering::Acquire)
    }

    /// Returns the current snapshot for a shard that knows `links` interfaces, after it read
    /// [`Shared::snapshots`]. Returns `None` while another thread has the lock, unless the number
    /// of interfaces changed. Then it waits, because packets may come from a new interface.
    pub(super) fn snapshot_if_free(&self, links: usize) -> Option<Arc<Snapshot>> {
        if self.seen_by_all.links.load(Ordering::Relaxed) != links {
            return Some(self.snapshot());
        }
        match self.snapshot.try_lock() {
            Ok(last) => Some(Arc::clone(&last)),
            Err(TryLockError::Poisoned(last)) => Some(Arc::clone(&last.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the current snapshot.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// Returns the next deadline of control; in the past if it has commands for the data parts.
    #[inline]
    pub(super) fn due(&self) -> Instant {
        Instant(self.due.load(Ordering::Relaxed))
    }
}

/// Locks a mutex, also if a thread panicked while it had the lock. A panic ends the host, and
/// until then the other threads use the last state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use towpath_pool::{LinkType, Offloads};
    use towpath_wire::MacAddr;

    use super::*;
    use crate::net::{IfaceId, InterfaceConfig, Keys, Net, NetConfig};

    /// The thread that has the lock may be descheduled. Packets do not wait for it, and a call
    /// adopts the new snapshot once the lock is free.
    #[test]
    fn a_batch_does_not_wait_for_the_snapshot() {
        let keys = [1, 2].map(|seed| Keys::derive(&[seed; 32]));
        let mut nets = Net::shards(NetConfig::default(), &keys, Instant(1));
        let [first, other] = &mut nets[..] else { panic!("two were wanted") };
        other.catch_up();
        assert!(first.add_address(Instant(1), IfaceId::LOOPBACK, "10.0.0.1/32".parse().unwrap()));
        let addr = "10.0.0.1".parse().unwrap();
        let ControlAccess::First(shared) = &first.seat else { panic!("it runs control") };
        let locked = lock(&shared.snapshot);
        other.catch_up_if_free();
        assert!(!other.is_local(addr));
        drop(locked);
        other.catch_up_if_free();
        assert!(other.is_local(addr));
    }

    /// The batch may contain packets of the new interface.
    #[test]
    #[allow(clippy::disallowed_methods)] // A thread waits for a lock that another holds.
    fn a_batch_waits_for_a_new_interface() {
        let keys = [1, 2].map(|seed| Keys::derive(&[seed; 32]));
        let mut nets = Net::shards(NetConfig::default(), &keys, Instant(1));
        let [first, other] = &mut nets[..] else { panic!("two were wanted") };
        let config = InterfaceConfig {
            name: "tun0".to_string(),
            link: LinkType::Ip,
            mac: MacAddr::UNSPECIFIED,
            mtu: 1500,
            offloads: Offloads::default(),
            addresses: Vec::new(),
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        let id = first.add_interface(Instant(1), config);
        let ControlAccess::First(shared) = &first.seat else { panic!("it runs control") };
        let (locked, begun) = (lock(&shared.snapshot), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                other.catch_up_if_free();
            });
            begun.wait();
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            drop(locked);
        });
        assert_eq!(other.output(id).len(), 0);
    }
}
