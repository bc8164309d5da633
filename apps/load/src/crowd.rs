//! Users of one thread, with their connects, requests, answers, limits and failures.
//!
//! [`UserCrowd`] does not know when requests are due. Its list `news` contains the users that
//! became able to send, and the thread's pace decides when they send.

mod streaming;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use mio::{Registry, Token};

use crate::alarm::RunClock;
use crate::answer::Dialogue;
use crate::failure::Failure;
use crate::moments::{Moments, Quota};
use crate::plan::{Plan, Protocol, Shape};
use crate::sockets;
use crate::stream::Streams;
use crate::tally::{Tally, ThreadReports};
use crate::user::{AnswerInbox, QUEUE_MAX, Request, State, User};
use crate::verdict::Trouble;

/// Times of a run in ns of its clock. Each is `u64::MAX` until it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMoments {
    /// Start of the traffic.
    pub traffic: u64,
    /// Start of the measurement, after the warm-up.
    pub start: u64,
    /// Time at which the measurement ends.
    pub end: u64,
}

impl RunMoments {
    /// Returns whether the measurement includes a request that is due at this time, or an event at
    /// this time.
    pub fn has(&self, time: u64) -> bool {
        (self.start..self.end).contains(&time)
    }
}

/// Notice that a user has become able to send.
#[derive(Clone, Copy)]
pub struct CrowdUpdate {
    pub user: u32,
    /// Time at which the user has become able to send.
    pub at: u64,
    /// Whether the user has a new connection. Otherwise, the user can send because a request was
    /// answered or lost.
    pub is_new: bool,
}

/// Readiness of a user's socket, as reported by an event.
#[derive(Clone, Copy)]
pub struct UserReadiness {
    pub readable: bool,
    pub writable: bool,
    /// Whether the end of the stream, or an error, can be read from the socket.
    pub end: bool,
}

/// All users of one thread.
pub struct UserCrowd<'a> {
    plan: &'a Plan,
    desk: &'a ThreadReports,
    pub clock: RunClock,
    pub window: RunMoments,
    pub users: Vec<User>,
    pub tally: Tally,
    /// Number of requests in flight of all users together.
    pub under_way: usize,
    /// Number of requests that were dropped because the queue of their user had [`QUEUE_MAX`]
    /// requests.
    pub unsent: u64,
    /// Users that have become able to send since the list was last drained.
    pub news: Vec<CrowdUpdate>,
    pub streams: Streams,
    registry: Registry,
    dialogue: Dialogue,
    to: SocketAddr,
    /// Number of the first user among the users of all threads, and the distance to the next user
    /// of this thread.
    first: usize,
    stride: usize,
    timers: BinaryHeap<Reverse<UserTimer>>,
    /// Users that wait for a connection.
    to_connect: VecDeque<u32>,
    connecting: usize,
    inbox: AnswerInbox,
    buffer: Vec<u8>,
    /// Users with new requests that were not passed to their sockets yet.
    issued: Vec<u32>,
    /// Users whose sockets contain further answers, because one iteration of the event loop reads
    /// only some.
    unread: VecDeque<u32>,
    /// Number of bytes of answers that were read since the timers were last checked.
    bytes_read: u64,
    quota: Option<&'a Quota>,
    /// Whether the last request of the quota was answered or lost. The reporter must then be woken.
    pub is_quota_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UserTimer {
    at: u64,
    user: u32,
    /// Generation of the connection to which the timer belongs. Unused for limits, which are
    /// identified by `at`.
    generation: u32,
    is_limit: bool,
}

/// Size of a read buffer in bytes, which is also the size that iperf3 uses.
const BUFFER: usize = 128 * 1024;
/// Maximum number of bytes that are read between two checks of timers, commands and the end of the
/// run. Reading them takes some ms.
const BYTES_READ_MAX: u64 = 4 << 20;

