//! The elapsed time of a congestion avoidance.

use crate::time::Instant;
use core::time::Duration;

/// The time that CUBIC's window is a function of. The time begins with the first ACK of a
/// congestion avoidance, and stands still while the window is not what holds the sender back.
///
/// An epoch has eight bytes, for a connection is small. The bytes hold the moment of its begin in
/// ns, or with [`Epoch::PAUSED`] the time that it had run when it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

impl Epoch {
    /// The epoch has not begun.
    pub(super) const NONE: Epoch = Epoch(u64::MAX);
    /// No clock of ours reaches this bit: 2^63 ns are 292 years.
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

    /// Excludes the last `time` from the elapsed time. While the epoch is paused, it is excluded
    /// already.
    pub(super) fn leave_out(&mut self, time: Duration) {
        if self.is_running() {
            self.0 += time.as_nanos() as u64;
        }
    }

    /// How long it has run.
    pub(super) fn elapsed(self, now: Instant) -> Duration {
        now.since(Instant(self.0))
    }
}
