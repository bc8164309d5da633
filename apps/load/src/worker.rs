//! Main loop of a thread: sends requests that are due, reads answers, and sleeps until the next
//! event.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread::Thread;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};

use crate::alarm::{SPIN_NS, TimerAlarm};
use crate::crowd::{RunMoments, UserCrowd, UserReadiness};
use crate::error::Error;
use crate::moments::Moments;
use crate::pace::Pace;
use crate::plan::Plan;
use crate::tally::{Tally, ThreadReports};

const ALARM: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// Maximum number of events per poll. A thread that is behind its schedule sends again after these
/// events.
const EVENTS: usize = 1024;

/// Descriptors of one thread, created before the thread, so that an error fails the run early.
pub struct Post {
    poll: Poll,
    alarm: TimerAlarm,
    pub waker: Arc<Waker>,
}

/// Figures of a thread at the end of the run.
pub struct Remains {
    pub tally: Tally,
    pub unsent: u64,
    pub connected: usize,
    /// Total time that the thread slept during the measurement, in ns.
    pub slept: u64,
    /// Time at which the thread's measurement ended: later than planned if the planned end had
    /// passed already.
    pub end: u64,
    /// Time at which the server closed the last stream. 0 if it closed none.
    pub last_end: u64,
}

impl Post {
    pub fn new() -> Result<Self, Error> {
        let poll = Poll::new().map_err(Error::system("make an epoll set"))?;
        let alarm =
            TimerAlarm::new(poll.registry(), ALARM).map_err(Error::system("make a timer"))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(Error::system("make an eventfd"))?;
        Ok(Self { poll, alarm, waker: Arc::new(waker) })
    }
}

/// Part of a run that one thread executes.
pub struct LoadWorker<'a> {
    plan: &'a Plan,
    moments: &'a Moments,
    desk: &'a ThreadReports,
    reporter: Thread,
    post: Post,
    events: Events,
    crowd: UserCrowd<'a>,
    pace: Pace,
    slept: u64,
    is_draining: bool,
}

impl<'a> LoadWorker<'a> {
    /// Creates the worker of thread number `thread`, which is one of `threads`.
    pub fn new(
        plan: &'a Plan,
        moments: &'a Moments,
        desk: &'a ThreadReports,
        reporter: Thread,
        post: Post,
        to: SocketAddr,
        (thread, threads): (usize, usize),
    ) -> Result<Self, Error> {
        let registry = post.poll.registry().try_clone();
        let registry = registry.map_err(Error::system("share an epoll set"))?;
        let crowd = UserCrowd::new(plan, desk, moments, registry, to, thread);
        let pace = Pace::new(plan, thread, threads, crowd.users.len());
        let events = Events::with_capacity(EVENTS);
        let (slept, is_draining) = (0, false);
        Ok(Self { plan, moments, desk, reporter, post, events, crowd, pace, slept, is_draining })
    }

    /// Executes the thread's part of the run until the end of the run.
    pub fn run(mut self) -> Result<Remains, Error> {
        loop {
            self.desk.hand_over(&mut self.crowd.tally, &self.reporter);
            self.observe();
            let now = self.moments.clock.now();
            if now < self.crowd.window.end {
                self.pace.send_due(&mut self.crowd, now);
                self.crowd.connect_some();
            }
            self.crowd.on_time(now);
            let mut is_idle = !self.crowd.receive_some();
            if now >= self.crowd.window.traffic {
                is_idle &= !self.crowd.stream_some();
            }
            self.pace.on_update(&mut self.crowd);
            self.report_quota();
            // Check again before sleeping. After the last answer, no event wakes the thread until
            // the grace period ends.
            if self.is_over() {
                break;
            }
            let behind = self.pace.behind(now, self.crowd.window.traffic);
            self.desk.behind_ns.store(behind, Relaxed);
            self.wait(is_idle)?;
            self.on_events();
            self.pace.on_update(&mut self.crowd);
        }
        let connected = self.desk.connected.load(Relaxed);
        let last_end = self.crowd.streams.last_end;
        self.crowd.finish();
        let unsent = self.crowd.unsent + self.pace.unsent(self.crowd.window);
        let (tally, end) = (self.crowd.tally, self.crowd.window.end);
        Ok(Remains { tally, unsent, connected, slept: self.slept, end, last_end })
    }

    /// Wakes the reporter after the last request of a quota, so that the reporter ends the run.
    fn report_quota(&mut self) {
        if std::mem::take(&mut self.crowd.is_quota_over) {
            self.reporter.unpark();
        }
    }

    /// Applies the times that the reporter has set since the last call.
    fn observe(&mut self) {
        let traffic = self.moments.traffic.load(Acquire);
        if traffic == u64::MAX {
            return;
        }
        let now = self.moments.clock.now();
        let window = &mut self.crowd.window;
        let is_beginning = window.traffic == u64::MAX;
        let mut end = self.moments.end.load(Acquire);
        if !is_beginning && end < window.end {
            // End the measurement now, because the run was stopped. Requests that were sent until
            // now are included.
            end = end.max(now);
        }
        let start = traffic.saturating_add(self.plan.warmup.as_nanos() as u64);
        *window = RunMoments { traffic, start, end: end.min(window.end) };
        if is_beginning && now < self.crowd.window.end {
            self.pace.begin(&mut self.crowd);
        }
        if !self.is_draining && now >= self.crowd.window.end {
            self.is_draining = true;
            self.crowd.finish_streams();
        }
    }

    fn is_over(&self) -> bool {
        let is_answered = self.crowd.under_way == 0 && self.crowd.streams.closing == 0;
        self.is_draining
            && (is_answered || self.moments.clock.now() >= self.moments.drained.load(Acquire))
    }

    /// Sleeps until the next deadline, or until a socket is ready.
    fn wait(&mut self, may_sleep: bool) -> Result<(), Error> {
        let before = self.moments.clock.now();
        let next = self.next_deadline().max(before);
        let is_near = next - before <= SPIN_NS;
        let limit = (is_near || !may_sleep).then_some(Duration::ZERO);
        if limit.is_none() && next < u64::MAX {
            self.post.alarm.set(before, next - SPIN_NS).map_err(Error::system("set a timer"))?;
        }
        match self.post.poll.poll(&mut self.events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.events.clear(),
            result => result.map_err(Error::system("wait for sockets"))?,
        }
        if may_sleep && next > before {
            let window = self.crowd.window;
            let after = self.moments.clock.now().min(window.end);
            self.slept += after.saturating_sub(before.max(window.start));
        }
        Ok(())
    }

    fn next_deadline(&self) -> u64 {
        let traffic = self.crowd.window.traffic;
        let timer = self.crowd.next_timer().unwrap_or(u64::MAX);
        let phase = if self.is_draining {
            self.moments.drained.load(Acquire)
        } else {
            self.crowd.window.end
        };
        let send = self.pace.next(traffic).filter(|_| !self.is_draining).unwrap_or(u64::MAX);
        timer.min(phase).min(send)
    }

    fn on_events(&mut self) {
        for event in &self.events {
            if event.token() != ALARM && event.token() != WAKER {
                let ready = UserReadiness {
                    readable: event.is_readable(),
                    writable: event.is_writable(),
                    end: event.is_read_closed() || event.is_error(),
                };
                self.crowd.on_event(event.token().0 as u32, ready);
                self.pace.on_update(&mut self.crowd);
            }
        }
        self.report_quota();
    }
}
