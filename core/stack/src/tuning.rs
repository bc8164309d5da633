//! Receive buffer autotuning: the window shall hold twice what the program reads in a round trip.

use std::time::Duration;

/// Dynamic right-sizing (Feng et al. 2002, as Linux's `tcp_rcv_space_adjust`): a sender in slow
/// start doubles each round trip, so a window of twice what was read in the last one never holds
/// it back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecvTuning {
    /// All bytes ever committed, wrapping.
    committed: u32,
    /// Bytes that the program had read when the period began, wrapping.
    read_before: u32,
    /// Most bytes read in one period so far.
    best: u32,
}

/// Period while the round-trip time is unknown, and its bounds.
pub(crate) const PERIOD_DEFAULT: Duration = Duration::from_millis(100);
const PERIOD_MIN: Duration = Duration::from_millis(1);

/// How long a period is.
pub(crate) fn period(rtt: Option<Duration>) -> Duration {
    rtt.unwrap_or(PERIOD_DEFAULT).max(PERIOD_MIN)
}

impl RecvTuning {
    /// `bytes` were committed to the receive buffer.
    pub fn on_commit(&mut self, bytes: u32) {
        self.committed = self.committed.wrapping_add(bytes);
    }

    /// Ends a period; returns the capacity to ask for when it is more than before.
    pub fn on_period(&mut self, unread: u32) -> Option<u32> {
        let read = self.committed.wrapping_sub(unread);
        let in_period = read.wrapping_sub(self.read_before);
        self.read_before = read;
        if in_period <= self.best {
            return None;
        }
        self.best = in_period;
        Some(in_period.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_twice_what_was_read_and_only_for_more() {
        let mut tuning = RecvTuning::default();
        tuning.on_commit(50_000);
        assert_eq!(tuning.on_period(20_000), Some(60_000));
        tuning.on_commit(5_000);
        assert_eq!(tuning.on_period(0), None, "25000 read, less than before");
        tuning.on_commit(40_000);
        assert_eq!(tuning.on_period(0), Some(80_000));
    }

    #[test]
    fn a_period_is_a_round_trip_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([None, Some(ms(7)), Some(ms(0))].map(period), [ms(100), ms(7), ms(1)]);
    }
}
