//! How often a queue is polled that has no descriptor to sleep on.

/// Time after a frame for which the queue is polled without a sleep: longer than an answer of a
/// program beside it takes to come.
const SPIN_NS: u64 = 50_000;
/// The shortest sleep; a shorter one would cost more than it saves.
const SLEEP_MIN_NS: u64 = 10_000;
/// The longest sleep in ns, and so the most that it adds to the wait of a first frame.
pub const SLEEP_MAX_NS: u64 = 1_000_000;
/// Part of the silence so far that the next sleep lasts: it adds at most so much to a wait.
const PART: u64 = 8;

/// When frames have come lately.
#[derive(Debug, Default)]
pub(crate) struct PollPace {
    /// When the last frame came or went, in ns.
    busy_ns: u64,
    polled_ns: u64,
}

impl PollPace {
    /// A poll found frames, or some were sent.
    pub fn busy(&mut self, now_ns: u64) {
        (self.busy_ns, self.polled_ns) = (now_ns, now_ns);
    }

    /// A poll found none.
    pub fn idle(&mut self, now_ns: u64) {
        self.polled_ns = now_ns;
    }

    /// When the last poll was.
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns
    }

    /// When to poll again.
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
