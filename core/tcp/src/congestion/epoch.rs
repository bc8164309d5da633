//! Time relative to the plateau of CUBIC's window curve.

use crate::time::Instant;
use core::time::Duration;

/// The time `t - K` in CUBIC's window function, where `t` is the elapsed time of the congestion
/// avoidance stage. The time pauses while the window does not limit the sender.
///
/// Stored in four bytes to keep connections small. While time runs, the value is the time of the
/// plateau in units of 2^16 ns. With [`Epoch::PAUSED`] set, it is the distance from the plateau at
/// the pause. Times wrap after 19 hours without a loss. The flow then grows like Reno until its
/// next loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u32);

impl Epoch {
    /// Value before the congestion avoidance stage has begun.
    pub(super) const NONE: Epoch = Epoch(u32::MAX);
    /// Flag of an epoch whose time is paused.
    const PAUSED: u32 = 1 << 31;
    const UNIT_SHIFT: u32 = 16;

    /// Creates an epoch that reaches the plateau of the curve `k_ms` milliseconds after `now`.
    pub(super) fn begin(now: Instant, k_ms: u32) -> Epoch {
        Epoch::running(units(now.after_millis(k_ms).0))
    }

    fn running(plateau: u32) -> Epoch {
        Epoch(plateau & !Epoch::PAUSED)
    }

    fn is_running(self) -> bool {
        self.0 & Epoch::PAUSED == 0
    }

    /// Interprets the lower 31 bits as a signed number.
    fn signed(self, bits: u32) -> i32 {
        (bits << 1) as i32 >> 1
    }

    fn distance(self, now: Instant) -> i32 {
        if self.is_running() {
            self.signed(units(now.0).wrapping_sub(self.0))
        } else {
            self.signed(self.0)
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9438#section-4.2
    //# The elapsed time t in Figure 1 MUST NOT include periods during which cwnd has not been
    //# updated due to application-limited behavior (see Section 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if self.is_running() {
            let paused = Epoch::PAUSED | self.distance(now) as u32;
            // Avoid the distance -1, which is stored as the value of `NONE`.
            self.0 = paused.min(Epoch::NONE.0 - 1);
        }
    }

    pub(super) fn go_on(&mut self, now: Instant) {
        if !self.is_running() && *self != Epoch::NONE {
            *self = Epoch::running(units(now.0).wrapping_sub(self.0));
        }
    }

    /// Excludes the most recent period, of length `time`, from the elapsed time. In a paused epoch,
    /// the period is already excluded.
    pub(super) fn leave_out(&mut self, time: Duration) {
        if self.is_running() {
            *self = Epoch::running(self.0.wrapping_add(units(time.as_nanos() as u64)));
        }
    }

    /// Returns the milliseconds since the plateau of the curve (`t - K`), negative before it.
    pub(super) fn since_plateau_ms(self, now: Instant) -> i64 {
        (i64::from(self.distance(now)) << Epoch::UNIT_SHIFT) / 1_000_000
    }
}

fn units(nanos: u64) -> u32 {
    (nanos >> Epoch::UNIT_SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_while_the_epoch_runs() {
        let mut now = Instant(u64::from(u32::MAX - 1000) << Epoch::UNIT_SHIFT);
        let mut epoch = Epoch::begin(now, 2000);
        assert_eq!(epoch.since_plateau_ms(now), -1999);
        now = now.after_millis(1500);
        epoch.pause(now);
        now = now.after_millis(60_000);
        assert_eq!(epoch.since_plateau_ms(now), -499);
        epoch.go_on(now);
        now = now.after_millis(1000);
        assert_eq!(epoch.since_plateau_ms(now), 500);
        epoch.leave_out(Duration::from_millis(300));
        assert_eq!(epoch.since_plateau_ms(now), 200);
        // A pause at the plateau must not be stored as `NONE`.
        let mut epoch = Epoch::begin(now, 0);
        epoch.pause(Instant(now.0 - (1 << Epoch::UNIT_SHIFT)));
        assert!(epoch != Epoch::NONE && epoch.since_plateau_ms(now) == 0);
    }
}
