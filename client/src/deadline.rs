//! [`Deadline`], the point in time at which a waiting call must end.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// Returns the point in time `timeout` from now. A value that exceeds 64 bits of nanoseconds
    /// becomes the maximum.
    pub fn after(timeout: Duration) -> Self {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self(now_ns().saturating_add(ns))
    }

    /// Returns the time until the deadline, or zero if it has passed.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now_ns()))
    }

    /// Returns the time until the deadline as the fields of a struct timespec: seconds, and
    /// nanoseconds of the second.
    pub(crate) fn timespec(self) -> [i64; 2] {
        let left = self.left();
        [left.as_secs().min(i64::MAX as u64) as i64, i64::from(left.subsec_nanos())]
    }

    /// Returns the deadline as the fields of a struct timespec: seconds, and nanoseconds of the
    /// second.
    pub(crate) fn parts(self) -> (i64, i64) {
        ((self.0 / 1_000_000_000) as i64, (self.0 % 1_000_000_000) as i64)
    }
}

/// Returns the current time of CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
