//! Adaptive polling before a sleep.

/// Learns whether polling for a moment before a sleep pays off for one sleeper. The caller should
/// not poll if that takes the processor from the thread that it waits for: see [`processors`].
#[derive(Debug, Clone, Copy)]
pub struct Spin {
    /// Recent successes, 0 to [`Spin::SCORE_MAX`].
    score: u32,
    /// Number of sleeps since the last attempt.
    skipped: u32,
}

impl Spin {
    /// Number of sleeps between two attempts while polling does not pay off.
    const RETRY: u32 = 256;
    /// Number of consecutive failures after which polling stops.
    const SCORE_MAX: u32 = 16;

    /// Creates a state in which polling is attempted until it turns out to be useless.
    pub const fn new() -> Self {
        Self { score: Self::SCORE_MAX, skipped: 0 }
    }

    /// Called before a sleep: whether to poll for a moment. Report the result by [`Self::learn`].
    pub fn is_worthwhile(&mut self) -> bool {
        self.skipped += 1;
        self.score > 0 || self.skipped >= Self::RETRY
    }

    /// Records whether polling found something.
    pub fn learn(&mut self, found: bool) {
        self.skipped = 0;
        self.score = if found {
            (self.score + 1).min(Self::SCORE_MAX)
        } else {
            self.score.saturating_sub(1)
        };
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the number of processors that the calling thread may use; 1 if unknown. Makes a system
/// call, so call it once at the start: a program may restrict its system calls later (seccomp).
pub fn processors() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |processors| processors.count())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_now_and_then() {
        let mut spin = Spin::new();
        let tries = |spin: &mut Spin, pays: bool| {
            let sleeps = 0..10 * Spin::RETRY;
            let tried = sleeps.filter(|_| {
                let tried = spin.is_worthwhile();
                if tried {
                    spin.learn(pays);
                }
                tried
            });
            tried.count() as u32
        };
        assert_eq!(tries(&mut spin, true), 10 * Spin::RETRY);
        assert!(tries(&mut spin, false) <= Spin::SCORE_MAX + 10);
        assert!(tries(&mut spin, true) > 8 * Spin::RETRY);
    }
}
