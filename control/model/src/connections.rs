//! Connections to a run's control socket. A single thread handles all of them without blocking, so
//! that a slow client does not delay others.
//!
//! Limits apply per user, because both the run's user and root may send requests: neither can
//! exhaust the connections or memory of the other. A request beyond a limit fails with the error
//! `busy`.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::geteuid;

use crate::request::{Call, Reply, RequestFault};
use crate::server::{CallResponder, PATIENCE, user_behind};
use crate::subscriber::{Subscriber, is_later};
use crate::subscription::Subscription;
use crate::wait::wait;

/// Time limits for a client's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Maximum time between two bytes that are received or sent.
    silence: Duration,
    /// Maximum time in which the client must send the whole request.
    request: Duration,
    /// Maximum time in which the client must receive the whole answer.
    answer: Duration,
}

impl Times {
    pub(crate) const USUAL: Self = Self {
        silence: PATIENCE,
        request: Duration::from_secs(4),
        answer: Duration::from_secs(10),
    };
}

/// Maximum length of a request in bytes. About 60,000 changes fit.
const REQUEST_LEN_MAX: usize = 8 << 20;
/// Maximum number of connections per user.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of subscribers per user. Further connections are left for requests.
const SUBSCRIBERS_MAX: usize = 8;
/// Maximum number of bytes in all incomplete requests of a user.
const REQUESTS_LEN_MAX: usize = 2 * REQUEST_LEN_MAX;
/// Maximum number of unsent bytes in all answers to a user. Above it, further requests fail.
const UNSENT_LEN_MAX: usize = 64 << 20;
/// Pause in accepting after accept(2) has failed. The process may be out of descriptors for a
/// while, because an engine with many connections uses them.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Maximum number of bytes read at a time.
const CHUNK: usize = 64 << 10;

/// Answers requests of clients, and sends reports to subscribers, until the process ends.
pub(crate) fn serve(
    listener: &UnixListener,
    times: Times,
    empty: Reply,
    responder: impl CallResponder,
) {
    let chunk = vec![0; CHUNK].into_boxed_slice();
    let list = Vec::new();
    let mut all = Connections { list, times, paused_until: None, empty, responder, chunk };
    loop {
        all.turn(listener);
    }
}

struct Connections<R> {
    list: Vec<ConnectionLine>,
    times: Times,
    /// Time at which a pause in accepting ends; `None` if accepting is not paused.
    paused_until: Option<Instant>,
    /// Empty answer, used as a template.
    empty: Reply,
    responder: R,
    chunk: Box<[u8]>,
}

struct ConnectionLine {
    stream: UnixStream,
    user: u32,
    times: Times,
    /// Time at which the last byte was received or sent.
    progress: Instant,
    /// Time at which the request must be received, or the answer sent, completely.
    until: Instant,
    state: State,
}

enum State {
    /// Bytes of the request received so far.
    Request(Vec<u8>),
    /// Bytes of the answer, and how many of them were sent.
    Answer(Vec<u8>, usize),
    /// The client receives reports.
    Reports(Subscriber),
    Done,
}

impl ConnectionLine {
    /// Returns the time at which the connection is closed if nothing happens, or at which reports
    /// are due. A subscriber may be silent and slow.
    fn deadline(&self) -> Instant {
        match &self.state {
            State::Reports(subscriber) => subscriber.due(),
            _ => self.until.min(self.progress + self.times.silence),
        }
    }

    /// Returns the events of the socket for which to wait.
    fn wanted(&self) -> PollFlags {
        match &self.state {
            State::Request(_) => PollFlags::IN,
            State::Reports(subscriber) => subscriber.wanted(),
            State::Answer(..) | State::Done => PollFlags::OUT,
        }
    }

    /// Returns the number of unsent bytes of the answer or of reports.
    fn unsent(&self) -> usize {
        match &self.state {
            State::Answer(bytes, sent) => bytes.len() - sent,
            State::Reports(subscriber) => subscriber.unsent(),
            _ => 0,
        }
    }

