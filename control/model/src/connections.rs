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
use crate::server::{PATIENCE, user_behind};
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
/// Maximum number of bytes in all incomplete requests of a user.
const REQUESTS_LEN_MAX: usize = 2 * REQUEST_LEN_MAX;
/// Maximum number of unsent bytes in all answers to a user. Above it, further requests fail.
const UNSENT_LEN_MAX: usize = 64 << 20;
/// Pause in accepting after accept(2) has failed. The process may be out of descriptors for a
/// while, because an engine with many connections uses them.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Maximum number of bytes read at a time.
const CHUNK: usize = 64 << 10;

/// Answers requests of clients by calling `answer`, until the process ends.
pub(crate) fn serve(
    listener: &UnixListener,
    times: Times,
    empty: Reply,
    answer: impl Fn(Call, &mut Reply),
) {
    let chunk = vec![0; CHUNK].into_boxed_slice();
    let mut all = Connections { list: Vec::new(), times, paused_until: None, empty, answer, chunk };
    loop {
        all.turn(listener);
    }
}

struct Connections<A> {
    list: Vec<ConnectionLine>,
    times: Times,
    /// Time at which a pause in accepting ends; `None` if accepting is not paused.
    paused_until: Option<Instant>,
    /// Empty answer, used as a template.
    empty: Reply,
    answer: A,
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
    Done,
}

impl ConnectionLine {
    fn deadline(&self) -> Instant {
        self.until.min(self.progress + self.times.silence)
    }

    /// Returns the number of unsent bytes of the answer.
    fn unsent(&self) -> usize {
        match &self.state {
            State::Answer(bytes, sent) => bytes.len() - sent,
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
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl<A: Fn(Call, &mut Reply)> Connections<A> {
    /// Waits until a client or the listener is ready or a time limit has passed. Serves the ready
    /// clients, and accepts new ones.
    fn turn(&mut self, listener: &UnixListener) {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let deadlines = self.list.iter().map(ConnectionLine::deadline).chain(self.paused_until);
        let left = deadlines.min().map(|next| next.saturating_duration_since(now));
        let mut polls = Vec::with_capacity(self.list.len() + 1);
        polls.extend(self.list.iter().map(|connection| {
            let wanted = match connection.state {
                State::Request(_) => PollFlags::IN,
                _ => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), wanted)
        }));
        if self.paused_until.is_none() {
            polls.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        // Ignore errors: they mean that no client is ready. Time limits are still checked below.
        let _ = wait(&mut polls, left);
        let ready: Vec<_> = polls.iter().map(|poll| !poll.revents().is_empty()).collect();
        for (at, is_ready) in ready.iter().take(self.list.len()).enumerate() {
            self.go_on(at, *is_ready);
        }
        self.list.retain(|connection| !matches!(connection.state, State::Done));
        if self.paused_until.is_none() && ready.last() == Some(&true) {
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
    fn go_on(&mut self, at: usize, is_ready: bool) {
        let user = self.list[at].user;
        let unread: usize = self.of_user(user).map(ConnectionLine::unread).sum();
        let connection = &mut self.list[at];
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
            _ => None,
        };
        if let Some(request) = request {
            let unsent: usize = self.of_user(user).map(ConnectionLine::unsent).sum();
            let bytes = match request.and_then(|line| parse(&line, unsent)) {
                Ok(call) => self.reply(call),
                Err(fault) => self.refusal(fault),
            };
            self.list[at].answer(bytes);
        }
    }

    fn reply(&self, call: Call) -> Vec<u8> {
        let mut reply = self.empty.clone();
        (self.answer)(call, &mut reply);
        // Serialization cannot fail, because the reply contains only numbers, strings and
        // addresses.
        serde_json::to_vec(&reply).unwrap_or_default()
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
        std::thread::spawn(move || serve(&listener, times, empty, |_, _| {}));
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
        std::thread::spawn(move || serve(&listener, Times::USUAL, empty, |_, _| {}));
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
}
