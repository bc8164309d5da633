//! The socket on which a run tells `towpath ss` about itself, and the other end of it.
//!
//! One connection, one JSON document, closed. The socket lies in a private [`Folder`], and either end
//! asks the kernel who the other one is: a run answers its own user and root, and `towpath ss` believes
//! the user whose folder it is. What that user says about itself is still not trusted: it is limited in
//! size and time here, and checked by its readers.
//!
//! A run has two files: `PID-RANDOM.sock`, which is called `.new` before it listens, and `PID-RANDOM.lock`, which
//! it holds. Another process may have the same id in a PID namespace of its own, and share the folder. What a
//! killed run leaves goes when the next one starts, or when `towpath ss` finds that nobody listens.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use crate::folder::{self, FOR_OWNER, Folder, Lock, is_unguessable, own_path_of, unguessable};
use crate::wait::wait;

/// How long either side waits for the other's next byte. A run answers at once; one that was stopped
/// does not answer at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// A served socket; its files go with it.
pub struct Instance {
    folder: Folder,
    name: String,
    // Held as long as the run lives, so that others leave its files alone.
    _lives: Option<Lock>,
}

impl Instance {
    /// Serves what `answer` gives at each request, on a thread that lives as long as the process.
    pub fn serve(answer: impl Fn() -> Vec<u8> + Send + 'static) -> Result<Self> {
        let bound = folder::first_that(|folder| Ok(Self::bind(folder)?));
        let (instance, listener) = match bound {
            Ok((bound, _)) => bound,
            Err(refusals) => {
                let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                bail!("no folder for the control socket: {}", reasons.join("; "))
            }
        };
        std::thread::Builder::new().name("towpath-ss".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A peer that goes away or may not ask is no concern of the run.
                    Ok(stream) => drop(reply(stream, &answer)),
                    // No descriptor is free: the connection stays where it is, and so it would be
                    // found again at once.
                    Err(_) => std::thread::sleep(ACCEPT_AGAIN_AFTER),
                }
            }
        })?;
        Ok(instance)
    }

    fn bind(folder: &Folder) -> io::Result<(Self, UnixListener)> {
        remove_dead(folder);
        let (name, lives) = named(folder)?;
        let folder = folder.try_clone()?;
        // Its drop removes what follows if that fails.
        let instance = Self { folder, name, _lives: lives };
        let (new, socket) = (new_of(&instance.name), socket_of(&instance.name));
        let listener = UnixListener::bind(instance.folder.own_path(&new)).and_then(|listener| {
            instance.folder.set_mode(&new, FOR_OWNER)?;
            // It listens: from here on a refused connection means that nobody does any more.
            instance.folder.rename(&new, &socket)?;
            Ok(listener)
        });
        if listener.is_err() {
            instance.folder.remove(&new);
        }
        Ok((instance, listener?))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // In this order: a socket is not taken for a dead run's while its lock is held.
        self.folder.remove(&socket_of(&self.name));
        self.folder.remove(&lock_of(&self.name));
    }
}

/// An engine with many connections may use up all descriptors for a while.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A name for this run, and its lock. None where others took the files of all that were tried for a dead run's,
/// which they were about to remove: there the worst is that this run's are removed, too.
fn named(folder: &Folder) -> io::Result<(String, Option<Lock>)> {
    let mut tries = NAMES_TRIED_MAX;
    loop {
        let name = format!("{}-{}", std::process::id(), unguessable()?);
        let lives = folder.lock_exclusive(&lock_of(&name))?;
        tries -= 1;
        if lives.is_some() || tries == 0 {
            return Ok((name, lives));
        }
    }
}

/// Another run looks at a folder once, when it starts, so a second name is nearly always enough.
const NAMES_TRIED_MAX: u32 = 8;

fn new_of(name: &str) -> String {
    format!("{name}.new")
}

fn socket_of(name: &str) -> String {
    format!("{name}.sock")
}

fn lock_of(name: &str) -> String {
    format!("{name}.lock")
}

fn reply(mut stream: UnixStream, answer: &impl Fn() -> Vec<u8>) -> io::Result<()> {
    let peer = user_behind(&stream)?;
    if peer != geteuid().as_raw() && peer != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&answer())
}

