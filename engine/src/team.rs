//! Shards that one thread turns, and the threads that they get.
//!
//! A team of several may be halved between two turns, and another thread has the one half from then
//! on. Nothing else changes, since shards know each other by their rings and bells alone. Where
//! threads are given by need, a team is halved whenever its thread has used a processor for four
//! fifths of 100 ms. No team is put together again.
//!
//! ```text
//!   0 1 2 3      one thread, which sleeps in the poller of shard 0: the others' are in it
//!   0 1 │ 2 3    it was busy
//!   0 1 │ 2 │ 3  the second one was, too
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

/// How long a thread is watched before it is said to be busy.
const WATCHED: Duration = Duration::from_millis(100);
/// Turns without work after which a shard sleeps though its thread does not. Events on its
/// descriptors are then found when its thread looks at them.
const IDLE_TURNS: u32 = 64;
/// Looks before a sleep on a clock that is turned by hand, which stands still meanwhile.
const LOOKS_BY_HAND: u32 = 100;
/// Share of a processor that a busy thread uses, in percent.
pub(crate) const BUSY: u32 = 80;

/// The shards of one thread, as long as nobody else has them.
pub(crate) struct Team<'a> {
    /// Its poller has those of the others: see [`Team::gather`].
    pub first: &'a mut Shard,
    pub others: &'a mut Vec<Shard>,
    pub busy: &'a mut Busy,
}

/// How busy a thread is. While it waits for a processor it is not: another thread would wait as
/// well.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busy {
    since: Instant,
    /// Time that the thread had used by then.
    used: Duration,
    /// Time that it used from then on to look for something to do.
    spun: Duration,
}

impl Busy {
    /// Whether the thread used `percent` of a processor or more since the last call that measured.
    /// A call measures after [`WATCHED`] only. `used` is the thread's time so far.
    fn is_high(&mut self, now: Instant, percent: u32, used: impl FnOnce() -> Duration) -> bool {
        let span = now.since(self.since);
        if span < WATCHED {
            return false;
        }
        let before =
            std::mem::replace(self, Self { since: now, used: used(), spun: Duration::ZERO });
        let used = self.used.saturating_sub(before.used).saturating_sub(before.spun);
        // The first time says nothing: there is no time before it.
        before.since != Instant::default() && used * 100 >= span * percent
    }
}

impl Team<'_> {
    fn all(&mut self) -> impl Iterator<Item = &mut Shard> {
        std::iter::once(&mut *self.first).chain(&mut *self.others)
    }

    /// The thread sleeps for all of them from now on.
    pub fn gather(first: &mut Shard, others: &[Shard]) -> io::Result<()> {
        for (n, other) in others.iter().enumerate() {
            if let Err(error) = first.watch_shard(other) {
                others[..n].iter().for_each(|other| first.watch_no_more(other.as_fd()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// All do what there is to do now, some of it at least. Gives how long they may sleep then;
    /// zero: there is more to do. None: nothing has a deadline.
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
        // For all of them, whoever has something to do.
        self.first.look_in_time();
        // Shards that have had nothing to do for a while cost the others nothing from now on.
        for other in &mut *self.others {
            if !other.sleep.is_asleep && other.sleep.idle_turns >= IDLE_TURNS {
                other.begin_sleep();
            }
        }
        timeout
    }

    /// Before a sleep of at most `timeout`: looks for something to do for a moment, if that has
    /// been worth it. Other threads may have the processor meanwhile. Returns whether there is
    /// something.
    pub fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        let mut now = self.first.net.clock.now();
        let Some(until) = self.first.sleep.lookout.until(now, timeout) else { return false };
        // The time of a shard alone is not measured: its team cannot be halved.
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
                // A thread that always finds work has to look at descriptors, too.
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

    /// After a turn that said that all may sleep for so long: sleeps, unless there is something all
    /// the same.
    pub fn rest(&mut self, timeout: Option<Duration>) {
        let due = timeout.map(|timeout| self.first.sockets.now + timeout);
        if !self.busy_poll(timeout) && self.begin_sleep() {
            let now = self.first.net.clock.now();
            self.sleep(due.map(|due| due.since(now)));
        }
    }

    /// False: do not sleep, there is something to do. No program's command is overlooked: see
    /// [`towpath_ring::EngineStatus::fall_asleep`].
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

    /// Sleeps after that, at most so long; zero after a sleep of the host's own. Shards that have
    /// nothing to do sleep on.
    pub fn sleep(&mut self, timeout: Option<Duration>) {
        self.first.sleep(timeout);
    }

    /// Ends the turn: the time of its requests and other events is over.
    pub fn end_of_turn(&mut self) {
        self.all().for_each(Shard::end_of_turn);
    }

    /// Lets go of half of the shards, one at least of two. None: the system has no room for that.
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

/// Parts that threads of an engine's shards share.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    /// Desks of the shards, in their order.
    pub desks: Vec<RegistryLink>,
    /// A team is halved when its thread uses so much of a processor, in percent; otherwise at once.
    pub need: Option<u32>,
}

/// A thread that has got shards, which it gives back in the end, with those that it gave to others.
pub(crate) type Helper = JoinHandle<Vec<Shard>>;

impl Threads {
    fn registry_link(&self, shard: &Shard) -> &RegistryLink {
        &self.desks[shard.sockets.place.number as usize]
    }

    /// Turns the shards of a team until all are stopped. The threads that have got some of them are
    /// stopped, too.
    pub fn work(&self, team: &mut Team<'_>) -> Vec<Helper> {
        let mut helpers = Vec::new();
        let mut at_once = self.need.is_none();
        while at_once && !team.others.is_empty() {
            // By need, where there are no threads to be had now.
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

    /// Gives half of a team to another thread. False: there is none to be had.
    fn halve(&self, team: &mut Team<'_>, helpers: &mut Vec<Helper>) -> bool {
        let (give, take) = mpsc::channel::<Vec<Shard>>();
        let threads = self.clone();
        let help = move || take.recv().map_or(Vec::new(), |shards| threads.help(shards));
        let Ok(helper) = Builder::new().name("towpath-shard".into()).spawn(help) else {
            return false;
        };
        let Some(mut theirs) = team.halve() else { return false };
        theirs.iter_mut().take(1).for_each(|first| first.sockets.counters.threads += 1);
        // The helper's thread waits for its shards.
        give.send(theirs).expect("the thread has begun");
        helpers.push(helper);
        true
    }

    /// Body of a helper's thread.
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
                // A panic of one thread ends all shards.
                team.all().for_each(|shard| self.registry_link(shard).abandon());
                panic::resume_unwind(panic)
            }
        }
    }

    /// The loops of a team's shards are over.
    fn finish(&self, team: &mut Team<'_>) {
        for shard in team.all() {
            self.registry_link(shard).finish(shard);
        }
    }
}

/// The shards of a thread that has ended.
///
/// # Panics
/// When that has, unless this one does already.
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
