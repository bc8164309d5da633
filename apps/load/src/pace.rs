//! Determines when users send their requests: in a closed loop, in an open loop, or in rounds of
//! heartbeats or bursts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::crowd::{RunMoments, UserCrowd};
use crate::plan::{Arrivals, Plan, Shape};
use crate::schedule::{LoadSchedule, Rounds, Share, SplitMix, phase};
use crate::user::State;

/// Maximum number of requests that are sent before the sockets are polled again. Otherwise a pace
/// that is behind its schedule would never read answers.
const BATCH: usize = 64;

/// Rule by which one thread sends its requests.
pub enum Pace {
    Closed(Closed),
    Open(Open),
    Rounds(Rounds),
    /// Streams need no pacing.
    Free,
}

/// Closed loop, in which the next request of a user is due after the user's last answer.
pub struct Closed {
    interval: Duration,
    depth: usize,
    random: SplitMix,
    /// Time of the next request, the user, and the generation of its connection. An entry with an
    /// old generation is stale.
    sends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    has_begun: bool,
}

/// Open loop, in which requests are due by a schedule. Each is sent by the user that has been free
/// longest.
pub struct Open {
    schedule: LoadSchedule,
    free: VecDeque<u32>,
}

impl Pace {
    /// Creates the pace of thread number `thread`, which is one of `threads`. The thread has
    /// `users` of the plan's users.
    pub fn new(plan: &Plan, thread: usize, threads: usize, users: usize) -> Self {
        // Derive a separate schedule for each thread from the seed of the plan.
        let mut random = SplitMix::new(plan.seed.wrapping_add(thread as u64));
        match (plan.shape, plan.arrivals) {
            (Shape::StreamUp | Shape::StreamDown | Shape::StreamBoth, _) => Self::Free,
            (Shape::Idle { heartbeat }, _) => {
                Self::Rounds(Rounds::spread(users as u32, heartbeat, &mut random))
            }
            (Shape::Burst { every }, _) => Self::Rounds(Rounds::together(users as u32, every)),
            (Shape::Request | Shape::ConnectEach, Arrivals::Open { per_second, spacing }) => {
                let share = Share {
                    thread: thread as u64,
                    threads: threads as u64,
                    users: users as u64,
                    all: plan.users as u64,
                };
                let schedule = LoadSchedule::new(per_second, spacing, random.next(), share);
                Self::Open(Open { schedule, free: VecDeque::with_capacity(users) })
            }
            (Shape::Request | Shape::ConnectEach, Arrivals::Closed) => Self::Closed(Closed {
                interval: plan.interval,
                depth: plan.depth,
                random,
                sends: BinaryHeap::new(),
                has_begun: false,
            }),
        }
    }

    /// Handles the start of the traffic.
    pub fn begin(&mut self, crowd: &mut UserCrowd<'_>) {
        match self {
            Self::Closed(closed) => closed.begin(crowd),
            Self::Open(open) => {
                (0..crowd.users.len() as u32).for_each(|user| open.list(crowd, user));
            }
            Self::Rounds(_) => {}
            Self::Free => crowd.begin_streams(),
        }
    }

    /// Handles all users that have become able to send.
    pub fn on_update(&mut self, crowd: &mut UserCrowd<'_>) {
        let mut at = 0;
        // Use an index, because sending a request may append further updates to the list.
        while let Some(&news) = crowd.news.get(at) {
            at += 1;
            match self {
                Self::Closed(closed) if news.is_new => closed.begin_user(crowd, news.user, news.at),
                Self::Closed(closed) => closed.on_answer(crowd, news.user, news.at),
                Self::Open(open) => open.list(crowd, news.user),
                Self::Rounds(_) | Self::Free => {}
            }
        }
        crowd.news.clear();
        crowd.flush_issued();
    }

    /// Returns the time of the next request. `None` if this depends on an answer or a connection.
    pub fn next(&self, traffic: u64) -> Option<u64> {
        match self {
            Self::Closed(closed) => closed.sends.peek().map(|Reverse((at, ..))| *at),
            Self::Open(open) if open.free.is_empty() => None,
            Self::Open(open) => Some(traffic.saturating_add(open.schedule.peek())),
            Self::Rounds(rounds) => Some(traffic.saturating_add(rounds.peek().0)),
            Self::Free => None,
        }
    }