/// The user at the other end of a Unix socket: of a listener, the one that it had when it began to
/// listen. (Not rustix's `socket_peercred`: the process id that comes along is 0 for a process that this
/// PID namespace does not show, which rustix's type cannot hold, so that it looks like an error.)
fn user_behind(socket: &impl AsFd) -> Result<u32, Errno> {
    let credentials = nix::sys::socket::getsockopt(socket, PeerCredentials);
    credentials.map(|peer| peer.uid()).map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Why a run told nothing.
#[derive(Debug)]
pub enum NoAnswer {
    /// The socket's other end is not the user in whose folder it is.
    Stranger,
    /// It did not take the question, or stopped in its answer, for [`PATIENCE`].
    Silent,
    /// All answers together exceeded [`ANSWERS_LEN_MAX`] or [`ANSWERS_WITHIN`].
    TooLong,
    /// The folder has more than [`RUNS_MAX`].
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

/// Runs of one folder that are asked, all at a time: a quarter of the descriptors that a process has
/// by default.
const RUNS_MAX: usize = 256;
/// What the runs of one folder may tell together. A connection takes some 800 bytes of JSON; a third of
/// a million of them fit.
const ANSWERS_LEN_MAX: usize = 256 << 20;
/// How long all runs of one folder may take together to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// A run, and what it answered.
pub type Told = (u32, Result<Vec<u8>, NoAnswer>);

/// What each running instance answers, by process id; or only those with `pid`, of which there may be
/// several in PID namespaces.
pub fn ask_all(pid: Option<u32>) -> Vec<Told> {
    let mut told: Vec<_> =
        folder::existing().iter().flat_map(|folder| ask_folder(folder, pid)).collect();
    told.sort_by_key(|(pid, _)| *pid);
    told
}

fn ask_folder(folder: &Folder, pid: Option<u32>) -> Vec<Told> {
    let mut told = Vec::new();
    let mut questions = Vec::new();
    let runs = runs_in(folder).into_iter().filter(|run| pid.is_none_or(|pid| pid == run.0));
    for (at, (number, name)) in runs.enumerate() {
        if at >= RUNS_MAX {
            told.push((number, Err(NoAnswer::TooMany)));
            continue;
        }
        match Question::new(folder, &name) {
            Ok(question) => questions.push((number, question)),
            // It ended meanwhile, or was killed.
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(NoAnswer::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_if_dead(folder, &name);
            }
            Err(why) => told.push((number, Err(why))),
        }
    }
    hear(&mut questions);
    told.extend(questions.into_iter().map(|(number, question)| (number, question.outcome())));
    told
}

/// The runs that have a socket in a folder: process id and name.
fn runs_in(folder: &Folder) -> Vec<(u32, String)> {
    let names = folder.names().unwrap_or_default();
    let runs = names.iter().filter_map(|file| run_of(file.strip_suffix(".sock")?));
    let mut runs: Vec<_> = runs.collect();
    runs.sort();
    runs
}

/// Process id and name of a run, from its name.
fn run_of(name: &str) -> Option<(u32, String)> {
    let (pid, random) = name.split_once('-')?;
    is_unguessable(random).then_some((pid.parse().ok()?, name.to_owned()))
}

/// Removes what runs have left in a folder that were killed, at whatever point.
fn remove_dead(folder: &Folder) {
    let names = folder.names().unwrap_or_default();
    let runs = names.iter().filter_map(|file| {
        let (name, kind) = file.split_once('.')?;
        ["new", "sock", "lock"].contains(&kind).then(|| run_of(name)).flatten()
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort();
    runs.dedup();
    runs.iter().for_each(|(_, name)| remove_if_dead(folder, name));
}

/// Removes the files of a run if nobody holds its lock.
fn remove_if_dead(folder: &Folder, name: &str) {
    if folder.owner() != geteuid().as_raw() {
        return;
    }
    if let Ok(Some(_dead)) = folder.lock_exclusive(&lock_of(name)) {
        folder.remove(&new_of(name));
        folder.remove(&socket_of(name));
        folder.remove(&lock_of(name));
    }
}

/// A run that was asked.
struct Question {
    socket: OwnedFd,
    heard: Vec<u8>,
    silent_from: Instant,
    end: Option<Result<(), NoAnswer>>,
}

impl Question {
    fn new(folder: &Folder, name: &str) -> Result<Self, NoAnswer> {
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
        Ok(Self { socket, heard: Vec::new(), silent_from: Instant::now(), end: None })
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
fn hear(questions: &mut [(u32, Question)]) {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut room = ANSWERS_LEN_MAX;
    loop {
        let now = Instant::now();
        let mut next = until;
        for (_, question) in questions.iter_mut().filter(|(_, question)| question.end.is_none()) {
            let deadline = question.silent_from + PATIENCE;
            if deadline <= now {
                question.end = Some(Err(NoAnswer::Silent));
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
            .map(|q| PollFd::from_borrowed_fd(q.socket.as_fd(), PollFlags::IN))
            .collect();
        let _ = wait(&mut polls, Some(next.saturating_duration_since(now)));
        let ready: Vec<_> = polls.iter().map(|poll| !poll.revents().is_empty()).collect();
        for (question, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            room = room.saturating_sub(question.read(room));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_and_answered_and_gone() {
        let pid = std::process::id();
        let instance = Instance::serve(|| b"hello".to_vec()).unwrap();
        let heard = |pid| -> Vec<(u32, Vec<u8>)> {
            ask_all(pid).into_iter().filter_map(|(pid, told)| Some((pid, told.ok()?))).collect()
        };
        assert_eq!(heard(Some(pid)), [(pid, b"hello".to_vec())]);
        assert!(heard(None).contains(&(pid, b"hello".to_vec())));
        let folder = instance.folder.try_clone().unwrap();
        drop(instance);
        assert!(ask_all(Some(pid)).is_empty());
        // What a killed run leaves behind is removed by the next one that looks. No process has this number.
        let name = format!("4194304-{}", unguessable().unwrap());
        let lives = folder.lock_exclusive(&lock_of(&name)).unwrap();
        drop(UnixListener::bind(folder.own_path(&socket_of(&name))).unwrap());
        let there = || folder.socket(&socket_of(&name)).is_ok();
        assert!(ask_all(Some(4_194_304)).is_empty());
        assert!(there(), "it may be of another kernel that has the folder too");
        drop(lives);
        assert!(ask_all(Some(4_194_304)).is_empty());
        assert!(!there());
        assert!(!folder.names().unwrap().contains(&lock_of(&name)));
    }
}
