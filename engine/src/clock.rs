//! Clocks, which the engine reads once in each iteration of its event loop.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use towpath_tcp::Instant;

/// The clock from which an engine reads the time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Clock {
    /// CLOCK_MONOTONIC, which network devices' ports use, too, and CLOCK_REALTIME for Unix time.
    System,
    /// A manual clock, which the caller advances: see [`crate::Hand`].
    ByHand(Instant),
}

impl Clock {
    /// Returns the stack's current time.
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant(read(ClockId::Monotonic)),
            Self::ByHand(now) => *now,
        }
    }

    /// Returns the Unix time in nanoseconds.
    pub fn unix_ns(&self) -> u64 {
        match self {
            Self::System => read(ClockId::Realtime),
            Self::ByHand(now) => now.0,
        }
    }

    /// Returns whether the clock is a manual one, which the caller advances.
    pub fn is_by_hand(&self) -> bool {
        matches!(self, Self::ByHand(_))
    }

    /// Advances a manual clock by `time`. Has no effect on the system's clock.
    pub fn pass(&mut self, time: Duration) {
        if let Self::ByHand(now) = self {
            *now += time;
        }
    }
}

/// Returns the CPU time that the calling thread has used so far. Makes a system call.
pub(crate) fn used_by_thread() -> Duration {
    Duration::from_nanos(read(ClockId::ThreadCPUTime))
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}
