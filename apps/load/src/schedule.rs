//! Schedules of requests. Each is a pure function of a seed. Times are in ns since the start of the
//! traffic.

use std::time::Duration;

use crate::plan::Spacing;

/// Random generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Clone)]
pub struct SplitMix(u64);

impl SplitMix {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a uniformly distributed number in [0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Schedule of the requests that one thread sends in an open loop.
#[derive(Clone)]
pub struct LoadSchedule {
    spacing: Spacing,
    gap_ns: f64,
    random: SplitMix,
    /// Number of requests scheduled before the next one.
    count: u64,
    share: Share,
    next_ns: f64,
}

/// Share of a thread in all users of a run.
///
/// A uniform schedule assigns request n to user n modulo `all`, and thus to the thread of this
/// user. The requests of all threads together then have equal gaps, and all users have equal rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Number of the thread, which is also the number of its first user.
    pub thread: u64,
    /// Number of threads, which is also the distance between two users of a thread.
    pub threads: u64,
    /// Number of users of this thread.
    pub users: u64,
    /// Number of users of all threads together.
    pub all: u64,
}

impl Share {
    /// Converts the index of a request of this thread to its number among the requests of all
    /// threads.
    fn number(self, count: u64) -> u64 {
        count / self.users * self.all + count % self.users * self.threads + self.thread
    }

    /// Returns how many of the first `number` requests of all threads belong to this thread.
    fn count_below(self, number: u64) -> u64 {
        let rest = (number % self.all).saturating_sub(self.thread);
        number / self.all * self.users + rest.div_ceil(self.threads)
    }
}

impl LoadSchedule {
    /// Creates the part of a schedule that a thread's users execute. All threads together send
    /// `per_second` requests per second.
    pub fn new(per_second: f64, spacing: Spacing, seed: u64, share: Share) -> Self {
        let gap_ns = match spacing {
            Spacing::Uniform => 1e9 / per_second,
            Spacing::Poisson => 1e9 / per_second * share.all as f64 / share.users as f64,
        };
        let mut schedule =
            Self { spacing, gap_ns, random: SplitMix::new(seed), count: 0, share, next_ns: 0. };
        schedule.next_ns = schedule.after(0.);
        schedule
    }

    /// Returns the time of the next request in ns.
    pub fn peek(&self) -> u64 {
        self.next_ns as u64
    }

    /// Advances the schedule by one request.
    pub fn advance(&mut self) {
        self.count += 1;
        self.next_ns = self.after(self.next_ns);
    }

    /// Skips all requests before the time `time`.
    pub fn skip_to(&mut self, time: u64) {
        if self.peek() >= time {
            return;
        }
        let time = time as f64;
        self.count = self.share.count_below((time / self.gap_ns).ceil() as u64);
        // Draw a new gap that begins at this time. The distribution of an exponential gap does not
        // depend on the time that has already passed (it is memoryless).
        self.next_ns = self.after(time);
    }

    /// Returns the number of requests until the time `until`. Beyond the first million requests of
    /// a Poisson schedule, the number is estimated. Otherwise an extreme rate would delay the
    /// report.
    pub fn count_until(mut self, until: u64) -> u64 {
        const COUNTED: u64 = 1_000_000;
        let before = self.count;
        if self.spacing == Spacing::Uniform {
            let end = (until as f64 / self.gap_ns).ceil() as u64;
            return self.share.count_below(end).saturating_sub(before);
        }
        while self.peek() < until && self.count - before < COUNTED {
            self.advance();
        }
        let rest = (until as f64 - self.next_ns).max(0.) / self.gap_ns;
        self.count - before + rest.ceil() as u64
    }

