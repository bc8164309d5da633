//! Decides whether a thread polls for work for a short time before it sleeps.

use std::time::Duration;

use towpath_ring::Spin;
use towpath_tcp::Instant;

/// Time between two polls above which another thread must have used the CPU for a computation. A
/// thread that serves a few requests would sleep sooner.
const TAKEN: Duration = Duration::from_micros(250);
/// Initial time for which polling is disabled after another thread was found computing. On such a
/// CPU, a sleeping thread runs as soon as it is woken. A polling thread that has yielded must wait
/// for its time slice, some milliseconds.
const CROWDED: Duration = Duration::from_millis(100);
/// Maximum time for which polling is disabled. The time doubles each time that another thread is
/// found computing.
const CROWDED_MAX: Duration = Duration::from_millis(1600);

/// Statistics that tell whether polling before a sleep usually finds work.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// Maximum duration of polling before a sleep. Zero disables polling.
    most: Duration,
    spin: Spin,
    crowded_until: Instant,
    /// Duration for which polling is disabled next time.
    crowded_for: Duration,
}

impl Lookout {
    pub fn new(most: Duration) -> Self {
        Self { most, spin: Spin::new(), crowded_until: Instant::ZERO, crowded_for: CROWDED }
    }

    /// Returns the time until which to poll before a sleep of at most `timeout`. `None`: do not
    /// poll. The caller must report the result with [`Self::learn`].
    pub fn until(&mut self, now: Instant, timeout: Option<Duration>) -> Option<Instant> {
        let is_short = timeout.is_some_and(|timeout| timeout < self.most);
        let looks = !self.most.is_zero()
            && !is_short
            && now >= self.crowded_until
            && self.spin.is_worthwhile();
        looks.then(|| now + self.most)
    }

    /// Records whether polling has found work. Do not call it if another thread has
    /// [used](Self::is_taken) the CPU, because a sleeping thread would then have been woken sooner.
    pub fn learn(&mut self, found: bool) {
        self.spin.learn(found);
        self.crowded_for = CROWDED;
    }

    /// Compares the times before and after this thread yielded the CPU. Returns true if another
    /// thread ran so long that this thread should sleep instead of polling.
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
        // Another thread is still computing, so polling is disabled for a longer time.
        assert!(lookout.is_taken(at(104_200), at(108_200)));
        assert_eq!(lookout.until(at(308_100), None), None);
        assert!(lookout.until(at(308_200), None).is_some());
        for n in 1..20 {
            assert!(lookout.is_taken(at(n * 4_000_000), at(n * 4_000_000 + 4000)));
        }
        assert!(lookout.until(at(19 * 4_000_000 + 1_604_000), None).is_some());
        // Polling has found work, so the next pause has the initial length again.
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

    /// Polling stops if only every third poll finds work.
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