impl<'a> UserCrowd<'a> {
    pub fn new(
        plan: &'a Plan,
        desk: &'a ThreadReports,
        moments: &'a Moments,
        registry: Registry,
        to: SocketAddr,
        first: usize,
    ) -> Self {
        let dialogue = Dialogue::new(plan);
        let stride = plan.threads.min(plan.users);
        let count = (first..plan.users).step_by(stride).len();
        let mut users: Vec<User> = (0..count).map(|_| User::new(&dialogue)).collect();
        let mut to_connect = VecDeque::new();
        if plan.shape == Shape::ConnectEach {
            users.iter_mut().for_each(|it| it.state = State::Closed);
            desk.settled.store(count, Relaxed);
        } else {
            to_connect.extend(0..count as u32);
        }
        Self {
            plan,
            desk,
            clock: moments.clock,
            window: RunMoments { traffic: u64::MAX, start: u64::MAX, end: u64::MAX },
            users,
            tally: Tally::default(),
            under_way: 0,
            unsent: 0,
            news: Vec::new(),
            streams: Streams::new(plan),
            registry,
            dialogue,
            to,
            first,
            stride,
            timers: BinaryHeap::new(),
            to_connect,
            connecting: 0,
            inbox: AnswerInbox::default(),
            buffer: vec![0; BUFFER],
            issued: Vec::new(),
            unread: VecDeque::new(),
            bytes_read: 0,
            quota: moments.quota.as_ref(),
            is_quota_over: false,
        }
    }

    fn is_udp(&self) -> bool {
        self.plan.protocol == Protocol::Udp
    }

    /// Returns the number of a user among the users of all threads.
    fn number(&self, user: u32) -> usize {
        self.first + user as usize * self.stride
    }

    fn is_each(&self) -> bool {
        self.plan.shape == Shape::ConnectEach
    }

    /// Returns whether a user can send a new request immediately.
    pub fn can_send(&self, user: u32) -> bool {
        let it = &self.users[user as usize];
        let is_open = it.state == State::Open || self.is_each() && it.state == State::Closed;
        is_open && it.under_way() + it.waiting() < self.plan.depth
    }

    /// Adds a request that is due at the time `due` to a user's queue. [`UserCrowd::flush_issued`]
    /// sends the request, or leaves it in the queue if the user cannot send now.
    pub fn issue(&mut self, user: u32, due: u64) {
        let is_measured = self.window.has(due);
        let it = &mut self.users[user as usize];
        if it.waiting() >= QUEUE_MAX {
            self.unsent += u64::from(is_measured);
            return;
        }
        if is_measured && self.quota.is_some_and(|it| !it.take()) {
            return;
        }
        it.push(due);
        if it.state == State::Closed {
            let now = self.clock.now();
            self.start(user, now);
            self.connect(user);
        } else if self.issued.last() != Some(&user) {
            self.issued.push(user);
        }
    }

    /// Sends all issued requests. Several requests of a user share a write if possible.
    pub fn flush_issued(&mut self) {
        let mut issued = std::mem::take(&mut self.issued);
        issued.drain(..).for_each(|user| self.flush(user));
        self.issued = issued;
    }

    /// Sends as many requests from a user's queue as the depth allows.
    fn flush(&mut self, user: u32) {
        let depth = self.plan.depth;
        while self.users[user as usize].may_send(depth) {
            let now = self.clock.now();
            if now >= self.window.end {
                return;
            }
            // A write can contain only a single datagram.
            let most = if self.is_udp() { 1 } else { depth };
            for _ in 0..most {
                if !self.users[user as usize].has_next(depth) {
                    break;
                }
                self.start(user, now);
            }
            if !self.send_rest(user) {
                return;
            }
        }
    }

    /// Returns whether users still send new requests.
    fn is_running(&self) -> bool {
        self.clock.now() < self.window.end
    }