    /// Returns the time of the request after `time_ns`. Times of a uniform schedule are computed
    /// from the number of the request, so that rounding errors do not accumulate.
    fn after(&mut self, time_ns: f64) -> f64 {
        match self.spacing {
            Spacing::Uniform => self.share.number(self.count) as f64 * self.gap_ns,
            // Use inverse transform sampling: -ln(1 - u) is exponentially distributed with mean 1,
            // and 1 - u is never 0.
            Spacing::Poisson => time_ns - (1. - self.random.unit()).ln() * self.gap_ns,
        }
    }
}

/// Schedule in which each user has one request per round, at its own phase.
pub struct Rounds {
    every_ns: u64,
    /// Phases in ns and their users, in ascending order.
    phases: Vec<(u64, u32)>,
    round: u64,
    at: usize,
}

impl Rounds {
    /// Creates rounds in which the users have random phases in [0, `every`).
    pub fn spread(users: u32, every: Duration, random: &mut SplitMix) -> Self {
        let mut phases: Vec<_> = (0..users).map(|user| (phase(every, random), user)).collect();
        phases.sort_unstable();
        Self { every_ns: every.as_nanos() as u64, phases, round: 0, at: 0 }
    }

    /// Creates rounds in which all users send their requests at the same time.
    pub fn together(users: u32, every: Duration) -> Self {
        let phases = (0..users).map(|user| (0, user)).collect();
        Self { every_ns: every.as_nanos() as u64, phases, round: 0, at: 0 }
    }

    /// Returns the time of the next request, and its user.
    pub fn peek(&self) -> (u64, u32) {
        let (phase, user) = self.phases[self.at];
        (self.round * self.every_ns + phase, user)
    }

    /// Returns the number of remaining requests in the interval [`start`, `end`).
    pub fn count_between(&self, start: u64, end: u64) -> u64 {
        let count = |(at, (phase, _)): (usize, &(u64, u32))| {
            let next = self.round + u64::from(at < self.at);
            let from = start.saturating_sub(*phase).div_ceil(self.every_ns).max(next);
            end.saturating_sub(*phase).div_ceil(self.every_ns).saturating_sub(from)
        };
        self.phases.iter().enumerate().map(count).sum()
    }

