//! Queries several runs concurrently, so that timeouts of slow runs do not add up.
//!
//! Runs of other users are not trusted. Size and time of their answers are limited here, and
//! callers must validate the content.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use crate::folder::{self, Folder, own_path_of};
use crate::request::{Call, Request, VERSION};
use crate::server::{PATIENCE, remove_if_dead, run_of, socket_of, user_behind};
use crate::sockets::Word;
use crate::user::user_name;
use crate::wait::wait;

/// Reason why a run did not answer a request.
#[derive(Debug)]
pub enum NoAnswer {
    /// The process at the other end of the socket belongs to another user than the socket's
    /// directory.
    Stranger,
    /// The run did not accept the request, or sent no further byte of its answer, for two seconds.
    Silent,
    /// The run did not confirm a change within eight seconds.
    SilentChange,
    /// The answers of the user's runs together exceed this limit in bytes.
    TooLong(usize),
    /// The answer was not complete after ten seconds.
    TooSlow,
    /// The user has more runs than can be queried.
    TooMany {
        /// Number of the user's runs that were queried.
        asked: usize,
        /// Number of further runs that were not queried.
        more: usize,
    },
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
            Self::TooLong(bytes) => {
                write!(f, "was not heard to the end: more than {} MiB came", bytes >> 20)
            }
            Self::TooSlow => {
                write!(f, "did not come to an end within {} s", ANSWERS_WITHIN.as_secs())
            }
            Self::TooMany { asked, more } => {
                write!(f, "and {more} more were not asked: {asked} runs of a user are")
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Errno> for NoAnswer {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Time limit for the answers of all runs that are queried together.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for the answer to a change. Compiling an access list of several hundred thousand
/// rules takes seconds.
const CHANGE_PATIENCE: Duration = Duration::from_secs(8);

/// Limits on the runs of a user that are queried, and on their answers.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// Maximum number of runs that are queried.
    runs: usize,
    /// Maximum number of bytes in the answers of all these runs together.
    bytes: usize,
}

impl Share {
    /// Limits for runs of this process's user. The number of runs is a quarter of the default
    /// descriptor limit. The answers may describe a third of a million connections, because each
    /// takes about 800 bytes of JSON.
    const OWN: Self = Self { runs: 256, bytes: 256 << 20 };
    /// Limits for the runs of another user that root has selected by `--user`. Their answers are
    /// not trusted.
    const NAMED: Self = Self { runs: 256, bytes: 64 << 20 };
    /// Limits for the runs of each other user, if root lists the runs of all users.
    const LISTED: Self = Self { runs: 32, bytes: 16 << 20 };
}

/// Maximum number of runs of all other users together that are queried, if root lists the runs of
/// all users.
const LISTED_RUNS_MAX: usize = 256;

/// A run with its answer.
pub type Told = (Run, Result<Vec<u8>, NoAnswer>);

/// A run with a control socket. The owner of the socket's directory and the name of its files
/// identify the run. Names and process ids are not trusted: users can choose any for files in their
/// own directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Owner of the directory that contains the socket.
    pub owner: u32,
    /// Process id of `towpath run`, `router` or `proxy`.
    pub pid: u32,
    /// Name given by `--name`.
    pub name: Option<Word>,
    files: String,
}

impl Run {
    /// Returns whether the run belongs to another user than this process.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.owner != geteuid().as_raw()
    }
}

/// Formats the run as the subject of a sentence.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run with process id {}", self.pid)?;
        match self.is_foreign() {
            true => write!(f, " of user {}", user_name(self.owner)),
            false => Ok(()),
        }
    }
}