    /// Starts the next request in a user's queue.
    fn start(&mut self, user: u32, now: u64) {
        let it = &mut self.users[user as usize];
        let request = it.start_next(&self.dialogue, now);
        self.under_way += 1;
        if self.window.has(request.due) {
            self.tally.sent += 1;
            self.tally.waited_for_user += u64::from(it.free_since > request.due);
            let from = request.due.max(it.free_since);
            self.tally.lateness.record_ns(request.sent.saturating_sub(from));
        }
        self.limit(user, request.sent + self.plan.timeout.as_nanos() as u64);
    }

    /// Sends the unsent bytes of a user's started requests. Returns false if the user has failed.
    fn send_rest(&mut self, user: u32) -> bool {
        let number = self.number(user) as u64;
        match self.users[user as usize].send_rest(&mut self.dialogue, number) {
            Ok(0) => true,
            Ok(bytes) => {
                if self.clock.now() >= self.window.start {
                    self.tally.bytes_sent += bytes as u64;
                }
                true
            }
            Err(trouble) => {
                self.fail(user, &trouble);
                false
            }
        }
    }

    /// Starts further connects, up to the plan's limit on the number of concurrent connects.
    pub fn connect_some(&mut self) {
        while self.connecting < self.plan.connecting_max
            && let Some(user) = self.to_connect.pop_front()
        {
            self.connect(user);
        }
    }

    fn connect(&mut self, user: u32) {
        let locals = &self.plan.local_addresses;
        let number = self.number(user);
        let from = (!locals.is_empty()).then(|| locals[number % locals.len()]);
        let token = Token(user as usize);
        let since = self.clock.now();
        let it = &mut self.users[user as usize];
        it.begin_reading(&self.dialogue);
        let is_udp = self.plan.protocol == Protocol::Udp;
        let opened = if is_udp {
            let socket = sockets::udp(self.to, from).map_err(Trouble::from);
            socket.and_then(|socket| it.open_udp(socket, &self.registry, token))
        } else {
            let stream = sockets::tcp(self.to, from).map_err(Trouble::from);
            stream.and_then(|stream| it.open_tcp(stream, &self.registry, token))
        };
        match opened {
            Err(trouble) => self.fail(user, &trouble),
            Ok(()) if is_udp => self.on_connected(user, None),
            Ok(()) => {
                it.state = State::Connecting { since };
                self.connecting += 1;
                self.desk.connecting.store(self.connecting, Relaxed);
                self.limit(user, since + self.plan.connect_timeout.as_nanos() as u64);
            }
        }
    }

    /// Handles a connection that was established. `since` is the time of the SYN, or `None` if no
    /// SYN was sent.
    fn on_connected(&mut self, user: u32, since: Option<u64>) {
        let now = self.clock.now();
        if let Some(since) = since {
            self.tally.connect.record_ns(now - since);
        }
        let it = &mut self.users[user as usize];
        it.state = State::Open;
        self.desk.connected.fetch_add(1, Relaxed);
        if it.is_settled {
            self.tally.reconnects += u64::from(self.plan.shape != Shape::ConnectEach);
        }
        self.settle(user);
        if self.plan.shape.is_stream() {
            self.streams.take_turn(&mut self.users[user as usize], user);
        } else if !self.is_each() {
            self.users[user as usize].free_since = now;
            self.news.push(CrowdUpdate { user, at: now, is_new: true });
            // Send the requests that became due while the user had no connection.
            self.flush(user);
        }
    }

    fn settle(&mut self, user: u32) {
        let it = &mut self.users[user as usize];
        if !it.is_settled {
            it.is_settled = true;
            if self.plan.shape != Shape::ConnectEach {
                self.desk.settled.fetch_add(1, Relaxed);
            }
        }
    }

