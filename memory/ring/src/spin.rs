//! Decides whether a thread should poll for a moment before it sleeps.

/// Learns whether polling for a moment before sleeping pays off for a thread. A thread must not
/// poll if it would occupy the CPU of the thread for which it waits: see [`processors`].
#[derive(Debug, Clone, Copy)]
pub struct Spin {
    /// Score of recent attempts to poll, 0 to [`Spin::SCORE_MAX`].
    score: u32,
    /// Number of sleeps since the last attempt to poll.
    skipped: u32,
}

impl Spin {
    /// Number of sleeps between two attempts to poll if polling does not pay off.
    const RETRY: u32 = 256;
    /// Number of consecutive useless attempts after which polling stops.
    const SCORE_MAX: u32 = 16;

    /// Creates the initial state: the thread polls until that turns out to be useless.
    pub const fn new() -> Self {
        Self { score: Self::SCORE_MAX, skipped: 0 }
    }

    /// Returns whether to poll for a moment before the next sleep. Report the result by
    /// [`Self::learn`].
    pub fn is_worthwhile(&mut self) -> bool {
        self.skipped += 1;
        self.score > 0 || self.skipped >= Self::RETRY
    }

    /// Records whether polling found something to do.
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

/// Returns the number of CPUs that the calling thread may use; 1 if unknown. Makes a system call.
/// Call it at the start, because a program may later restrict its system calls (seccomp).
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
