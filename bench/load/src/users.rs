//! Users who send now and then, whether they were answered or not. A time counts from when a question was due: what holds
//! one up holds up those behind it, and all of that is seen.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mio::unix::SourceFd;
use mio::{Interest, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde_json::Value;

use crate::asking::{Askers, Asking};
use crate::tally::Tally;

/// Each of `count` users sends `bytes` once in each `every`, from a moment in it that is his own and random.
pub fn run(
    to: SocketAddr,
    count: usize,
    bytes: usize,
    every: Duration,
    time: Duration,
) -> Result<Value> {
    ensure!(count > 0 && !every.is_zero(), "users and the time between two questions");
    let mut askers = Askers::new(to)?;
    let connections = askers.connect_all(count)?;
    let alarm = Alarm::new(&askers, Token(count))?;
    let mut users: Vec<User> =
        connections.into_iter().map(|asking| User { asking, due: VecDeque::new() }).collect();
    let start = Instant::now();
    let (end, latest) = (start + time, start + time + GRACE);
    let phases = phases(count, every);
    let mut questions =
        questions(start, &phases, every).take_while(|&(_, due)| due < end).peekable();
    let (mut tally, mut asked) = (Tally::new()?, 0);
    while (questions.peek().is_some() || tally.len() < asked) && Instant::now() < latest {
        let now = Instant::now();
        while let Some((number, due)) = questions.next_if(|&(_, due)| due <= now) {
            users[number].due.push_back(due);
            askers.ask(&mut users[number].asking, bytes)?;
            asked += 1;
        }
        if let Some(&(_, next)) = questions.peek() {
            alarm.set(next.saturating_duration_since(Instant::now()))?;
        }
        askers.wait(Some(latest.saturating_duration_since(now)))?;
        let ready: Vec<Token> = askers.events.iter().map(|event| event.token()).collect();
        for Token(number) in ready {
            if let Some(user) = users.get_mut(number) {
                user.hear(&mut askers, bytes, &mut tally)?;
            }
        }
    }
    let unanswered = asked - tally.len();
    // They took at least as long; without them who is slowest would look best.
    let waiting = users.iter().flat_map(|user| &user.due);
    waiting.for_each(|due| tally.add(due.elapsed()));
    let mut said = tally.json(time);
    said["unanswered"] = unanswered.into();
    Ok(said)
}

/// How long is waited for answers when nobody asks any more.
const GRACE: Duration = Duration::from_secs(1);

struct User {
    asking: Asking,
    /// When the questions that are not answered yet were due.
    due: VecDeque<Instant>,
}

impl User {
    fn hear(&mut self, askers: &mut Askers, bytes: usize, tally: &mut Tally) -> Result<()> {
        askers.go_on(&mut self.asking)?;
        let waiting = self.asking.missing().div_ceil(bytes);
        let now = Instant::now();
        for due in self.due.drain(..self.due.len() - waiting) {
            tally.add(now - due);
        }
        Ok(())
    }
}

/// When in each interval users send: the earliest first.
fn phases(count: usize, every: Duration) -> Vec<Duration> {
    let random = RandomState::new();
    let part = |n: usize| (random.hash_one(n) >> 11) as f64 / (1_u64 << 53) as f64;
    let mut phases: Vec<Duration> = (0..count).map(|n| every.mul_f64(part(n))).collect();
    phases.sort();
    phases
}

/// Whose turn it is, and when, for ever.
fn questions(
    start: Instant,
    phases: &[Duration],
    every: Duration,
) -> impl Iterator<Item = (usize, Instant)> {
    let rounds = (0..).map(move |round: u32| start + every * round);
    rounds.flat_map(move |round| {
        phases.iter().enumerate().map(move |(number, &phase)| (number, round + phase))
    })
}

/// A timer of the kernel: epoll's own limit of time is in milliseconds, which is longer than an answer takes.
struct Alarm(rustix::fd::OwnedFd);

impl Alarm {
    fn new(askers: &Askers, token: Token) -> Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        let registry = askers.poll.registry();
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    fn set(&self, time: Duration) -> Result<()> {
        // No time at all would disarm it.
        let time = Timespec::try_from(time.max(Duration::from_nanos(1)))?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_one_question_in_each_interval() {
        let (start, every) = (Instant::now(), Duration::from_millis(100));
        let phases = phases(50, every);
        assert!(phases.is_sorted() && phases.iter().all(|&phase| phase < every));
        let asked: Vec<_> = questions(start, &phases, every).take(150).collect();
        assert!(asked.is_sorted_by_key(|&(_, due)| due));
        for (round, of_round) in asked.chunks(50).enumerate() {
            let at = start + every * round as u32;
            assert!(of_round.iter().all(|&(_, due)| due >= at && due < at + every));
            assert!(of_round.iter().map(|&(number, _)| number).eq(0..50));
        }
    }
}