    /// Handles an event that reports the readiness of a user's socket.
    pub fn on_event(&mut self, user: u32, ready: UserReadiness) {
        let Some(it) = self.users.get(user as usize) else { return };
        match it.state {
            State::Connecting { since } => match it.is_established() {
                Ok(false) => return,
                Ok(true) => {
                    self.leave_connecting();
                    self.on_connected(user, Some(since));
                }
                Err(trouble) => return self.fail(user, &trouble),
            },
            State::Open => {}
            State::Closed | State::Waiting => return,
        }
        if self.plan.shape.is_stream() {
            return self.streams.take_turn(&mut self.users[user as usize], user);
        }
        if ready.writable {
            if !self.send_rest(user) {
                return;
            }
            self.flush(user);
        }
        if (ready.readable || ready.end) && self.users[user as usize].state == State::Open {
            if self.bytes_read < BYTES_READ_MAX {
                self.receive(user, ready.end);
            } else {
                self.read_later(user);
            }
        }
    }

    fn read_later(&mut self, user: u32) {
        if !std::mem::replace(&mut self.users[user as usize].is_unread, true) {
            self.unread.push_back(user);
        }
    }

    /// Reads answers that are left in the sockets because too many arrived at once. Returns whether
    /// some are still unread.
    pub fn receive_some(&mut self) -> bool {
        self.bytes_read = 0;
        for _ in 0..self.unread.len() {
            if self.bytes_read >= BYTES_READ_MAX {
                break;
            }
            let Some(user) = self.unread.pop_front() else { break };
            let it = &mut self.users[user as usize];
            it.is_unread = false;
            if it.state == State::Open {
                // Check whether the stream has ended, because its end causes no further event.
                self.receive(user, true);
            }
        }
        !self.unread.is_empty()
    }

    fn leave_connecting(&mut self) {
        self.connecting -= 1;
        self.desk.connecting.store(self.connecting, Relaxed);
    }

    fn receive(&mut self, user: u32, has_end: bool) {
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.clear();
        let it = &mut self.users[user as usize];
        let was_full = it.under_way() >= self.plan.depth;
        let (dialogue, buffer) = (&self.dialogue, &mut self.buffer);
        let result = it.receive(dialogue, buffer, self.clock, has_end, &mut inbox);
        if was_full && let Some(first) = inbox.answers.first() {
            it.free_since = first.at;
        }
        let mut closes = false;
        for answered in &inbox.answers {
            closes |= answered.verdict.closes;
            let refusal = answered.verdict.refusal.as_ref();
            self.on_answer(&answered.request, answered.at, refusal);
            self.news.push(CrowdUpdate { user, at: answered.at, is_new: false });
        }
        // Count answers that arrive after the measurement, too: they belong to the last requests of
        // the measurement.
        if inbox.bytes > 0 && self.clock.now() >= self.window.start {
            self.tally.bytes_received += inbox.bytes;
        }
        self.bytes_read += inbox.bytes;
        self.tally.late_answers += inbox.late;
        let is_answered = !inbox.answers.is_empty();
        self.inbox = inbox;
        let is_done = is_answered && (self.is_each() || closes);
        match result {
            // No request is lost. The server has answered the last one before it closed the
            // connection.
            Err(trouble)
                if is_done
                    && trouble.kind == Failure::Closed
                    && self.users[user as usize].under_way() == 0 =>
            {
                self.hang_up(user);
            }
            Err(trouble) if trouble.kind == Failure::Closed && self.is_idle(user) => {
                self.on_idle_close(user);
            }
            Err(trouble) => self.fail(user, &trouble),
            Ok(_) if is_done => self.hang_up(user),
            Ok(has_more) => {
                self.flush(user);
                if has_more {
                    self.read_later(user);
                }
            }
        }
    }

    /// Returns whether no request is in flight on a user's connection.
    fn is_idle(&self, user: u32) -> bool {
        self.users[user as usize].under_way() == 0
    }

    /// Handles that the server has closed a connection while no request was in flight. No request
    /// is lost.
    fn on_idle_close(&mut self, user: u32) {
        let idle_since = self.users[user as usize].free_since;
        self.drop_connection(user);
        self.settle(user);
        self.tally.closed_idle += 1;
        // Pause before the next connect. Otherwise a server that closes immediately would cause an
        // endless loop of connects.
        self.connect_at(user, idle_since + self.plan.reconnect_pause.as_nanos() as u64);
    }

