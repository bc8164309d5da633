//! Seat: a stack's access to the control part of its host. A single stack owns control. Several
//! shards share it behind a lock, and the first one runs it. Its packets, events of next hops and
//! timers are processed there alone, so each question is asked once.
//!
//! Other shards see a new snapshot by a counter, which they read once for each batch of packets. If
//! the snapshot's lock is taken then, the batch goes by the one before: no packet waits for a call
//! on another thread.
//!
//! No packet of a connection or a socket takes the lock of control. The first shard takes it when
//! control has input or due work. Other shards take it for listings of neighbours and routes, and
//! to join or leave a group. A join must be in force in all shards before the call returns.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use towpath_tcp::Instant;

use super::control::Control;
use super::snapshot::Snapshot;

/// Access of a stack to the control part of its host.
#[derive(Debug)]
pub(super) enum ControlAccess {
    /// Control itself: this stack is the only one.
    Alone(Box<Control>),
    /// Control of several shards, run by this one.
    First(Arc<Shared>),
    /// Another shard runs it.
    Other(Arc<Shared>),
}

impl ControlAccess {
    /// Looks at control, wherever it is.
    pub(super) fn ask<R>(&self, question: impl FnOnce(&Control) -> R) -> R {
        match self {
            Self::Alone(control) => question(control),
            Self::First(shared) | Self::Other(shared) => question(&lock(&shared.control)),
        }
    }

    /// The snapshot that counts.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        match self {
            Self::Alone(control) => Arc::clone(control.snapshot()),
            Self::First(shared) | Self::Other(shared) => shared.snapshot(),
        }
    }
}

/// Control, for all shards of a host.
#[derive(Debug)]
pub(super) struct Shared {
    control: Mutex<Control>,
    /// The last one that control made.
    snapshot: Mutex<Arc<Snapshot>>,
    /// Next deadline of control, in ns; 0 when it has orders for data.
    due: AtomicU64,
    /// Number of times that another shard made that earlier.
    hurries: AtomicU64,
    seen_by_all: Line,
}

/// Words that all shards read for each batch and before they sleep, changed with a snapshot only.
/// Locks and deadlines are in other cache lines, so writes to those do not evict this one.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// How many snapshots there were, as shows once the last one is in its place.
    snapshots: AtomicU64,
    /// The last one's generation of routes.
    routes: AtomicU64,
    /// How many interfaces it has.
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

    /// Works on control. All shards can see the result before the next caller gets control.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Control) -> R) -> R {
        self.with_control(work).0
    }

    /// The same in a shard other than the first. Also returns whether control wants to be called
    /// sooner than before, which the first one sees from then on ([`Shared::hurries`]).
    pub(super) fn with_from_other<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let (result, sooner) = self.with_control(work);
        if sooner {
            // Release: a thread that sees the number sees the deadline.
            self.hurries.fetch_add(1, Ordering::Release);
        }
        (result, sooner)
    }

    fn with_control<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let mut control = lock(&self.control);
        let result = work(&mut control);
        self.show(control.snapshot());
        let due = if control.has_commands() { Instant::ZERO } else { control.next_timeout() };
        // Changed under the lock alone.
        let before = self.due.swap(due.0, Ordering::Relaxed);
        (result, due.0 < before)
    }

    /// Shows all shards the last snapshot, if it is a new one. Under the lock of control.
    fn show(&self, snapshot: &Arc<Snapshot>) {
        let mut last = lock(&self.snapshot);
        if !Arc::ptr_eq(&last, snapshot) {
            *last = Arc::clone(snapshot);
            self.seen_by_all.routes.store(snapshot.generation, Ordering::Relaxed);
            self.seen_by_all.links.store(snapshot.host.links.len(), Ordering::Relaxed);
            // Release: a thread that sees the number finds the snapshot.
            self.seen_by_all.snapshots.fetch_add(1, Ordering::Release);
        }
    }

    /// How many snapshots there were.
    #[inline]
    pub(super) fn snapshots(&self) -> u64 {
        self.seen_by_all.snapshots.load(Ordering::Acquire)
    }

    /// The last one's generation of routes.
    #[inline]
    pub(super) fn routes(&self) -> u64 {
        self.seen_by_all.routes.load(Ordering::Relaxed)
    }

    /// Number of times that other shards gave control an earlier deadline.
    #[inline]
    pub(super) fn hurries(&self) -> u64 {
        self.hurries.load(Ordering::Acquire)
    }

    /// The last snapshot for a shard that knows `links` interfaces, after a look at
    /// [`Shared::snapshots`]. None while another thread has the lock. A new interface is rare, and
    /// waited for: packets come from it.
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

    /// The last one.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// When control wants to be called next; in the past when it has orders for data.
    #[inline]
    pub(super) fn due(&self) -> Instant {
        Instant(self.due.load(Ordering::Relaxed))
    }
}

/// A thread that panics with the lock ends its host; until then the others use the last state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use towpath_pool::{LinkType, Offloads};
    use towpath_wire::MacAddr;

    use super::*;
    use crate::net::{IfaceId, InterfaceConfig, Keys, Net, NetConfig};

    /// The lock's holder may be descheduled: packets do not wait for it, and calls find the new
    /// snapshot once the lock is free.
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

    /// Packets of a new interface may be in the batch.
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