/// Lists all runs of user `owner` that have a control socket, without querying them. Only root can
/// list those of another user.
#[must_use]
pub fn runs_of(owner: u32) -> Vec<Run> {
    let folders = folder::of_user(owner);
    let mut runs: Vec<_> = folders.iter().flat_map(runs_in).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// Queries the runs of user `owner` for which `wanted` returns true, sorted by process id. Several
/// runs may have the same id because of PID namespaces.
#[must_use]
pub fn ask_user(owner: u32, wanted: impl Fn(&Run) -> bool, call: &Call) -> Vec<Told> {
    let is_own = owner == geteuid().as_raw();
    let share = if is_own { Share::OWN } else { Share::NAMED };
    ask(&[owner], wanted, share, share.runs, call)
}

/// Queries the runs of all other users, sorted by user and process id. Returns none unless this
/// user is root.
#[must_use]
pub fn ask_other_users(call: &Call) -> Vec<Told> {
    ask(&folder::other_users(), |_| true, Share::LISTED, LISTED_RUNS_MAX, call)
}

/// Sends a request to one run, and returns the connection, from which nothing was read.
///
/// # Errors
/// Fails if the run does not accept the connection or the request. Returns `None` if the run has
/// ended.
pub(crate) fn connect_to(run: &Run, call: &Call) -> Result<Option<OwnedFd>, NoAnswer> {
    let line = line_of(call);
    for folder in &folder::of_user(run.owner) {
        if !runs_in(folder).contains(run) {
            continue;
        }
        let mut question = match AskedRun::new(folder, run, &line) {
            Err(NoAnswer::Io(error)) if has_ended(&error) => return Ok(None),
            question => question?,
        };
        // The request is short, and the buffer of a new socket is empty.
        question.write();
        let is_sent = question.unsent.is_empty();
        return if is_sent { Ok(Some(question.socket)) } else { Err(NoAnswer::Silent) };
    }
    Ok(None)
}

/// Returns whether a connection failed because the run has ended, or was killed.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Serializes a request as a line.
fn line_of(call: &Call) -> Vec<u8> {
    let request = Request { version: VERSION, call: call.clone() };
    // Serialization cannot fail, because the request contains only numbers, strings and addresses.
    let mut line = serde_json::to_vec(&request).unwrap_or_default();
    line.push(b'\n');
    line
}

fn ask(
    owners: &[u32],
    wanted: impl Fn(&Run) -> bool,
    share: Share,
    mut left: usize,
    call: &Call,
) -> Vec<Told> {
    let line = line_of(call);
    let mut told = Vec::new();
    let mut questions = Vec::new();
    for owner in owners {
        let asked = questions.len();
        let runs_max = share.runs.min(left);
        ask_runs(*owner, &wanted, runs_max, &line, &mut questions, &mut told);
        left -= questions.len() - asked;
    }
    hear(&mut questions, call.is_change(), share.bytes);
    told.extend(questions.into_iter().map(|question| (question.run.clone(), question.outcome())));
    told.sort_by_key(|(run, _)| (run.owner, run.pid));
    told
}

/// Sends the request to the runs of user `owner` for which `wanted` returns true, at most
/// `runs_max`.
fn ask_runs<'a>(
    owner: u32,
    wanted: &impl Fn(&Run) -> bool,
    runs_max: usize,
    line: &'a [u8],
    questions: &mut Vec<AskedRun<'a>>,
    told: &mut Vec<Told>,
) {
    let folders = folder::of_user(owner);
    let runs =
        folders.iter().flat_map(|folder| runs_in(folder).into_iter().map(move |r| (folder, r)));
    let mut runs = runs.filter(|(_, run)| wanted(run));
    for (folder, run) in runs.by_ref().take(runs_max) {
        match AskedRun::new(folder, &run, line) {
            Ok(question) => questions.push(question),
            // Skip a run that has ended in the meantime, or was killed.
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_if_dead(folder, &run.files);
            }
            Err(why) => told.push((run, Err(why))),
        }
    }
    if let Some((_, run)) = runs.next() {
        told.push((run, Err(NoAnswer::TooMany { asked: runs_max, more: runs.count() })));
    }
}

