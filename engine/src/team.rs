//! Distributes shards over threads.
//!
//! A shard is a part of the engine with its own sockets and event loop. A team is the set of shards
//! that one thread runs. Between two iterations of the event loop, another thread may take half of
//! a team's shards. Shards communicate only by rings and notifications, so they need not know which
//! thread runs them. If threads are added on demand, a team is halved when its thread has used 80 %
//! of a processor for 100 ms. Teams are never merged.
//!
//! ```text
//!   0 1 2 3      one thread, which sleeps in shard 0's poller, where the others are registered
//!   0 1 │ 2 3    the thread was busy
//!   0 1 │ 2 │ 3  the second thread was busy, too
//! ```

use std::os::fd::AsFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::{io, thread};

use towpath_tcp::Instant;

use crate::clock;
use crate::control::RegistryLink;
use crate::shard::Shard;

/// Interval over which the processor usage of a thread is measured.
const WATCHED: Duration = Duration::from_millis(100);
/// Number of iterations without work after which a shard sleeps while its thread continues to run
/// other shards. The thread wakes it when its descriptors are ready.
const IDLE_TURNS: u32 = 64;
/// Number of polls for work before a sleep in an engine with a manual clock, which does not advance
/// meanwhile.
const LOOKS_BY_HAND: u32 = 100;
/// Processor usage in percent from which a thread counts as busy.
pub(crate) const BUSY: u32 = 80;

/// The set of shards that one thread runs.
pub(crate) struct Team<'a> {
    /// The first shard. Its poller contains the pollers of the other shards (see [`Team::gather`]).
    pub first: &'a mut Shard,
    pub others: &'a mut Vec<Shard>,
    pub busy: &'a mut Busy,
}

/// Processor usage of a thread. Time in which the thread waits for a processor does not count: a
/// second thread would not reduce it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busy {
    since: Instant,
    /// Total processor time of the thread at the time `since`.
    used: Duration,
    /// Processor time that the thread has used for polling since the time `since`.
    spun: Duration,
}

impl Busy {
    /// Returns whether the thread has used at least `percent` of a processor since the last
    /// measurement. Returns false until [`WATCHED`] has passed. `used` returns the processor time
    /// that the thread has used so far.
    fn is_high(&mut self, now: Instant, percent: u32, used: impl FnOnce() -> Duration) -> bool {
        let span = now.since(self.since);
        if span < WATCHED {
            return false;
        }
        let before =
            std::mem::replace(self, Self { since: now, used: used(), spun: Duration::ZERO });
        let used = self.used.saturating_sub(before.used).saturating_sub(before.spun);
        // Return false for the first measurement, because its start time is unknown.
        before.since != Instant::default() && used * 100 >= span * percent
    }
}

