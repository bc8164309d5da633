//! Several runs asked at the same time, so that the waits for slow ones do not add up.
//!
//! The answers of a user about itself are not trusted: they are limited in size and time here, and
//! checked by their readers.

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

/// Reason why a run told nothing.
#[derive(Debug)]
pub enum NoAnswer {
    /// The socket's other end is not the user in whose folder it is.
    Stranger,
    /// The run did not take the question, or stopped in its answer, for two seconds.
    Silent,
    /// The run did not say within eight seconds that it made a change.
    SilentChange,
    /// The answers of its user's runs exceeded this limit in bytes.
    TooLong(usize),
    /// The answer had no end after ten seconds.
    TooSlow,
    /// Its user has more runs than are asked.
    TooMany {
        /// Runs of its user that were asked.
        asked: usize,
        /// Runs that were not asked either.
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

/// Limit on the time in which all runs that are asked together answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Limit on the wait for a change: a list of some hundred thousand rules is compiled meanwhile.
const CHANGE_PATIENCE: Duration = Duration::from_secs(8);

/// How much of one user's runs is asked and heard.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// Runs that are asked.
    runs: usize,
    /// Bytes of all their answers.
    bytes: usize,
}

impl Share {
    /// Share of own runs: a quarter of the descriptors that a process has by default. A connection
    /// takes some 800 bytes of JSON; a third of a million of them fit.
    const OWN: Self = Self { runs: 256, bytes: 256 << 20 };
    /// Share of another user, whose runs root asks by `--user` and who chooses their answers.
    const NAMED: Self = Self { runs: 256, bytes: 64 << 20 };
    /// Share of another user in a list of all users.
    const LISTED: Self = Self { runs: 32, bytes: 16 << 20 };
}

/// Runs of other users that are asked in a list of all.
const LISTED_RUNS_MAX: usize = 256;

/// A run, and its answer.
pub type Told = (Run, Result<Vec<u8>, NoAnswer>);

/// A run that has a socket. Its identity is the owner of the folder and the name of its files
/// there. Any user can choose a name and a process id for files of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// User whose folder its socket is in.
    pub owner: u32,
    /// Process id of `towpath run`, `router` or `proxy`.
    pub pid: u32,
    /// Name that `--name` gave.
    pub name: Option<Word>,
    files: String,
}

impl Run {
    /// Whether it is a run of another user than this process.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.owner != geteuid().as_raw()
    }
}

/// The run as the beginning of a sentence.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run with process id {}", self.pid)?;
        match self.is_foreign() {
            true => write!(f, " of user {}", user_name(self.owner)),
            false => Ok(()),
        }
    }
}

/// All runs of a user that have a socket. None is asked. Only root finds those of another user.
#[must_use]
pub fn runs_of(owner: u32) -> Vec<Run> {
    let folders = folder::of_user(owner);
    let mut runs: Vec<_> = folders.iter().flat_map(runs_in).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The answer of each run of a user that is wanted, by process id, of which there may be several in
/// PID namespaces.
#[must_use]
pub fn ask_user(owner: u32, wanted: impl Fn(&Run) -> bool, call: &Call) -> Vec<Told> {
    let is_own = owner == geteuid().as_raw();
    let share = if is_own { Share::OWN } else { Share::NAMED };
    ask(&[owner], wanted, share, share.runs, call)
}

/// The answers of runs of all other users, by user and process id. Empty unless this user is root.
#[must_use]
pub fn ask_other_users(call: &Call) -> Vec<Told> {
    ask(&folder::other_users(), |_| true, Share::LISTED, LISTED_RUNS_MAX, call)
}

fn ask(
    owners: &[u32],
    wanted: impl Fn(&Run) -> bool,
    share: Share,
    mut left: usize,
    call: &Call,
) -> Vec<Told> {
    let request = Request { version: VERSION, call: call.clone() };
    // Numbers, words and addresses can all be written as JSON.
    let mut line = serde_json::to_vec(&request).unwrap_or_default();
    line.push(b'\n');
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

/// Asks the wanted runs of a user, at most `runs_max`.
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
            // The run ended meanwhile, or was killed.
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

/// The runs that have a socket in a folder.
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

/// A run that was asked.
struct AskedRun<'a> {
    run: Run,
    socket: OwnedFd,
    /// Bytes of the request that the run has not taken yet.
    unsent: &'a [u8],
    heard: Vec<u8>,
    silent_from: Instant,
    end: Option<Result<(), NoAnswer>>,
}

impl<'a> AskedRun<'a> {
    fn new(folder: &Folder, run: &Run, line: &'a [u8]) -> Result<Self, NoAnswer> {
        let there = folder.socket(&socket_of(&run.files)).map_err(NoAnswer::Io)?;
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
        let silent_from = Instant::now();
        let run = run.clone();
        Ok(Self { run, socket, unsent: line, heard: Vec::new(), silent_from, end: None })
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

    /// Takes what there is, and returns its length. `used` of the `bytes_max` of its user's runs
    /// came before.
    fn read(&mut self, used: usize, bytes_max: usize) -> usize {
        const CHUNK: usize = 64 << 10;
        let (before, room) = (self.heard.len(), bytes_max - used);
        // Reads one byte beyond the limit, to tell the end from an answer that goes on.
        let len_max = CHUNK.min(room + 1);
        // Doubling would take twice the memory of the answer, and three times while it is moved.
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
            // A run that is busy answers, and closes before it has read the request. Its answer
            // comes first, then the reset. Readers find out whether the answer is whole.
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

/// Reads all answers at the same time, so that the waits for slow runs do not add up. Takes
/// `bytes_max` of each user's runs.
fn hear(questions: &mut [AskedRun<'_>], is_change: bool, bytes_max: usize) {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut heard = BTreeMap::<u32, usize>::new();
    loop {
        let now = Instant::now();
        let mut next = until;
        for question in questions.iter_mut().filter(|question| question.end.is_none()) {
            // A run that takes no question does not begin a change either.
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
