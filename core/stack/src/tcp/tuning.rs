//! Autotuning of the receive buffer. The receive window should be twice the number of bytes that
//! the program reads per round-trip time. Bytes behind a gap need room in addition.

use std::time::Duration;

/// State of dynamic right-sizing (Feng et al. 2002, like Linux's `tcp_rcv_space_adjust`). A sender
/// in slow start doubles its rate in each round-trip time. A window of twice the bytes that the
/// program read in the last round-trip time therefore does not limit the sender.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecvTuning {
    /// Largest number of bytes, modulo 2³², that were read or waited behind a gap at the start of a
    /// period.
    used_before: u32,
}

/// Default length of a measuring period while the round-trip time is unknown, and minimum length of
/// a period.
const PERIOD_DEFAULT: Duration = Duration::from_millis(100);
pub(crate) const PERIOD_MIN: Duration = Duration::from_millis(1);

/// Returns the length of a measuring period for a round-trip time.
pub(crate) fn period(rtt: Option<Duration>) -> Duration {
    rtt.unwrap_or(PERIOD_DEFAULT).max(PERIOD_MIN)
}

impl RecvTuning {
    /// Ends a measuring period. Returns the minimum size in bytes that the receive buffer should
    /// have. `received` is the total number of in-order bytes modulo 2³². `unread` is the number of
    /// those bytes that the program has not read yet. `held` bytes wait behind a gap.
    ///
    /// A lost segment stops the program for one round trip or more, and the bytes behind it occupy
    /// the window meanwhile. Without the bytes behind gaps, the window of a path with losses would
    /// follow the rate of several round trips ago, and limit the sender.
    pub fn on_period(&mut self, received: u32, unread: u32, held: u32) -> u32 {
        let used = received.wrapping_sub(unread).wrapping_add(held);
        // Bytes that became in-order count again only when the program has read them.
        let in_period = (used.wrapping_sub(self.used_before) as i32).max(0) as u32;
        self.used_before = self.used_before.wrapping_add(in_period);
        in_period.saturating_mul(2).saturating_add(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_twice_what_was_read() {
        let mut tuning = RecvTuning::default();
        assert_eq!(tuning.on_period(50_000, 20_000, 0), 60_000);
        assert_eq!(tuning.on_period(55_000, 0, 0), 50_000);
        assert_eq!(tuning.on_period(95_000, 0, 0), 80_000);
        // The number of bytes read wraps around after 4 GiB.
        tuning.used_before = u32::MAX - 9_999;
        assert_eq!(tuning.on_period(5_000, 10_000, 0), 10_000);
    }

    #[test]
    fn bytes_behind_a_gap_count_once_and_need_room() {
        let mut tuning = RecvTuning::default();
        assert_eq!(tuning.on_period(10_000, 0, 0), 20_000);
        assert_eq!(tuning.on_period(10_000, 0, 30_000), 90_000);
        assert_eq!(tuning.on_period(10_000, 0, 50_000), 90_000);
        // The gap is filled, but the program reads later.
        assert_eq!(tuning.on_period(61_000, 51_000, 0), 0);
        assert_eq!(tuning.on_period(65_000, 0, 0), 10_000);
    }

    #[test]
    fn a_period_is_a_round_trip_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([None, Some(ms(7)), Some(ms(0))].map(period), [ms(100), ms(7), ms(1)]);
    }
}
