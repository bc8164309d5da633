//! Counters of an event handler.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Minimum duration of a handler call that counts as slow. All other connections of the thread are
/// delayed as long, which exceeds the round-trip time of most local networks.
pub(super) const SLOW: Duration = Duration::from_millis(1);

/// Counters of a handler on one thread, since the handler was started: see
/// [`crate::Stack::handlers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerCounters {
    /// Name of the handler's type.
    pub name: &'static str,
    /// Number of the stack's thread on which the handler runs, from 0.
    pub shard: usize,
    /// Current number of connections, including outgoing ones during their handshake.
    pub connections: u64,
    /// Number of connections that the handler has accepted.
    pub accepted: u64,
    /// Number of connections that have ended for any reason.
    pub closed: u64,
    /// Number of calls of the handler.
    pub calls: u64,
    /// Number of handler calls that panicked.
    pub panics: u64,
    /// Number of handler calls that took 1 ms or longer.
    pub slow: u64,
    /// Duration of the longest handler call.
    pub slowest: Duration,
}

/// Counters of a handler, written by the handler's thread and read by other threads.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    pub(super) name: &'static str,
    pub(super) shard: usize,
    pub(super) connections: SharedCount,
    pub(super) accepted: SharedCount,
    pub(super) closed: SharedCount,
    pub(super) calls: SharedCount,
    pub(super) panics: SharedCount,
    pub(super) slow: SharedCount,
    pub(super) slowest_ns: SharedCount,
}

/// A counter that only one thread writes, so that an increment needs no atomic read-modify-write.
#[derive(Debug, Default)]
pub(super) struct SharedCount(AtomicU64);

impl SharedCount {
    pub fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl SharedCounters {
    pub(super) fn new(name: &'static str, shard: usize) -> Self {
        Self {
            name,
            shard,
            connections: SharedCount::default(),
            accepted: SharedCount::default(),
            closed: SharedCount::default(),
            calls: SharedCount::default(),
            panics: SharedCount::default(),
            slow: SharedCount::default(),
            slowest_ns: SharedCount::default(),
        }
    }

    /// Counts a call of the handler and its duration.
    pub(super) fn count_call(&self, took: Duration) {
        self.calls.add(1);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if took_ns > self.slowest_ns.get() {
            self.slowest_ns.set(took_ns);
        }
        if took >= SLOW {
            self.slow.add(1);
        }
    }

    pub(crate) fn snapshot(&self) -> HandlerCounters {
        HandlerCounters {
            name: self.name,
            shard: self.shard,
            connections: self.connections.get(),
            accepted: self.accepted.get(),
            closed: self.closed.get(),
            calls: self.calls.get(),
            panics: self.panics.get(),
            slow: self.slow.get(),
            slowest: Duration::from_nanos(self.slowest_ns.get()),
        }
    }
}
