//! Autotuning of the receive buffer. The receive window should be twice the number of bytes that
//! the program reads per round-trip time.

use std::time::Duration;

/// State of dynamic right-sizing (Feng et al. 2002, like Linux's `tcp_rcv_space_adjust`). A sender
/// in slow start doubles its rate in each round-trip time. A window of twice the bytes that the
/// program read in the last round-trip time therefore does not limit the sender.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecvTuning {
    /// Number of bytes that the program had read at the start of the current period, modulo 2³².
    read_before: u32,
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
    /// have. `received` is the total number of received bytes modulo 2³². `unread` is the number of
    /// bytes that the program has not read yet.
    pub fn on_period(&mut self, received: u32, unread: u32) -> u32 {
        let read = received.wrapping_sub(unread);
        let in_period = read.wrapping_sub(self.read_before);
        self.read_before = read;
        in_period.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_twice_what_was_read() {
        let mut tuning = RecvTuning::default();
        assert_eq!(tuning.on_period(50_000, 20_000), 60_000);
        assert_eq!(tuning.on_period(55_000, 0), 50_000);
        assert_eq!(tuning.on_period(95_000, 0), 80_000);
        // The number of bytes read wraps around after 4 GiB.
        tuning.read_before = u32::MAX - 9_999;
        assert_eq!(tuning.on_period(5_000, 10_000), 10_000);
    }

    #[test]
    fn a_period_is_a_round_trip_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([None, Some(ms(7)), Some(ms(0))].map(period), [ms(100), ms(7), ms(1)]);
    }
}
