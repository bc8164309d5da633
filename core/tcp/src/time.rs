//! Time as an argument.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A moment in nanoseconds since an origin that the caller chose; only differences mean anything.
///
/// Arithmetic saturates: a deadline past the end of time never comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// The deadline that never comes.
    pub const FAR: Instant = Instant(u64::MAX);

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds since the origin, wrapping: the clock of the timestamps option.
    #[inline]
    pub const fn millis(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// Units of 2³⁰ ns, 1.07 s, since the origin: 146 years fit.
    #[inline]
    pub(crate) const fn coarse(self) -> u32 {
        (self.0 >> 30) as u32
    }

    #[inline]
    pub(crate) fn after_millis(self, millis: u32) -> Instant {
        self + Duration::from_millis(u64::from(millis))
    }

    /// Whole microseconds since the origin.
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

/// Whole milliseconds of `duration`, or as many as 32 bits hold: 49 days.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
