//! Monotonic clock of runs in real time.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time of the monotonic clock in ns.
pub fn monotonic_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}