    fn unread(&self) -> usize {
        match &self.state {
            State::Request(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Reads available bytes of a request. Returns the request when it is complete.
    fn read(&mut self, chunk: &mut [u8], room: usize) -> Option<Result<Vec<u8>, RequestFault>> {
        let State::Request(line) = &mut self.state else { return None };
        let none = |why: &dyn std::fmt::Display| {
            Some(Err(RequestFault::new("request", format!("got no request: {why}"))))
        };
        let len = match self.stream.read(chunk) {
            Ok(0) => return none(&io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(len) => len,
            Err(error) if is_later(&error) => return None,
            Err(error) => return none(&error),
        };
        self.progress = Instant::now();
        let end = chunk[..len].iter().position(|byte| *byte == b'\n');
        let more = &chunk[..end.unwrap_or(len)];
        if line.len() + more.len() > REQUEST_LEN_MAX {
            return none(&format_args!("it is longer than {REQUEST_LEN_MAX} bytes"));
        }
        if more.len() > room {
            let why = format!("has {REQUESTS_LEN_MAX} bytes of incomplete requests of this user");
            return Some(Err(RequestFault::new("busy", why)));
        }
        line.reserve_exact(more.len());
        line.extend_from_slice(more);
        end.map(|_| Ok(std::mem::take(line)))
    }

    /// Starts to send an answer, with new time limits.
    fn answer(&mut self, bytes: Vec<u8>) {
        let now = Instant::now();
        (self.progress, self.until) = (now, now + self.times.answer);
        self.state = State::Answer(bytes, 0);
        self.write();
    }

    /// Sends as much of the answer as the socket accepts.
    fn write(&mut self) {
        let State::Answer(bytes, sent) = &mut self.state else { return };
        match self.stream.write(&bytes[*sent..]) {
            Ok(len) => {
                *sent += len;
                self.progress = Instant::now();
                if *sent == bytes.len() {
                    self.state = State::Done;
                }
            }
            Err(error) if is_later(&error) => {}
            // Ignore the error: the client has closed the connection.
            Err(_) => self.state = State::Done,
        }
    }

    /// Sends the reports that are due, and as many earlier ones as the socket accepts.
    fn report(&mut self, ready: PollFlags, chunk: &mut [u8]) {
        let State::Reports(subscriber) = &mut self.state else { return };
        let now = Instant::now();
        let goes_on = subscriber.go_on(&mut self.stream, ready, chunk)
            && (subscriber.due() > now
                || (subscriber.collect(now) && subscriber.write(&mut self.stream)));
        if !goes_on {
            self.state = State::Done;
        }
    }
}

impl<R: CallResponder> Connections<R> {
    /// Waits until a client or the listener is ready or a time limit has passed. Serves the ready
    /// clients, and accepts new ones.
    fn turn(&mut self, listener: &UnixListener) {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let deadlines = self.list.iter().map(ConnectionLine::deadline).chain(self.paused_until);
        let left = deadlines.min().map(|next| next.saturating_duration_since(now));
        let mut polls = Vec::with_capacity(self.list.len() + 1);
        polls.extend(self.list.iter().map(|connection| {
            PollFd::from_borrowed_fd(connection.stream.as_fd(), connection.wanted())
        }));
        if self.paused_until.is_none() {
            polls.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        // Ignore errors: they mean that no client is ready. Time limits are still checked below.
        let _ = wait(&mut polls, left);
        let ready: Vec<_> = polls.iter().map(PollFd::revents).collect();
        for (at, ready) in ready.iter().take(self.list.len()).enumerate() {
            self.go_on(at, *ready);
        }
        self.list.retain(|connection| !matches!(connection.state, State::Done));
        if self.paused_until.is_none() && ready.last().is_some_and(|ready| !ready.is_empty()) {
            self.accept(listener);
        }
    }

    fn of_user(&self, user: u32) -> impl Iterator<Item = &ConnectionLine> {
        self.list.iter().filter(move |connection| connection.user == user)
    }

    fn accept(&mut self, listener: &UnixListener) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_later(&error) => return,
            // No descriptor is free. Stop accepting for a while. Otherwise poll(2) would return at
            // once in a loop, because the connection stays in the accept queue.
            Err(_) => {
                self.paused_until = Some(Instant::now() + ACCEPT_AGAIN_AFTER);
                return;
            }
        };
        let Ok(user) = user_behind(&stream) else { return };
        let may_ask = user == geteuid().as_raw() || user == 0;
        if !may_ask || stream.set_nonblocking(true).is_err() {
            return;
        }
        let (times, progress) = (self.times, Instant::now());
        let (until, state) = (progress + times.request, State::Request(Vec::new()));
        let mut new = ConnectionLine { stream, user, times, progress, until, state };
        if self.of_user(user).count() < CONNECTIONS_MAX {
            self.list.push(new);
        } else {
            let why = format!("has not answered {CONNECTIONS_MAX} other requests of this user yet");
            new.answer(self.refusal(RequestFault::new("busy", why)));
        }
    }

    /// Reads or writes if the client's socket is ready. Closes the connection if its time limit has
    /// passed.
    fn go_on(&mut self, at: usize, ready: PollFlags) {
        let user = self.list[at].user;
        let unread: usize = self.of_user(user).map(ConnectionLine::unread).sum();
        let (connection, is_ready) = (&mut self.list[at], !ready.is_empty());
        let is_late = connection.deadline() <= Instant::now();
        let request = match connection.state {
            State::Request(_) if is_ready => {
                connection.read(&mut self.chunk, REQUESTS_LEN_MAX.saturating_sub(unread))
            }
            State::Request(_) if is_late => {
                let late = io::Error::from(io::ErrorKind::TimedOut);
                Some(Err(RequestFault::new("request", format!("got no request: {late}"))))
            }
            State::Answer(..) if is_ready => {
                connection.write();
                None
            }
            State::Answer(..) if is_late => {
                connection.state = State::Done;
                None
            }
            State::Reports(_) => {
                connection.report(ready, &mut self.chunk);
                None
            }
            _ => None,
        };
        if let Some(request) = request {
            let unsent: usize = self.of_user(user).map(ConnectionLine::unsent).sum();
            match request.and_then(|line| parse(&line, unsent)) {
                Ok(Call::Subscribe { subscription }) => self.subscribe(at, &subscription),
                Ok(call) => {
                    let is_change = call.is_change();
                    let bytes = self.reply(call);
                    self.list[at].answer(bytes);
                    if is_change {
                        self.hurry();
                    }
                }
                Err(fault) => self.refuse(at, fault),
            }
        }
    }

    fn reply(&self, call: Call) -> Vec<u8> {
        let mut reply = self.empty.clone();
        self.responder.answer(call, &mut reply);
        // Serialization cannot fail, because the reply contains only numbers, strings and
        // addresses.
        serde_json::to_vec(&reply).unwrap_or_default()
    }

    /// Begins to send reports to a client.
    fn subscribe(&mut self, at: usize, subscription: &Subscription) {
        let is_subscriber = |it: &&ConnectionLine| matches!(it.state, State::Reports(_));
        if self.of_user(self.list[at].user).filter(is_subscriber).count() >= SUBSCRIBERS_MAX {
            let why = format!("has {SUBSCRIBERS_MAX} subscribers of this user");
            return self.refuse(at, RequestFault::new("busy", why));
        }
        match self.responder.subscribe(subscription) {
            Ok(source) => {
                let first = serde_json::to_vec(&self.empty).unwrap_or_default();
                let connection = &mut self.list[at];
                connection.state = State::Reports(Subscriber::new(source, first));
                connection.report(PollFlags::empty(), &mut self.chunk);
            }
            Err(fault) => self.refuse(at, fault),
        }
    }

    /// Lets all subscribers look for the effects of a change at once.
    fn hurry(&mut self) {
        for connection in &mut self.list {
            if let State::Reports(subscriber) = &mut connection.state {
                subscriber.hurry();
            }
        }
    }

    fn refuse(&mut self, at: usize, fault: RequestFault) {
        let bytes = self.refusal(fault);
        self.list[at].answer(bytes);
    }

    fn refusal(&self, fault: RequestFault) -> Vec<u8> {
        let reply = Reply { error: Some(fault), ..self.empty.clone() };
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}

fn parse(line: &[u8], unsent: usize) -> Result<Call, RequestFault> {
    if unsent > UNSENT_LEN_MAX {
        let why = format!("has {unsent} bytes of answers that this user has not taken yet");
        return Err(RequestFault::new("busy", why));
    }
    Call::parse(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RunKind;
    use crate::subscriber::ReportSource;
    use crate::subscription::{ReportTopic, RunReport};

    /// Answers each request without a result.
    fn ignore(_: Call, _: &mut Reply) {}

    /// Tests that silent clients do not delay other clients. The time limits are long, so the test
    /// would hang if the server waited for a silent client.
    #[test]
    fn silent_clients_delay_no_answer_and_use_up_places_of_their_user() {
        let path = std::env::temp_dir().join(format!("towpath-silent-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let hour = Duration::from_secs(3600);
        let times = Times { silence: hour, request: hour, answer: hour };
        let empty = Reply::new(RunKind::Run, Vec::new());
        std::thread::spawn(move || serve(&listener, times, empty, ignore));
        let connect = || UnixStream::connect(&path).unwrap();
        let answer = |mut stream: UnixStream| {
            let _ = stream.write_all(b"{\"version\":1,\"request\":\"info\"}\n");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            serde_json::from_slice::<Reply>(&answer).unwrap().error.map(|fault| fault.code)
        };
        let mut silent: Vec<_> = (1..CONNECTIONS_MAX).map(|_| connect()).collect();
        silent.iter_mut().step_by(2).for_each(|stream| stream.write_all(b"{").unwrap());
        assert_eq!(answer(connect()), None);
        silent.push(connect());
        assert_eq!(answer(connect()).unwrap().as_str(), "busy");
        drop(silent.pop());
        while answer(connect()).is_some() {}
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_request_beyond_the_limit_is_refused() {
        let path = std::env::temp_dir().join(format!("towpath-large-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let empty = Reply::new(RunKind::Run, Vec::new());
        std::thread::spawn(move || serve(&listener, Times::USUAL, empty, ignore));
        let send = |len: usize| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let _ = stream.write_all(&vec![b' '; len]);
            stream
        };
        let mut too_long = send(REQUEST_LEN_MAX + CHUNK);
        let mut answer = Vec::new();
        let _ = too_long.read_to_end(&mut answer);
        let reply: Reply = serde_json::from_slice(&answer).unwrap();
        assert!(reply.error.unwrap().message.contains("longer than 8388608 bytes"));
        std::fs::remove_file(&path).unwrap();
    }

    /// Responder whose subscribers get a report after each change, and no others.
    struct OneByChange;

    struct ByChange {
        is_changed: bool,
        due: Instant,
    }

    const HOUR: Duration = Duration::from_secs(3600);

    impl ReportSource for ByChange {
        fn due(&self) -> Instant {
            self.due
        }

        fn hurry(&mut self) {
            (self.is_changed, self.due) = (true, Instant::now());
        }

        fn collect(&mut self, now: Instant) -> Option<Vec<RunReport>> {
            self.due = now + HOUR;
            let is_changed = std::mem::take(&mut self.is_changed);
            Some(is_changed.then(RunReport::default).into_iter().collect())
        }
    }

    impl CallResponder for OneByChange {
        fn answer(&self, _: Call, _: &mut Reply) {}

        fn subscribe(&self, _: &Subscription) -> Result<Box<dyn ReportSource>, RequestFault> {
            Ok(Box::new(ByChange { is_changed: false, due: Instant::now() + HOUR }))
        }
    }

    fn line_of(stream: &mut UnixStream) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\n") && stream.read(&mut byte).unwrap() == 1 {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn subscribers_are_limited_and_get_reports_at_a_change() {
        let path = std::env::temp_dir().join(format!("towpath-reports-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let empty = Reply::new(RunKind::Run, Vec::new());
        std::thread::spawn(move || serve(&listener, Times::USUAL, empty, OneByChange));
        let ask = |call: Call| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let request = crate::request::Request { version: 1, call };
            let line = serde_json::to_string(&request).unwrap() + "\n";
            stream.write_all(line.as_bytes()).unwrap();
            stream
        };
        let subscription = Subscription::to(&[ReportTopic::Links]);
        let subscribe = || {
            let mut stream = ask(Call::Subscribe { subscription: subscription.clone() });
            let reply: Reply = serde_json::from_str(&line_of(&mut stream)).unwrap();
            (stream, reply.error.map(|fault| fault.code))
        };
        let mut subscribers = Vec::new();
        for _ in 0..SUBSCRIBERS_MAX {
            let (stream, error) = subscribe();
            assert_eq!(error, None);
            subscribers.push(stream);
        }
        assert_eq!(subscribe().1.unwrap().as_str(), "busy");
        // A client that has shut down its sending direction still gets reports.
        subscribers[0].shutdown(std::net::Shutdown::Write).unwrap();
        line_of(&mut ask(Call::Apply { changes: Vec::new() }));
        for stream in &mut subscribers {
            let report: RunReport = serde_json::from_str(&line_of(stream)).unwrap();
            assert_eq!(report, RunReport::default());
        }
        // The place of a subscriber that has closed its connection becomes free.
        drop(subscribers.pop());
        while subscribe().1.is_some() {}
        std::fs::remove_file(&path).unwrap();
    }
}
