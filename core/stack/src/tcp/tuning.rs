//! Receive buffer autotuning: the window shall hold twice the bytes that the program reads in a
//! round trip.

use std::time::Duration;

/// Dynamic right-sizing (Feng et al. 2002, as Linux's `tcp_rcv_space_adjust`). A sender in slow
/// start doubles each round trip. A window of twice the bytes read in the last one therefore never
/// holds it back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecvTuning {
    /// Bytes that the program had read when the period began, wrapping.
    read_before: u32,
}

/// Period while the round-trip time is unknown, and its bounds.
pub(crate) const PERIOD_DEFAULT: Duration = Duration::from_millis(100);
const PERIOD_MIN: Duration = Duration::from_millis(1);

/// How long a period is.
pub(crate) fn period(rtt: Option<Duration>) -> Duration {
    rtt.unwrap_or(PERIOD_DEFAULT).max(PERIOD_MIN)
}

impl RecvTuning {
    /// Ends a period; returns the capacity to ask for, if the buffer has less. `received`: all
    /// bytes that ever came, wrapping.
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
        // The count of bytes begins again after 4 GiB.
        tuning.read_before = u32::MAX - 9_999;
        assert_eq!(tuning.on_period(5_000, 10_000), 10_000);
    }

    #[test]
    fn a_period_is_a_round_trip_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([None, Some(ms(7)), Some(ms(0))].map(period), [ms(100), ms(7), ms(1)]);
    }
}
