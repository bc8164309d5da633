//! Elapsed time of the current congestion avoidance stage.

use crate::time::Instant;
use core::time::Duration;

/// The time `t` in CUBIC's window function. The time begins with the first ACK of congestion
/// avoidance, and pauses while the window does not limit the sender.
///
/// Stored in eight bytes to keep connections small: the start time in ns, or, with
/// [`Epoch::PAUSED`] set, the time that had elapsed at the pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

impl Epoch {
    /// The epoch has not begun.
    pub(super) const NONE: Epoch = Epoch(u64::MAX);
    /// Marks a paused epoch. Clocks never reach this bit, because 2^63 ns are 292 years.
    const PAUSED: u64 = 1 << 63;

    pub(super) fn begin(now: Instant) -> Epoch {
        Epoch(now.0)
    }

    fn is_running(self) -> bool {
        self.0 & Epoch::PAUSED == 0
    }

    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.2
    //# The elapsed time MUST NOT include periods during which cwnd has not been updated due to
    //# application-limited behavior (see Section 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if self.is_running() {
            self.0 = Epoch::PAUSED | now.0.saturating_sub(self.0);
        }
    }

    pub(super) fn go_on(&mut self, now: Instant) {
        if !self.is_running() && *self != Epoch::NONE {
            self.0 = now.0.saturating_sub(self.0 & !Epoch::PAUSED);
        }
    }

    /// Excludes the last `time` from the elapsed time. A paused epoch excludes it already.
    pub(super) fn leave_out(&mut self, time: Duration) {
        if self.is_running() {
            self.0 += time.as_nanos() as u64;
        }
    }

    /// Returns the time for which the epoch has run.
    pub(super) fn elapsed(self, now: Instant) -> Duration {
        now.since(Instant(self.0))
    }
}
