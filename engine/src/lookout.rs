//! When a thread looks for something to do once more before it sleeps.

use std::time::Duration;

use towpath_ring::Spin;
use towpath_tcp::Instant;

/// Between two looks others may have the processor. For longer than this somebody wants it who
/// computes; who serves a few requests sleeps sooner.
const TAKEN: Duration = Duration::from_micros(250);
/// Time without a look after that, at first. A sleeper gets the processor as soon as it is woken,
/// but a thread that yielded waits for its turn, some ms.
const CROWDED: Duration = Duration::from_millis(100);
/// The longest, when it is so each time.
const CROWDED_MAX: Duration = Duration::from_millis(1600);

/// Whether that pays, as a thread has found out.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// How long it looks at most; zero: not at all.
    most: Duration,
    spin: Spin,
    crowded_until: Instant,
    /// For how long that is, the next time.
    crowded_for: Duration,
}

impl Lookout {
    pub fn new(most: Duration) -> Self {
        Self { most, spin: Spin::new(), crowded_until: Instant::ZERO, crowded_for: CROWDED }
    }

    /// Before a sleep of at most `timeout`: until when to look, and to say by [`Self::learn`] what
    /// came of it. None: sleep.
    pub fn until(&mut self, now: Instant, timeout: Option<Duration>) -> Option<Instant> {
        let is_short = timeout.is_some_and(|timeout| timeout < self.most);
        let looks = !self.most.is_zero()
            && !is_short
            && now >= self.crowded_until
            && self.spin.is_worthwhile();
        looks.then(|| now + self.most)
    }

    /// Whether there was something. Not after a look that somebody [took](Self::is_taken): what
    /// came then would have been there sooner had the thread slept.
    pub fn learn(&mut self, found: bool) {
        self.spin.learn(found);
        self.crowded_for = CROWDED;
    }

    /// The thread had given the processor away, and has it again. True: somebody wanted it for so
    /// long that it is to sleep from now on.
    pub fn is_taken(&mut self, before: Instant, now: Instant) -> bool {
        if now.since(before) < TAKEN {
            return false;
        }
        self.crowded_until = now + self.crowded_for;
        self.crowded_for = (2 * self.crowded_for).min(CROWDED_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BUSY_POLL;

    fn at(us: u64) -> Instant {
        Instant::default() + Duration::from_micros(us)
    }

    #[test]
    fn nobody_looks_where_others_compute() {
        let mut lookout = Lookout::new(BUSY_POLL);
        assert_eq!(lookout.until(at(0), None), Some(at(50)));
        assert!(!lookout.is_taken(at(1), at(200)), "a few requests");
        assert!(lookout.is_taken(at(200), at(4200)));
        assert_eq!(lookout.until(at(100_000), None), None);
        assert_eq!(lookout.until(at(104_200), None), Some(at(104_250)));
        // Still so: longer each time.
        assert!(lookout.is_taken(at(104_200), at(108_200)));
        assert_eq!(lookout.until(at(308_100), None), None);
        assert!(lookout.until(at(308_200), None).is_some());
        for n in 1..20 {
            assert!(lookout.is_taken(at(n * 4_000_000), at(n * 4_000_000 + 4000)));
        }
        assert!(lookout.until(at(19 * 4_000_000 + 1_604_000), None).is_some());
        // And not any more.
        lookout.learn(true);
        assert!(lookout.is_taken(at(90_000_000), at(90_004_000)));
        assert!(lookout.until(at(90_104_000), None).is_some());
    }

    #[test]
    fn nobody_looks_who_has_a_deadline_or_is_not_to() {
        let mut lookout = Lookout::new(BUSY_POLL);
        assert_eq!(lookout.until(at(0), Some(BUSY_POLL / 2)), None);
        assert!(lookout.until(at(0), Some(BUSY_POLL)).is_some());
        assert_eq!(Lookout::new(Duration::ZERO).until(at(0), None), None);
    }

    /// Here every third one does.
    #[test]
    fn half_of_the_looks_have_to_pay() {
        let mut lookout = Lookout::new(BUSY_POLL);
        let mut looks = 0;
        for n in 0..3000 {
            if lookout.until(at(n), None).is_some() {
                looks += 1;
                lookout.learn(n % 3 == 0);
            }
        }
        assert!(looks < 200, "{looks}");
    }
}