    /// Advances the schedule by one request.
    pub fn advance(&mut self) {
        self.at += 1;
        if self.at == self.phases.len() {
            self.at = 0;
            self.round += 1;
        }
    }
}

/// Returns a random time in the interval [0, `every`), in ns.
pub fn phase(every: Duration, random: &mut SplitMix) -> u64 {
    (every.as_nanos() as f64 * random.unit()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of a single thread that has a single user.
    const ALONE: Share = Share { thread: 0, threads: 1, users: 1, all: 1 };

    const SECOND: u64 = 1_000_000_000;

    fn times(mut schedule: LoadSchedule, count: usize) -> Vec<u64> {
        let next = || {
            let due = schedule.peek();
            schedule.advance();
            due
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn uniform_requests_have_equal_gaps_and_threads_interleave() {
        let first = times(LoadSchedule::new(1000., Spacing::Uniform, 1, ALONE), 4);
        assert_eq!(first, [0, 1_000_000, 2_000_000, 3_000_000]);
        for (all, threads) in [(1, 1), (3, 2), (7, 2), (7, 3), (64, 2), (5, 5)] {
            let mut due: Vec<u64> = (0..threads)
                .flat_map(|thread| {
                    let users = (thread..all).step_by(threads as usize).count() as u64;
                    let share = Share { thread, threads, users, all };
                    let schedule = LoadSchedule::new(1000., Spacing::Uniform, 1, share);
                    let counted = schedule.clone().count_until(SECOND);
                    times(schedule, counted as usize)
                })
                .collect();
            due.sort_unstable();
            let wanted: Vec<u64> = (0..1000).map(|n| n * 1_000_000).collect();
            assert_eq!(due, wanted, "{all} users on {threads} threads");
        }
    }

    #[test]
    fn uniform_gaps_do_not_drift_in_a_million_requests() {
        let mut schedule = LoadSchedule::new(3000., Spacing::Uniform, 1, ALONE);
        (0..3_000_000).for_each(|_| schedule.advance());
        assert_eq!(schedule.peek(), 1000 * SECOND);
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_deviation_of_the_exponential_distribution() {
        let times = times(LoadSchedule::new(1000., Spacing::Poisson, 7, ALONE), 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|it| (it[1] - it[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e6 - 1.).abs() < 0.02, "mean {mean} ns");
        assert!((variance.sqrt() / 1e6 - 1.).abs() < 0.02, "deviation {} ns", variance.sqrt());
        let beyond = gaps.iter().filter(|&&it| it > 1e6).count() as f64 / gaps.len() as f64;
        assert!((beyond - (-1_f64).exp()).abs() < 0.01, "{beyond} of the gaps exceed the mean");
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        let poisson = |seed| times(LoadSchedule::new(50., Spacing::Poisson, seed, ALONE), 100);
        assert_eq!(poisson(3), poisson(3));
        assert_ne!(poisson(3), poisson(4));
    }

    #[test]
    fn the_rest_of_a_schedule_is_counted() {
        let mut uniform = LoadSchedule::new(100., Spacing::Uniform, 1, ALONE);
        (0..30).for_each(|_| uniform.advance());
        assert_eq!(uniform.count_until(SECOND), 70);
        let poisson = LoadSchedule::new(1e7, Spacing::Poisson, 1, ALONE);
        let count = poisson.count_until(SECOND) as f64;
        assert!((count / 1e7 - 1.).abs() < 0.01, "{count}");
    }

    #[test]
    fn requests_before_a_time_are_left_out() {
        let share = Share { thread: 1, threads: 2, users: 1, all: 2 };
        let mut uniform = LoadSchedule::new(200., Spacing::Uniform, 1, share);
        uniform.skip_to(SECOND);
        assert_eq!(uniform.peek(), SECOND + 5_000_000);
        assert_eq!(uniform.clone().count_until(2 * SECOND), 100);
        uniform.skip_to(3);
        assert_eq!(uniform.peek(), SECOND + 5_000_000);
        let mut poisson = LoadSchedule::new(1000., Spacing::Poisson, 5, ALONE);
        poisson.skip_to(1_000_000 * SECOND);
        assert!(poisson.peek() >= 1_000_000 * SECOND);
    }

    #[test]
    fn the_rest_of_rounds_is_counted_as_it_would_be_sent() {
        let every = Duration::from_millis(10);
        let mut rounds = Rounds::spread(7, every, &mut SplitMix::new(4));
        (0..17).for_each(|_| rounds.advance());
        for (start, end) in [(0, 1_000_000_000), (33_000_000, 87_654_321), (5, 5), (50, 20)] {
            let counted = rounds.count_between(start, end);
            let mut walked = Rounds { phases: rounds.phases.clone(), ..rounds };
            let mut count = 0;
            while walked.peek().0 < end {
                count += u64::from(walked.peek().0 >= start);
                walked.advance();
            }
            assert_eq!(counted, count, "[{start}, {end})");
        }
    }

    #[test]
    fn each_user_has_one_request_in_each_round_at_its_own_phase() {
        let every = Duration::from_millis(100);
        let mut rounds = Rounds::spread(50, every, &mut SplitMix::new(9));
        let mut phases = Vec::new();
        for round in 0..3_u64 {
            let mut of_round = Vec::new();
            for _ in 0..50 {
                let (due, user) = rounds.peek();
                assert_eq!(due / 100_000_000, round);
                of_round.push((due % 100_000_000, user));
                rounds.advance();
            }
            assert!(of_round.is_sorted());
            phases.push(of_round);
        }
        assert!(phases[0] == phases[1] && phases[1] == phases[2]);
        let mut users: Vec<u32> = phases[0].iter().map(|it| it.1).collect();
        users.sort_unstable();
        assert!(users.into_iter().eq(0..50));
        let early = phases[0].iter().filter(|it| it.0 < 50_000_000).count();
        assert!((15..35).contains(&early), "{early} of 50 in the first half");
    }

    #[test]
    fn a_burst_has_all_users_at_one_time() {
        let mut rounds = Rounds::together(3, Duration::from_secs(1));
        let mut next = || {
            let it = rounds.peek();
            rounds.advance();
            it
        };
        assert_eq!([next(), next(), next(), next()], [(0, 0), (0, 1), (0, 2), (SECOND, 0)]);
    }
}