    /// Schedules a connect at the time `at`, or immediately if the time has passed.
    fn connect_at(&mut self, user: u32, at: u64) {
        if self.is_running() {
            let generation = self.users[user as usize].generation;
            self.timers.push(Reverse(UserTimer { at, user, generation, is_limit: false }));
        }
    }

    /// Subtracts requests that were answered or lost from the quota.
    fn conclude(&mut self, count: u64) {
        if let Some(quota) = self.quota {
            self.is_quota_over |= quota.conclude(count, self.clock.now());
        }
    }

    fn on_answer(&mut self, request: &Request, at: u64, refusal: Option<&Trouble>) {
        self.under_way -= 1;
        let response = at.saturating_sub(request.due);
        let is_measured = self.window.has(request.due);
        self.conclude(u64::from(is_measured));
        if let Some(trouble) = refusal {
            if is_measured {
                self.tally.lost.record_ns(response);
            }
            let to = self.to;
            self.tally.failures.add(trouble.kind, 1, || format!("{to}: {trouble}"));
        } else if is_measured {
            self.tally.received += 1;
            self.tally.response.record_ns(response);
            self.tally.service.record_ns(at.saturating_sub(request.sent));
        }
    }

    /// Closes a connection without an error, either after its only request, or because the server
    /// announced the end.
    fn hang_up(&mut self, user: u32) {
        self.drop_connection(user);
        if self.is_each() {
            self.users[user as usize].state = State::Closed;
        } else if self.is_running() {
            self.to_connect.push_back(user);
        }
    }

    /// Counts a failure and the requests that it lost. Schedules a reconnect after a pause.
    fn fail(&mut self, user: u32, trouble: &Trouble) {
        let is_connecting = matches!(self.users[user as usize].state, State::Connecting { .. });
        let lost = self.drop_connection(user);
        self.settle(user);
        let to = self.to;
        self.tally.failures.add(trouble.kind, lost.max(1), || format!("{to}: {trouble}"));
        if is_connecting && lost == 0 {
            self.on_connect_failed(user);
        }
        // Send the next datagram without a pause, because lost datagrams are normal in a network.
        let is_loss = self.is_udp() && trouble.kind == Failure::NoAnswer;
        let pause = if is_loss { 0 } else { self.plan.reconnect_pause.as_nanos() as u64 };
        self.connect_at(user, self.clock.now() + pause);
    }

    /// Counts a failed connect as a request of the quota. Otherwise a run against an unreachable
    /// server would never end. If the user has queued requests, counts one of them.
    fn on_connect_failed(&mut self, user: u32) {
        let Some(quota) = self.quota else { return };
        let is_one = match self.users[user as usize].drop_waiting() {
            Some(due) => self.window.has(due),
            None => self.window.has(self.clock.now()) && quota.take(),
        };
        self.conclude(u64::from(is_one));
    }

    /// Closes a connection. Returns the number of requests that were in flight and are therefore
    /// lost.
    fn drop_connection(&mut self, user: u32) -> u64 {
        let now = self.clock.now();
        let it = &mut self.users[user as usize];
        match it.state {
            State::Open => {
                self.desk.connected.fetch_sub(1, Relaxed);
            }
            State::Connecting { .. } => {
                self.connecting -= 1;
                self.desk.connecting.store(self.connecting, Relaxed);
            }
            State::Closed | State::Waiting => {}
        }
        let (mut lost, mut measured) = (0, 0);
        it.close(|request| {
            lost += 1;
            if self.window.has(request.due) {
                measured += 1;
                self.tally.lost.record_ns(now.saturating_sub(request.due));
            }
        });
        self.under_way -= lost;
        self.conclude(measured);
        lost as u64
    }

