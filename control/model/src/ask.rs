//! Several runs asked at the same time, so that the waits for slow ones do not add up.
//!
//! The answers of a user about itself are not trusted: they are limited in size and time here, and
//! checked by their readers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::folder::{self, Folder, own_path_of};
use crate::request::{Call, Request, VERSION};
use crate::server::{PATIENCE, remove_if_dead, run_of, socket_of, user_behind};
use crate::sockets::Word;
use crate::wait::wait;

/// Reason why a run told nothing.
#[derive(Debug)]
pub enum NoAnswer {
    /// The socket's other end is not the user in whose folder it is.
    Stranger,
    /// The run did not take the question, or stopped in its answer, for two seconds.
    Silent,
    /// The run did not say within eight seconds that it made a change.
    SilentChange,
    /// All answers together exceeded 256 MiB, or ten seconds.
    TooLong,
    /// The folder has more than 256 runs.
    TooMany,
    /// A system call failed.
    Io(io::Error),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => f.write_str("is served by another user"),
            Self::Silent => {
                write!(f, "did not answer within {} s; is it stopped?", PATIENCE.as_secs())
            }
            Self::SilentChange => {
                let seconds = CHANGE_PATIENCE.as_secs();
                write!(f, "did not answer within {seconds} s; the change may be made later")
            }
            Self::TooLong => {
                write!(
                    f,
                    "did not come to an end within {} s and {} MiB",
                    ANSWERS_WITHIN.as_secs(),
                    ANSWERS_LEN_MAX >> 20
                )
            }
            Self::TooMany => write!(f, "was not asked: there are more than {RUNS_MAX}"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Errno> for NoAnswer {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Runs of one folder that are asked, all at a time: a quarter of the descriptors that a process
/// has by default.
const RUNS_MAX: usize = 256;
/// Bytes of all answers of one folder. A connection takes some 800 bytes of JSON; a third of a
/// million of them fit.
const ANSWERS_LEN_MAX: usize = 256 << 20;
/// Limit on the time in which all runs of one folder answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Limit on the wait for a change: a list of some hundred thousand rules is compiled meanwhile.
const CHANGE_PATIENCE: Duration = Duration::from_secs(8);

/// A run's process id, and its answer.
pub type Told = (u32, Result<Vec<u8>, NoAnswer>);

/// A run that has a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Process id of `towpath run`, `router` or `proxy`.
    pub pid: u32,
    /// Name that `--name` gave.
    pub name: Option<Word>,
}

/// All runs of this user that have a socket, or everybody's if this user is root. None is asked.
#[must_use]
pub fn runs() -> Vec<Run> {
    let found = folder::existing().into_iter().flat_map(|folder| runs_in(&folder));
    let mut runs: Vec<_> = found.map(|(pid, name, _)| Run { pid, name }).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The answer of each run, by process id; or only of those with `pid`, of which there may be
/// several in PID namespaces.
#[must_use]
pub fn ask_all(pid: Option<u32>, call: &Call) -> Vec<Told> {
    ask_those(|run| pid.is_none_or(|pid| pid == run.pid), call)
}

/// The answer of each run that is wanted.
pub(crate) fn ask_those(wanted: impl Fn(&Run) -> bool, call: &Call) -> Vec<Told> {
    let request = Request { version: VERSION, call: call.clone() };
    // Numbers, words and addresses can all be written as JSON.
    let mut line = serde_json::to_vec(&request).unwrap_or_default();
    line.push(b'\n');
    let changes = matches!(call, Call::Apply { .. } | Call::ApplyAcl { .. });
    let folders = folder::existing();
    let mut told: Vec<_> =
        folders.iter().flat_map(|folder| ask_folder(folder, &wanted, &line, changes)).collect();
    told.sort_by_key(|(pid, _)| *pid);
    told
}

fn ask_folder(
    folder: &Folder,
    wanted: &impl Fn(&Run) -> bool,
    line: &[u8],
    changes: bool,
) -> Vec<Told> {
    let mut told = Vec::new();
    let mut questions = Vec::new();
    let runs = runs_in(folder).into_iter();
    let runs = runs.filter(|(pid, name, _)| wanted(&Run { pid: *pid, name: name.clone() }));
    for (at, (number, _, files)) in runs.enumerate() {
        if at >= RUNS_MAX {
            told.push((number, Err(NoAnswer::TooMany)));
            continue;
        }
        match Question::new(folder, &files, line) {
            Ok(question) => questions.push((number, question)),
            // The run ended meanwhile, or was killed.
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_if_dead(folder, &files);
            }
            Err(why) => told.push((number, Err(why))),
        }
    }
    hear(&mut questions, changes);
    told.extend(questions.into_iter().map(|(number, question)| (number, question.outcome())));
    told
}

/// The runs that have a socket in a folder: process id, name, and name of the files.
fn runs_in(folder: &Folder) -> Vec<(u32, Option<Word>, String)> {
    let files = folder.names().unwrap_or_default();
    let runs = files.iter().filter_map(|file| {
        let run = file.strip_suffix(".sock")?;
        let (pid, name) = run_of(run)?;
        Some((pid, name, run.to_owned()))
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort_by(|one, other| (one.0, &one.2).cmp(&(other.0, &other.2)));
    runs
}

/// A run that was asked.
struct Question<'a> {
    socket: OwnedFd,
    /// Bytes of the request that the run has not taken yet.
    unsent: &'a [u8],
    heard: Vec<u8>,
    silent_from: Instant,
    end: Option<Result<(), NoAnswer>>,
}

impl<'a> Question<'a> {
    fn new(folder: &Folder, name: &str, line: &'a [u8]) -> Result<Self, NoAnswer> {
        let there = folder.socket(&socket_of(name)).map_err(NoAnswer::Io)?;
        // A run that is stopped accepts nothing, and has room for so many connections only.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &SocketAddrUnix::new(own_path_of(&there))?) {
            Err(Errno::AGAIN) => return Err(NoAnswer::Silent),
            result => result?,
        }
        if user_behind(&socket)? != folder.owner() {
            return Err(NoAnswer::Stranger);
        }
        Ok(Self { socket, unsent: line, heard: Vec::new(), silent_from: Instant::now(), end: None })
    }

    /// Sends as much of the request as the run takes.
    fn write(&mut self) {
        match rustix::io::write(&self.socket, self.unsent) {
            Ok(len) => {
                self.unsent = &self.unsent[len..];
                self.silent_from = Instant::now();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The run may have answered before it read all, and closed.
            Err(_) => self.unsent = &[],
        }
    }

    /// Takes what there is; returns its length.
    fn read(&mut self, room: usize) -> usize {
        const CHUNK: usize = 64 << 10;
        let before = self.heard.len();
        self.heard.resize(before + CHUNK, 0);
        let result = rustix::io::read(&self.socket, &mut self.heard[before..]);
        let len = result.unwrap_or(0);
        self.heard.truncate(before + len);
        match result {
            Ok(0) => self.end = Some(Ok(())),
            Ok(len) if len > room => self.end = Some(Err(NoAnswer::TooLong)),
            Ok(_) => self.silent_from = Instant::now(),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => self.end = Some(Err(error.into())),
        }
        if matches!(self.end, Some(Err(_))) {
            self.heard = Vec::new();
        }
        len
    }

    fn outcome(self) -> Result<Vec<u8>, NoAnswer> {
        match self.end {
            Some(Ok(())) => Ok(self.heard),
            Some(Err(why)) => Err(why),
            None => Err(NoAnswer::TooLong),
        }
    }
}

/// Reads all answers at the same time, so that the waits for slow runs do not add up.
fn hear(questions: &mut [(u32, Question<'_>)], changes: bool) {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut room = ANSWERS_LEN_MAX;
    loop {
        let now = Instant::now();
        let mut next = until;
        for (_, question) in questions.iter_mut().filter(|(_, question)| question.end.is_none()) {
            // A run that takes no question does not begin a change either.
            let is_taken = changes && question.unsent.is_empty();
            let patience = if is_taken { CHANGE_PATIENCE } else { PATIENCE };
            let deadline = question.silent_from + patience;
            if deadline <= now {
                let why = if is_taken { NoAnswer::SilentChange } else { NoAnswer::Silent };
                question.end = Some(Err(why));
            }
            next = next.min(deadline);
        }
        let mut open: Vec<_> =
            questions.iter_mut().map(|(_, q)| q).filter(|q| q.end.is_none()).collect();
        if open.is_empty() || now >= until {
            return;
        }
        let mut polls: Vec<_> = open
            .iter()
            .map(|q| {
                let writes = if q.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::from_borrowed_fd(q.socket.as_fd(), PollFlags::IN | writes)
            })
            .collect();
        // After a wait that failed no socket is ready, and the deadlines go on.
        let _ = wait(&mut polls, Some(next.saturating_duration_since(now)));
        let ready: Vec<_> = polls.iter().map(PollFd::revents).collect();
        for (question, ready) in open.iter_mut().zip(ready) {
            if ready.contains(PollFlags::OUT) && !question.unsent.is_empty() {
                question.write();
            }
            if ready.difference(PollFlags::OUT).is_empty() {
                continue;
            }
            room = room.saturating_sub(question.read(room));
        }
    }
}
