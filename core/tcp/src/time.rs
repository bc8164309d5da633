//! Time. All functions get the current time as an argument, and none reads a clock.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an arbitrary origin; only differences are meaningful.
///
/// Arithmetic saturates, so an overflowing deadline equals [`Instant::FAR`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Instant = Instant(0);
    /// A time that is never reached. Deadline of a timer that is off.
    pub const FAR: Instant = Instant(u64::MAX);

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the milliseconds since the origin, wrapping at 32 bits: the clock of the timestamps
    /// option.
    #[inline]
    pub const fn millis(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// Returns the time since the origin in units of 2³⁰ ns (1.07 s). 32 bits suffice for 146
    /// years.
    #[inline]
    pub(crate) const fn coarse(self) -> u32 {
        (self.0 >> 30) as u32
    }

    #[inline]
    pub(crate) const fn after_millis(self, millis: u32) -> Instant {
        Instant(self.0.saturating_add(millis as u64 * 1_000_000))
    }

    /// Returns the time `micros` microseconds later.
    #[inline]
    pub(crate) const fn after_micros(self, micros: u64) -> Instant {
        Instant(self.0.saturating_add(micros.saturating_mul(1_000)))
    }

    /// Returns the microseconds since the origin of the clock.
    #[inline]
    pub const fn micros(self) -> u64 {
        self.0 / 1_000
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Converts a duration to milliseconds. The maximum is 49 days.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