impl Team<'_> {
    fn all(&mut self) -> impl Iterator<Item = &mut Shard> {
        std::iter::once(&mut *self.first).chain(&mut *self.others)
    }

    /// Registers the pollers of `others` in the poller of `first`. The thread can then wait for all
    /// shards by one poll.
    pub fn gather(first: &mut Shard, others: &[Shard]) -> io::Result<()> {
        for (n, other) in others.iter().enumerate() {
            if let Err(error) = first.watch_shard(other) {
                others[..n].iter().for_each(|other| first.watch_no_more(other.as_fd()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs one iteration of the event loop of every shard. Returns the time until the next one is
    /// due: zero if work is left, `None` if there is no deadline.
    pub fn turn(&mut self) -> Option<Duration> {
        if self.first.sleep.is_asleep {
            self.first.wake();
        }
        let mut timeout = self.first.turn();
        let called = std::mem::take(&mut self.first.sleep.shards_call);
        let now = self.first.sockets.now;
        for other in &mut *self.others {
            match called & other.sockets.place.own() != 0 {
                true if other.sleep.is_asleep => other.sleep(Some(Duration::ZERO)),
                true => {
                    other.look();
                }
                false if other.sleep.is_asleep && other.should_wake(now) => other.wake(),
                false => {}
            }
            let left = match other.sleep.is_asleep {
                true => other.sleep.due.map(|due| due.since(now)),
                false => other.turn(),
            };
            timeout = timeout.into_iter().chain(left).min();
        }
        if timeout != Some(Duration::ZERO) {
            return timeout;
        }
        // Poll the descriptors of the first shard, which include the pollers of all others.
        self.first.look_in_time();
        // Let shards sleep that had no work for a while, so that the loop above skips them.
        for other in &mut *self.others {
            if !other.sleep.is_asleep && other.sleep.idle_turns >= IDLE_TURNS {
                other.begin_sleep();
            }
        }
        timeout
    }

    /// Polls for work before a sleep of at most `timeout`, if earlier polls have usually found
    /// work. Yields the processor to other threads between polls. Returns whether there is work.
    pub fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        let mut now = self.first.net.clock.now();
        let Some(until) = self.first.sleep.lookout.until(now, timeout) else { return false };
        // Do not measure the processor usage of a single shard, because its team cannot be halved.
        let is_watched = !self.others.is_empty();
        let used = || if is_watched { clock::used_by_thread() } else { Duration::ZERO };
        let used_before = used();
        let mut found = false;
        self.all().filter(|shard| !shard.sleep.is_asleep).for_each(Shard::pause);
        let is_by_hand = self.first.net.clock.is_by_hand();
        let looks = if is_by_hand { LOOKS_BY_HAND } else { u32::MAX };
        for _ in 0..looks {
            thread::yield_now();
            let before = std::mem::replace(&mut now, self.first.net.clock.now());
            if self.first.sleep.lookout.is_taken(before, now) {
                return false;
            }
            if self.all().any(|shard| shard.has_something()) {
                // Poll the descriptors from time to time, even if there is always other work.
                self.first.look_in_time();
                found = true;
            } else {
                found = self.first.look();
            }
            if found || now >= until {
                break;
            }
        }
        self.first.sleep.lookout.learn(found);
        self.busy.spun += used().saturating_sub(used_before);
        found
    }

    /// Polls for work for a short time, then sleeps for at most `timeout`. Called when no work is
    /// left.
    pub fn rest(&mut self, timeout: Option<Duration>) {
        let due = timeout.map(|timeout| self.first.sockets.now + timeout);
        if !self.busy_poll(timeout) && self.begin_sleep() {
            let now = self.first.net.clock.now();
            self.sleep(due.map(|due| due.since(now)));
        }
    }

    /// Begins a sleep of all shards. Returns false, without sleeping, if there is work. No command
    /// of a program is missed: see [`towpath_ring::EngineStatus::fall_asleep`].
    pub fn begin_sleep(&mut self) -> bool {
        let mut fallen = 0;
        let fall_asleep = |shard: &mut Shard| {
            if !shard.sleep.is_asleep && shard.begin_sleep() {
                fallen |= shard.sockets.place.own();
            }
            shard.sleep.is_asleep
        };
        if self.all().all(fall_asleep) {
            return true;
        }
        self.all().filter(|shard| shard.sockets.place.own() & fallen != 0).for_each(Shard::wake);
        false
    }

    /// Waits for events for at most `timeout`. The timeout is zero if the host program has already
    /// slept for the engine. Shards without work continue to sleep.
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        self.first.sleep(timeout);
    }

    /// Updates the work counters of all shards at the end of an iteration of the event loop.
    pub fn end_of_turn(&mut self) {
        self.all().for_each(Shard::end_of_turn);
    }

    /// Splits off half of the team's shards, at least one of two. Returns `None` if the system has
    /// no resources for that.
    fn halve(&mut self) -> Option<Vec<Shard>> {
        let all = 1 + self.others.len();
        let mut theirs = self.others.split_off(all - all / 2 - 1);
        if let [first, others @ ..] = &mut theirs[..]
            && Team::gather(first, others).is_err()
        {
            self.others.append(&mut theirs);
            return None;
        }
        theirs.iter().for_each(|shard| self.first.watch_no_more(shard.as_fd()));
        Some(theirs)
    }
}

/// State shared by all threads that run the shards of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    /// Links of the shards to the registry, indexed by shard number.
    pub desks: Vec<RegistryLink>,
    /// Processor usage of a thread in percent from which its team is halved. `None`: teams are
    /// halved at once.
    pub need: Option<u32>,
}

/// An additional thread that runs shards. Joining it returns these shards, and those of threads
/// that it has started itself.
pub(crate) type Helper = JoinHandle<Vec<Shard>>;

impl Threads {
    fn registry_link(&self, shard: &Shard) -> &RegistryLink {
        &self.desks[shard.sockets.place.number as usize]
    }

    /// Runs the shards of a team until all are stopped. Returns the additional threads that were
    /// started and run some of the shards.
    pub fn work(&self, team: &mut Team<'_>) -> Vec<Helper> {
        let mut helpers = Vec::new();
        let mut at_once = self.need.is_none();
        while at_once && !team.others.is_empty() {
            // If no thread can be created now, try again when the thread is busy.
            at_once = self.halve(team, &mut helpers);
        }
        loop {
            let timeout = team.turn();
            let mut told = false;
            for shard in team.all() {
                told |= self.registry_link(shard).exchange(shard);
                shard.end_of_turn();
            }
            if team.all().all(|shard| shard.sleep.stopped) {
                return helpers;
            }
            if !told && timeout != Some(Duration::ZERO) {
                team.rest(timeout);
            }
            let (now, need) = (team.first.sockets.now, self.need.unwrap_or(BUSY));
            if !team.others.is_empty() && team.busy.is_high(now, need, clock::used_by_thread) {
                self.halve(team, &mut helpers);
            }
        }
    }

    /// Moves half of a team to a new thread. Returns false if the thread cannot be created.
    fn halve(&self, team: &mut Team<'_>, helpers: &mut Vec<Helper>) -> bool {
        let (give, take) = mpsc::channel::<Vec<Shard>>();
        let threads = self.clone();
        let help = move || take.recv().map_or(Vec::new(), |shards| threads.help(shards));
        let Ok(helper) = Builder::new().name("towpath-shard".into()).spawn(help) else {
            return false;
        };
        let Some(mut theirs) = team.halve() else { return false };
        theirs.iter_mut().take(1).for_each(|first| first.sockets.counters.threads += 1);
        // Pass the shards to the new thread, which waits for them.
        give.send(theirs).expect("the thread has begun");
        helpers.push(helper);
        true
    }

    /// Runs shards on an additional thread until they are stopped, and returns them.
    fn help(&self, mut shards: Vec<Shard>) -> Vec<Shard> {
        let (mut others, mut busy) = (shards.split_off(1), Busy::default());
        let mut first = shards.remove(0);
        let mut team = Team { first: &mut first, others: &mut others, busy: &mut busy };
        let helpers = panic::catch_unwind(AssertUnwindSafe(|| {
            let helpers = self.work(&mut team);
            team.all().for_each(Shard::hang_up);
            helpers
        }));
        match helpers {
            Ok(helpers) => {
                self.finish(&mut team);
                shards.push(first);
                shards.append(&mut others);
                shards.extend(helpers.into_iter().flat_map(join));
                shards
            }
            Err(panic) => {
                // If this thread panics, report that its shards have failed, so that all shards are
                // stopped.
                team.all().for_each(|shard| self.registry_link(shard).abandon());
                panic::resume_unwind(panic)
            }
        }
    }

    /// Reports to the registry that the event loops of a team's shards have ended.
    fn finish(&self, team: &mut Team<'_>) {
        for shard in team.all() {
            self.registry_link(shard).finish(shard);
        }
    }
}

/// Waits until a thread has ended, and returns its shards.
///
/// # Panics
/// Panics if that thread has panicked, unless this thread is already panicking.
pub(crate) fn join(helper: Helper) -> Vec<Shard> {
    match helper.join() {
        Ok(shards) => shards,
        Err(panic) if !thread::panicking() => panic::resume_unwind(panic),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_that_works_most_of_the_time() {
        let ms = Duration::from_millis;
        let at = |after| Instant::default() + ms(after);
        let mut busy = Busy::default();
        assert!(!busy.is_high(at(1000), BUSY, || ms(900)), "it has just begun");
        for (n, used, spun, high) in [(1, 80, 0, true), (2, 79, 0, false), (3, 99, 20, false)] {
            busy.spun = ms(spun);
            let before = busy.used;
            let now = 1000 + n * 100;
            assert!(!busy.is_high(at(now - 1), BUSY, || panic!("it is too early to ask")));
            assert_eq!(busy.is_high(at(now), BUSY, || before + ms(used)), high, "{used} ms of 100");
        }
    }
}
