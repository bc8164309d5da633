//! Clocks, read once a turn.

use rustix::time::{ClockId, clock_gettime};
use towpath_tcp::Instant;

/// CLOCK_MONOTONIC, the clock of ports and stack.
pub(crate) fn now() -> Instant {
    Instant(read(ClockId::Monotonic))
}

/// Unix time in ns.
pub(crate) fn unix_ns() -> u64 {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}
