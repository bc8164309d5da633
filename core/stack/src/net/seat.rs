//! Where the control part of a host is. With several shards the first one runs it: packets for it, what happens to next
//! hops, and the time are its alone, so that each question is asked once. The others get what it makes of that: a new
//! snapshot is seen when they look at a word, which they do once for each batch of packets.
//!
//! It is behind a lock that nobody takes for a packet of a connection or a socket. The first shard takes it when there is
//! something for control to hear or to do; another one when a program joins or leaves a group, which is in force in all
//! shards before the call returns, and when people ask for neighbours or routes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_tcp::Instant;

use super::control::Control;
use super::snapshot::Snapshot;

/// What a stack has of its host's control.
#[derive(Debug)]
pub(super) enum Seat {
    /// All of it: it is the only stack.
    Alone(Box<Control>),
    /// It runs it, for other shards, too.
    First(Arc<Shared>),
    /// Another shard runs it.
    Other(Arc<Shared>),
}

impl Seat {
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
    /// How many there were, as shows once it is in its place.
    snapshots: AtomicU64,
    /// When control has something to do, in ns; 0 when it has orders for data.
    due: AtomicU64,
}

impl Shared {
    pub(super) fn new(control: Control) -> Self {
        Self {
            snapshot: Mutex::new(Arc::clone(control.snapshot())),
            snapshots: AtomicU64::new(1),
            due: AtomicU64::new(control.next_timeout().0),
            control: Mutex::new(control),
        }
    }

    /// Does something with control, and lets all shards see what came of it before the next one can. Returns, too, whether
    /// control wants to be called sooner than before.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Control) -> R) -> (R, bool) {
        let mut control = lock(&self.control);
        let result = work(&mut control);
        let mut last = lock(&self.snapshot);
        if !Arc::ptr_eq(&last, control.snapshot()) {
            *last = Arc::clone(control.snapshot());
            // Release: who sees the number finds the snapshot.
            self.snapshots.fetch_add(1, Ordering::Release);
        }
        let due = if control.has_orders() { Instant::ZERO } else { control.next_timeout() };
        // Changed under the lock alone.
        let before = self.due.swap(due.0, Ordering::Relaxed);
        (result, due.0 < before)
    }

    /// How many snapshots there were.
    #[inline]
    pub(super) fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Acquire)
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

/// A thread that panicked with the lock ends its host; until then the others find what there is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
