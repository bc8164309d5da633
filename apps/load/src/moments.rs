//! Times and counters shared by all threads of a run.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::alarm::RunClock;

/// Times set by the reporting thread, in ns of the clock; `u64::MAX` until they are known.
pub struct Moments {
    pub clock: RunClock,
    /// Beginning of the traffic.
    pub traffic: AtomicU64,
    /// End of the measurement.
    pub end: AtomicU64,
    /// End of the wait for outstanding answers.
    pub drained: AtomicU64,
    /// Limit on the requests of the measurement, if the plan has one.
    pub quota: Option<Quota>,
}

/// Remaining requests of a limited measurement; threads take them one at a time.
pub struct Quota {
    /// Requests not yet given to a user.
    left: AtomicU64,
    /// Requests not yet answered or lost.
    open: AtomicU64,
    /// Time at which the last request was answered or lost; `u64::MAX` before.
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

    /// Takes one request. Returns false if none is left.
    pub fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Counts requests that were answered or lost. Returns true if these were the last ones.
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
