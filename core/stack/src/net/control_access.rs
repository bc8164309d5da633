//! Access of a stack to the control part of the IP layer. A host with a single stack owns the
//! control part. Several shards share it behind a lock, and the first shard runs it. Control
//! packets, reports about next hops, and timers are processed only in the first shard, so that each
//! neighbour is solicited once.
//!
//! The other shards detect a new configuration snapshot by a counter, which they read once for each
//! batch of packets. If another thread has locked the snapshot at this time, the batch uses the
//! previous snapshot. Packets must not wait for a call on another thread.
//!
//! Packets of connections and sockets never take the lock of the control part. The first shard
//! takes it when the control part has input or due work. The other shards take it to list
//! neighbours and routes, and to join or leave a group. A join must have taken effect in all shards
//! before the call returns.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use towpath_tcp::Instant;

use super::control::Control;
use super::snapshot::Snapshot;

/// Access of a stack to the control part of the IP layer of its host.
#[derive(Debug)]
pub(super) enum ControlAccess {
    /// The stack is the only one of its host, and owns the control part of the IP layer
    /// (configuration and neighbours).
    Alone(Box<Control>),
    /// The stack is the first of the host's shards (stacks), and runs the control part of the IP
    /// layer.
    First(Arc<Shared>),
    /// The stack is one of the host's shards (stacks) other than the first one, which runs the
    /// control part of the IP layer.
    Other(Arc<Shared>),
}

impl ControlAccess {
    /// Calls `question` with the control part of the IP layer. If several shards share the control
    /// part, its lock is held during the call.
    pub(super) fn ask<R>(&self, question: impl FnOnce(&Control) -> R) -> R {
        match self {
            Self::Alone(control) => question(control),
            Self::First(shared) | Self::Other(shared) => question(&lock(&shared.control)),
        }
    }

    /// Returns the current snapshot of the configuration.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        match self {
            Self::Alone(control) => Arc::clone(control.snapshot()),
            Self::First(shared) | Self::Other(shared) => shared.snapshot(),
        }
    }
}

/// The control part of the IP layer, which the shards of a host share.
#[derive(Debug)]
pub(super) struct Shared {
    control: Mutex<Control>,
    /// Current snapshot of the host's configuration.
    snapshot: Mutex<Arc<Snapshot>>,
    /// Next deadline of the control part in nanoseconds; 0 if it has commands that shards must
    /// execute.
    due: AtomicU64,
    /// Number of times that a shard (stack) other than the first made the deadline `due` earlier.
    hurries: AtomicU64,
    seen_by_all: Line,
}

/// Values that all shards read for each batch of packets, and before they sleep. The values change
/// only with a new configuration snapshot. The alignment gives them their own cache lines, so that
/// writes to locks and deadlines do not evict these lines.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// Number of snapshots so far. The number is incremented after the new snapshot was stored.
    snapshots: AtomicU64,
    /// Generation number of the routes in the current snapshot.
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

    /// Calls `work` with the control part of the IP layer, while its lock is held. If `work`
    /// changes the configuration, all shards see the new snapshot before the lock is released.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Control) -> R) -> R {
        self.with_control(work).0
    }

    /// Like [`Shared::with`], for a shard other than the first. Also returns whether the deadline
    /// of the control part became earlier. In this case, [`Shared::hurries`] increases, so that the
    /// first shard notices the new deadline.
    pub(super) fn with_from_other<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let (result, sooner) = self.with_control(work);
        if sooner {
            // Use Release, so that a thread that reads the new count also sees the new deadline.
            self.hurries.fetch_add(1, Ordering::Release);
        }
        (result, sooner)
    }

    fn with_control<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let mut control = lock(&self.control);
        let result = work(&mut control);
        self.show(control.snapshot());
        let due = if control.has_commands() { Instant::ZERO } else { control.next_timeout() };
        // Relaxed is enough, because `due` is written only while the lock is held.
        let before = self.due.swap(due.0, Ordering::Relaxed);
        (result, due.0 < before)
    }

    /// Publishes a configuration snapshot to all shards, unless it is already published. The caller
    /// holds the lock of the control part.
    fn show(&self, snapshot: &Arc<Snapshot>) {
        let mut last = lock(&self.snapshot);
        if !Arc::ptr_eq(&last, snapshot) {
            *last = Arc::clone(snapshot);
            self.seen_by_all.routes.store(snapshot.generation, Ordering::Relaxed);
            self.seen_by_all.links.store(snapshot.host.links.len(), Ordering::Relaxed);
            // Use Release, so that a thread that reads the new count also sees the new snapshot.
            self.seen_by_all.snapshots.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the number of snapshots so far.
    #[inline]
    pub(super) fn snapshots(&self) -> u64 {
        self.seen_by_all.snapshots.load(Ordering::Acquire)
    }

    /// Returns the generation number of the routes in the current snapshot.
    #[inline]
    pub(super) fn routes(&self) -> u64 {
        self.seen_by_all.routes.load(Ordering::Relaxed)
    }

    /// Returns how often shards other than the first made the deadline of the control part earlier.
    #[inline]
    pub(super) fn hurries(&self) -> u64 {
        self.hurries.load(Ordering::Acquire)
    }

    /// Returns the current configuration snapshot for a shard that knows `links` interfaces, and
    /// that has read [`Shared::snapshots`] before. Returns `None` while another thread holds the
    /// lock of the snapshot. If the number of interfaces has changed, this waits for the lock
    /// instead, because packets may come from a new interface.
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

    /// Returns the current snapshot of the configuration.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// Returns the next deadline of the control part. The deadline is in the past if there are
    /// commands that shards must execute.
    #[inline]
    pub(super) fn due(&self) -> Instant {
        Instant(self.due.load(Ordering::Relaxed))
    }
}

/// Locks a mutex, even if a thread panicked while it held the lock. A panic ends the process, and
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

    /// A batch of packets does not wait for a descheduled thread that holds the lock of the
    /// snapshot. The next call adopts the new snapshot once the lock is free.
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

    /// A batch of packets waits for the new snapshot, because it may contain packets of the new
    /// interface.
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
