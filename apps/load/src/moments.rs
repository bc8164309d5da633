//! Times and counters that all threads of a run share.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::alarm::RunClock;

/// Times that the reporting thread sets, in ns of the clock. Each is `u64::MAX` until it is known.
pub struct Moments {
    pub clock: RunClock,
    /// Start of the traffic.
    pub traffic: AtomicU64,
    /// Time at which the measurement ends.
    pub end: AtomicU64,
    /// Time at which the wait for outstanding answers ends.
    pub drained: AtomicU64,
    /// Limit on the number of requests in the measurement. `None` if the plan has no limit.
    pub quota: Option<Quota>,
}

/// Remaining requests of a measurement with a limit. Threads take them one at a time.
pub struct Quota {
    /// Number of requests that were not given to a user yet.
    left: AtomicU64,
    /// Number of requests that were not answered or lost yet.
    open: AtomicU64,
    /// Time at which the last request was answered or lost, or `u64::MAX` before that.
    pub over: AtomicU64,
}

impl Quota {
    pub fn new(requests: u64) -> Self {
        Self {
            left: AtomicU64::new(requests),
            open: AtomicU64::new(requests),
            over: AtomicU64::new(u64::MAX),
        }
    }

    /// Takes one request from the quota. Returns false if no request is left.
    pub fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Counts `count` requests as answered or lost. Returns true if they were the last requests of
    /// the quota.
    pub fn conclude(&self, count: u64, now: u64) -> bool {
        let is_last = count > 0 && self.open.fetch_sub(count, Relaxed) == count;
        if is_last {
            self.over.store(now, Relaxed);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_taken_once_and_ends_with_its_last_request() {
        let quota = Quota::new(3);
        assert_eq!([(); 5].map(|()| quota.take()), [true, true, true, false, false]);
        assert!(!quota.conclude(2, 10) && !quota.conclude(0, 11));
        assert_eq!(quota.over.load(Relaxed), u64::MAX);
        assert!(quota.conclude(1, 12));
        assert_eq!(quota.over.load(Relaxed), 12);
    }
}