/// Lists the runs that have a control socket in a directory.
fn runs_in(folder: &Folder) -> Vec<Run> {
    let files = folder.names().unwrap_or_default();
    let runs = files.iter().filter_map(|file| {
        let files = file.strip_suffix(".sock")?;
        let (pid, name) = run_of(files)?;
        Some(Run { owner: folder.owner(), pid, name, files: files.to_owned() })
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort_by(|one, other| (one.pid, &one.files).cmp(&(other.pid, &other.files)));
    runs
}

/// Connection to a run to which a request is being sent.
struct AskedRun<'a> {
    run: Run,
    socket: OwnedFd,
    /// Bytes of the request that were not sent yet.
    unsent: &'a [u8],
    heard: Vec<u8>,
    silent_from: Instant,
    end: Option<Result<(), NoAnswer>>,
}

impl<'a> AskedRun<'a> {
    fn new(folder: &Folder, run: &Run, line: &'a [u8]) -> Result<Self, NoAnswer> {
        let there = folder.socket(&socket_of(&run.files)).map_err(NoAnswer::Io)?;
        // Connect without blocking: a stopped run accepts no connections, so its backlog may be
        // full.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &SocketAddrUnix::new(own_path_of(&there))?) {
            Err(Errno::AGAIN) => return Err(NoAnswer::Silent),
            result => result?,
        }
        if user_behind(&socket)? != folder.owner() {
            return Err(NoAnswer::Stranger);
        }
        let silent_from = Instant::now();
        let run = run.clone();
        Ok(Self { run, socket, unsent: line, heard: Vec::new(), silent_from, end: None })
    }

    /// Sends as much of the request as the socket accepts.
    fn write(&mut self) {
        match rustix::io::write(&self.socket, self.unsent) {
            Ok(len) => {
                self.unsent = &self.unsent[len..];
                self.silent_from = Instant::now();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Ignore the error: the run may have answered and closed the connection before it has
            // read the whole request.
            Err(_) => self.unsent = &[],
        }
    }

    /// Reads the available bytes of the answer, and returns their number. `used` bytes were already
    /// received, of the `bytes_max` bytes that are allowed for all runs of this user.
    fn read(&mut self, used: usize, bytes_max: usize) -> usize {
        const CHUNK: usize = 64 << 10;
        let (before, room) = (self.heard.len(), bytes_max - used);
        // Read at most one byte more than the limit allows, to distinguish a complete answer from
        // one that is too long.
        let len_max = CHUNK.min(room + 1);
        // Allocate the exact size. Doubling the buffer would need up to three times the memory of
        // the answer.
        self.heard.reserve_exact(len_max);
        self.heard.resize(before + len_max, 0);
        let result = rustix::io::read(&self.socket, &mut self.heard[before..]);
        let len = result.unwrap_or(0);
        self.heard.truncate(before + len);
        match result {
            Ok(0) => self.end = Some(Ok(())),
            Ok(len) if len > room => self.end = Some(Err(NoAnswer::TooLong(bytes_max))),
            Ok(_) => self.silent_from = Instant::now(),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A busy run sends its answer and closes the connection without reading the request, so
            // the kernel sends a reset after the answer. If the answer is incomplete, parsing fails
            // later.
            Err(Errno::CONNRESET) if before > 0 => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error.into())),
        }
        if matches!(self.end, Some(Err(_))) {
            self.heard = Vec::new();
        }
        len.min(room)
    }

    fn outcome(self) -> Result<Vec<u8>, NoAnswer> {
        match self.end {
            Some(Ok(())) => Ok(self.heard),
            Some(Err(why)) => Err(why),
            None => Err(NoAnswer::TooSlow),
        }
    }
}

/// Reads the answers of all runs concurrently, so that time limits of slow runs do not add up.
/// Accepts at most `bytes_max` bytes from the runs of each user.
fn hear(questions: &mut [AskedRun<'_>], is_change: bool, bytes_max: usize) {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut heard = BTreeMap::<u32, usize>::new();
    loop {
        let now = Instant::now();
        let mut next = until;
        for question in questions.iter_mut().filter(|question| question.end.is_none()) {
            // The longer time limit for changes applies only after the run has accepted the whole
            // request, because it starts the change only then.
            let is_taken = is_change && question.unsent.is_empty();
            let patience = if is_taken { CHANGE_PATIENCE } else { PATIENCE };
            let deadline = question.silent_from + patience;
            if deadline <= now {
                let why = if is_taken { NoAnswer::SilentChange } else { NoAnswer::Silent };
                question.end = Some(Err(why));
            }
            next = next.min(deadline);
        }
        let mut open: Vec<_> = questions.iter_mut().filter(|q| q.end.is_none()).collect();
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
        // Ignore errors: they mean that no socket is ready. Time limits are still checked below.
        let _ = wait(&mut polls, Some(next.saturating_duration_since(now)));
        let ready: Vec<_> = polls.iter().map(PollFd::revents).collect();
        for (question, ready) in open.iter_mut().zip(ready) {
            if ready.contains(PollFlags::OUT) && !question.unsent.is_empty() {
                question.write();
            }
            if ready.difference(PollFlags::OUT).is_empty() {
                continue;
            }
            let of_user = heard.entry(question.run.owner).or_default();
            *of_user += question.read(*of_user, bytes_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_answer_in_front_of_a_reset_is_heard() {
        for answer in ["{}", ""] {
            let (client, mut server) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            let mut question = AskedRun {
                run: Run { owner: 0, pid: 1, name: None, files: String::new() },
                socket: client.into(),
                unsent: b"unread\n",
                heard: Vec::new(),
                silent_from: Instant::now(),
                end: None,
            };
            question.write();
            server.write_all(answer.as_bytes()).unwrap();
            drop(server);
            hear(std::slice::from_mut(&mut question), false, 1 << 20);
            let heard = question.outcome().ok();
            assert_eq!(heard, Some(answer.as_bytes().to_vec()).filter(|bytes| !bytes.is_empty()));
        }
    }
}