    /// Returns the delay of the oldest request that is due and not sent, in ns.
    pub fn behind(&self, now: u64, traffic: u64) -> u64 {
        match self {
            Self::Open(open) => now.saturating_sub(traffic.saturating_add(open.schedule.peek())),
            _ => self.next(traffic).map_or(0, |due| now.saturating_sub(due)),
        }
    }

    /// Sends at most `BATCH` of the requests that are due.
    pub fn send_due(&mut self, crowd: &mut UserCrowd<'_>, now: u64) {
        let traffic = crowd.window.traffic;
        for _ in 0..BATCH {
            match self.next(traffic) {
                Some(due) if due <= now && due < crowd.window.end => self.send_one(crowd, due),
                _ => break,
            }
        }
        crowd.flush_issued();
    }

    fn send_one(&mut self, crowd: &mut UserCrowd<'_>, due: u64) {
        match self {
            Self::Closed(closed) => {
                if let Some(Reverse((_, user, generation))) = closed.sends.pop()
                    && crowd.users[user as usize].generation == generation
                    && crowd.can_send(user)
                {
                    crowd.issue(user, due);
                }
            }
            Self::Open(open) => {
                if let Some(user) = open.next_free(crowd) {
                    open.schedule.advance();
                    crowd.issue(user, due);
                    open.list(crowd, user);
                }
            }
            Self::Rounds(rounds) => {
                let (_, user) = rounds.peek();
                rounds.advance();
                crowd.issue(user, due);
            }
            Self::Free => {}
        }
    }

    /// Returns the number of requests that were due in the measurement, but never sent.
    pub fn unsent(self, window: RunMoments) -> u64 {
        let RunMoments { traffic, start, end } = window;
        if start >= end {
            return 0;
        }
        match self {
            Self::Closed(_) | Self::Free => 0,
            Self::Open(mut open) => {
                open.schedule.skip_to(start - traffic);
                open.schedule.count_until(end - traffic)
            }
            Self::Rounds(rounds) => rounds.count_between(start - traffic, end - traffic),
        }
    }
}

impl Closed {
    fn begin(&mut self, crowd: &mut UserCrowd<'_>) {
        self.has_begun = true;
        let traffic = crowd.window.traffic;
        for user in 0..crowd.users.len() as u32 {
            // Spread the first requests of the users over an interval. Otherwise users that start
            // together would stay together for many intervals.
            let at = traffic + phase(self.interval, &mut self.random);
            self.begin_user(crowd, user, at);
        }
    }

    fn begin_user(&mut self, crowd: &mut UserCrowd<'_>, user: u32, at: u64) {
        let it = &crowd.users[user as usize];
        // Apply the pause after an answer to the next connection as well.
        let pause = self.interval.as_nanos() as u64;
        let at = if it.answered_at > 0 { at.max(it.answered_at + pause) } else { at };
        if self.has_begun && matches!(it.state, State::Open | State::Closed) {
            let send = Reverse((at, user, it.generation));
            (0..self.depth).for_each(|_| self.sends.push(send));
        }
    }

    fn on_answer(&mut self, crowd: &mut UserCrowd<'_>, user: u32, at: u64) {
        if !crowd.can_send(user) {
            return;
        }
        if self.interval.is_zero() && at < crowd.window.end {
            return crowd.issue(user, at);
        }
        let generation = crowd.users[user as usize].generation;
        self.sends.push(Reverse((at + self.interval.as_nanos() as u64, user, generation)));
    }
}

impl Open {
    /// Adds a user to the list of free users, if it can send and is not in the list yet.
    fn list(&mut self, crowd: &mut UserCrowd<'_>, user: u32) {
        if crowd.can_send(user) && !std::mem::replace(listed(crowd, user), true) {
            self.free.push_back(user);
        }
    }

    fn next_free(&mut self, crowd: &mut UserCrowd<'_>) -> Option<u32> {
        while let Some(user) = self.free.pop_front() {
            *listed(crowd, user) = false;
            // Check again, because a user in the list may have lost its connection meanwhile.
            if crowd.can_send(user) {
                return Some(user);
            }
        }
        None
    }
}

fn listed<'a>(crowd: &'a mut UserCrowd<'_>, user: u32) -> &'a mut bool {
    &mut crowd.users[user as usize].is_listed
}
