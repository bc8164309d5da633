//! Receive buffer autotuning: the window shall hold twice what the program reads in a round trip.

use std::time::Duration;

use towpath_tcp::Instant;

/// Dynamic right-sizing (Feng et al. 2002, as Linux's `tcp_rcv_space_adjust`): a sender in slow
/// start doubles each round trip, so a window of twice what was read in the last one never holds
/// it back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvTuning {
    /// All bytes ever committed, wrapping.
    committed: u32,
    /// Bytes that the program had read when the period began, wrapping.
    read_before: u32,
    /// Most bytes read in one period so far.
    best: u32,
    period_end: Instant,
}

/// Period while the round-trip time is unknown, and its bounds.
const PERIOD_DEFAULT: Duration = Duration::from_millis(100);
const PERIOD_MIN: Duration = Duration::from_millis(1);

impl RecvTuning {
    pub fn new(now: Instant) -> Self {
        Self { committed: 0, read_before: 0, best: 0, period_end: now + PERIOD_DEFAULT }
    }

    /// Bytes became in order.
    pub fn on_commit(&mut self, bytes: u32) {
        self.committed = self.committed.wrapping_add(bytes);
    }

    /// Whether a period has ended: only then the round-trip time needs to be looked up.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.period_end
    }

    /// Ends a period; returns the capacity to ask for when it is more than before.
    pub fn on_period(&mut self, now: Instant, unread: u32, rtt: Option<Duration>) -> Option<u32> {
        let read = self.committed.wrapping_sub(unread);
        let in_period = read.wrapping_sub(self.read_before);
        self.read_before = read;
        self.period_end = now + rtt.unwrap_or(PERIOD_DEFAULT).max(PERIOD_MIN);
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
        let ms = |n: u64| Instant(n * 1_000_000);
        let rtt = Some(Duration::from_millis(10));
        let mut tuning = RecvTuning::new(ms(0));
        tuning.on_commit(50_000);
        assert!(!tuning.is_due(ms(99)) && tuning.is_due(ms(100)));
        assert_eq!(tuning.on_period(ms(100), 20_000, rtt), Some(60_000));
        assert!(!tuning.is_due(ms(109)));
        tuning.on_commit(5_000);
        assert_eq!(tuning.on_period(ms(110), 0, rtt), None, "25000 read, less than before");
        tuning.on_commit(40_000);
        assert_eq!(tuning.on_period(ms(120), 0, rtt), Some(80_000));
    }
}
