//! Computes when to poll a queue that has no descriptor to wait for.

/// Time in nanoseconds after a frame during which the queue is polled without sleeping. The time
/// exceeds the response time of a local program.
const SPIN_NS: u64 = 50_000;
/// Minimum sleep between polls in nanoseconds. A shorter sleep would cost more than it saves.
const SLEEP_MIN_NS: u64 = 10_000;
/// Maximum sleep between polls in nanoseconds, which limits the delay of the first frame after a
/// pause.
pub const SLEEP_MAX_NS: u64 = 1_000_000;
/// Divisor that limits a sleep: at most 1/8 of the time since the last frame.
const PART: u64 = 8;

/// Recent activity of a queue, which determines how often it is polled.
#[derive(Debug, Default)]
pub(crate) struct PollPace {
    /// Time in nanoseconds at which a frame was last received or sent.
    busy_ns: u64,
    polled_ns: u64,
}

impl PollPace {
    /// Records that frames were received or sent.
    pub fn busy(&mut self, now_ns: u64) {
        (self.busy_ns, self.polled_ns) = (now_ns, now_ns);
    }

    /// Records a poll that found no frames.
    pub fn idle(&mut self, now_ns: u64) {
        self.polled_ns = now_ns;
    }

    /// Returns the time of the last poll in nanoseconds.
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns
    }

    /// Returns the time of the next poll in nanoseconds.
    pub fn next_ns(&self) -> u64 {
        let silence = self.polled_ns.saturating_sub(self.busy_ns);
        if silence < SPIN_NS {
            return self.polled_ns;
        }
        self.polled_ns + (silence / PART).clamp(SLEEP_MIN_NS, SLEEP_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn sleeps_grow_with_the_silence_up_to_a_limit() {
        let mut pace = PollPace::default();
        pace.busy(MS);
        let mut sleep_after = |silence: u64| {
            pace.idle(MS + silence);
            pace.next_ns() - (MS + silence)
        };
        assert_eq!([0, SPIN_NS - 1].map(&mut sleep_after), [0, 0]);
        assert_eq!(sleep_after(SPIN_NS), SLEEP_MIN_NS);
        assert_eq!(sleep_after(4 * MS), MS / 2);
        assert_eq!([8 * MS, 1000 * MS].map(&mut sleep_after), [SLEEP_MAX_NS; 2]);
        pace.busy(2000 * MS);
        assert_eq!(pace.next_ns(), 2000 * MS);
    }
}