    /// Schedules a check of a user's limits at the time `at`, unless an earlier check is scheduled.
    fn limit(&mut self, user: u32, at: u64) {
        let it = &mut self.users[user as usize];
        if at < it.limit_at {
            it.limit_at = at;
            self.timers.push(Reverse(UserTimer { at, user, generation: 0, is_limit: true }));
        }
    }

    /// Returns the time of the next timer. `None` if there is no timer.
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse(it)| it.at)
    }

    /// Handles all timers that have expired.
    pub fn on_time(&mut self, now: u64) {
        while let Some(&Reverse(timer)) = self.timers.peek()
            && timer.at <= now
        {
            self.timers.pop();
            let it = &mut self.users[timer.user as usize];
            if timer.is_limit {
                if it.limit_at == timer.at {
                    it.limit_at = u64::MAX;
                    self.on_limit(timer.user, now);
                }
            } else if it.state == State::Waiting && it.generation == timer.generation {
                self.end_pause(timer.user, now);
            }
        }
    }

    fn end_pause(&mut self, user: u32, now: u64) {
        if self.is_each() {
            let it = &mut self.users[user as usize];
            it.state = State::Closed;
            it.free_since = now;
            self.news.push(CrowdUpdate { user, at: now, is_new: true });
        } else {
            self.to_connect.push_back(user);
        }
    }

    fn on_limit(&mut self, user: u32, now: u64) {
        let it = &self.users[user as usize];
        let timeout = self.plan.timeout.as_nanos() as u64;
        match it.state {
            State::Connecting { since } => {
                let at = since + self.plan.connect_timeout.as_nanos() as u64;
                if at > now {
                    return self.limit(user, at);
                }
                self.fail(user, &Trouble::text(Failure::ConnectTimeout, "no answer to the SYN"));
            }
            State::Open => {
                let Some(oldest) = it.oldest() else { return };
                let at = oldest.sent + timeout;
                if at > now {
                    return self.limit(user, at);
                }
                if self.dialogue.numbered {
                    return self.give_up(user, now);
                }
                let trouble = if it.has_part() {
                    Trouble::text(Failure::ShortAnswer, "a part of the answer, then silence")
                } else {
                    Trouble::text(Failure::NoAnswer, "not a byte of the answer in time")
                };
                self.fail(user, &trouble);
            }
            State::Closed | State::Waiting => {}
        }
    }

    /// Counts numbered datagrams that have timed out as lost. The socket is kept.
    fn give_up(&mut self, user: u32, now: u64) {
        let timeout = self.plan.timeout.as_nanos() as u64;
        let it = &mut self.users[user as usize];
        let was_full = it.under_way() >= self.plan.depth;
        let (mut lost, mut measured) = (0, 0);
        it.give_up(now - timeout, |request| {
            lost += 1;
            if self.window.has(request.due) {
                measured += 1;
                self.tally.lost.record_ns(now.saturating_sub(request.due));
            }
        });
        if was_full {
            it.free_since = now;
        }
        let next = it.oldest().map(|it| it.sent + timeout);
        self.under_way -= lost;
        self.conclude(measured);
        let to = self.to;
        self.tally.failures.add(Failure::NoAnswer, lost as u64, || format!("{to}: lost datagram"));
        self.news.extend((0..lost).map(|_| CrowdUpdate { user, at: now, is_new: false }));
        if let Some(at) = next {
            self.limit(user, at);
        }
        self.flush(user);
    }

    /// Counts the requests that are still in flight or in a queue at the end of the run.
    pub fn finish(&mut self) {
        for user in 0..self.users.len() as u32 {
            let lost = self.drop_connection(user);
            let it = &self.users[user as usize];
            self.unsent += it.due().filter(|&due| self.window.has(due)).count() as u64;
            if lost > 0 {
                let to = self.to;
                let example = || format!("{to}: the run ended first");
                self.tally.failures.add(Failure::Unanswered, lost, example);
            }
        }
    }
}
