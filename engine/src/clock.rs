//! Clocks, which are read once in each turn.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use towpath_tcp::Instant;

/// The time source of an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Clock {
    /// CLOCK_MONOTONIC, which ports use too, and CLOCK_REALTIME.
    System,
    /// A manual clock, advanced by the caller: see [`crate::Hand`].
    ByHand(Instant),
}

impl Clock {
    /// Returns the stack's time.
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant(read(ClockId::Monotonic)),
            Self::ByHand(now) => *now,
        }
    }

    /// Returns the Unix time in ns.
    pub fn unix_ns(&self) -> u64 {
        match self {
            Self::System => read(ClockId::Realtime),
            Self::ByHand(now) => now.0,
        }
    }

    /// Returns whether the clock is manual.
    pub fn is_by_hand(&self) -> bool {
        matches!(self, Self::ByHand(_))
    }

    /// Advances a manual clock.
    pub fn pass(&mut self, time: Duration) {
        if let Self::ByHand(now) = self {
            *now += time;
        }
    }
}

/// Returns the processor time that the calling thread has used. Costs a system call.
pub(crate) fn used_by_thread() -> Duration {
    Duration::from_nanos(read(ClockId::ThreadCPUTime))
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}
