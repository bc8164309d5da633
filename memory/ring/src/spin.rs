//! When to look again before a sleep, instead of sleeping at once.

/// Whether looking for a moment before a sleep pays, as one sleeper has found out. The caller does
/// not ask where a look would take the processor from the thread that it waits for: see
/// [`processors`].
#[derive(Debug, Clone, Copy)]
pub struct Spin {
    /// Recent successes, 0 to [`Spin::SCORE_MAX`].
    score: u32,
    /// Sleeps since the last attempt.
    skipped: u32,
}

impl Spin {
    /// Sleeps between two attempts while looking does not pay.
    const RETRY: u32 = 256;
    /// So many failures in a row are forgiven a sleeper whose attempts have paid.
    const SCORE_MAX: u32 = 16;

    /// A sleeper looks at first, until [`Self::learn`] has found that it does not pay.
    pub const fn new() -> Self {
        Self { score: Self::SCORE_MAX, skipped: 0 }
    }

    /// Before a sleep: whether to look for a moment, and say by [`Self::learn`] what came of it.
    pub fn is_worthwhile(&mut self) -> bool {
        self.skipped += 1;
        self.score > 0 || self.skipped >= Self::RETRY
    }

    /// Whether there was something before the moment was over.
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

/// How many processors the calling thread may use; 1 where that is not told. A system call, to be
/// made once: a program may forbid itself system calls later (seccomp).
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
