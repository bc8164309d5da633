//! Socket on which a run answers requests.
//!
//! On a connection, the client sends one line of JSON, and the run answers with one JSON document
//! and closes the connection. A subscriber (`subscriber`) gets further documents instead.
//!
//! The socket is in a private [`Folder`]. The kernel authenticates the client: a run answers its
//! own user and root. Requests are limited in size and time (`connections`).
//!
//! A run has two files: `RUN.sock`, named `RUN.new` until it listens, and `RUN.lock`, which the run
//! keeps locked. RUN is `PID-RANDOM` or `PID-RANDOM-NAME`, because a process in another PID
//! namespace may have the same id and share the directory. A run with a name also locks
//! `NAME.name`. Files of a killed run are removed when the next run starts, or when a client finds
//! that no process listens.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::connections::{self, Times};
use crate::folder::{self, FOR_OWNER, Folder, Lock, Unfit, is_unguessable, unguessable};
use crate::request::{Call, Reply, RequestFault, RunKind};
use crate::sockets::Word;
use crate::subscriber::ReportSource;
use crate::subscription::Subscription;

/// Maximum time for which the client or the run waits for the next byte from its peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Answers the requests of clients, on the thread of the control socket.
pub trait CallResponder: Send + 'static {
    /// Puts the answer to a request into `reply`.
    fn answer(&self, call: Call, reply: &mut Reply);

    /// Creates the source of reports for a new subscriber.
    ///
    /// # Errors
    /// The run does not support subscriptions.
    fn subscribe(&self, _: &Subscription) -> Result<Box<dyn ReportSource>, RequestFault> {
        Err(RequestFault::new("unsupported", "has no reports: only a run or a router sends them"))
    }
}

impl<F: Fn(Call, &mut Reply) + Send + 'static> CallResponder for F {
    fn answer(&self, call: Call, reply: &mut Reply) {
        self(call, reply);
    }
}

/// A control socket that answers requests. Its files are removed when this value is dropped.
#[derive(Debug)]
pub struct Instance {
    folder: Folder,
    run: String,
    // Lock that is held while the run exists, so that other runs do not remove its files.
    _lives: Option<Lock>,
    name: Option<(Word, Lock)>,
}

/// Reason why the control socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum NoInstance {
    /// Another run of this user already has this name.
    #[error("--name {0}: another run of this user has this name; `towpath ss` shows all runs")]
    NameTaken(Word),
    /// No directory can be used for the socket.
    #[error("no folder for the control socket: {0}")]
    NoFolder(String),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns whether the text may be the name of a run: at most 32 letters, digits and underscores.
#[must_use]
pub fn is_name(text: &str) -> bool {
    const LEN_MAX: usize = 32;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=LEN_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

impl Instance {
    /// Creates the socket of a run, with a name if given. [`Listening::serve`] then answers
    /// requests.
    ///
    /// # Errors
    /// No directory can be used, or another run has the name.
    pub fn open(name: Option<Word>) -> Result<Listening, NoInstance> {
        let mut is_taken = false;
        let bound = folder::first_that(|folder| {
            let held = match &name {
                // Fail if the name is locked in the first usable directory. If we tried further
                // directories, two runs could have the same name.
                Some(_) if is_taken => {
                    return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
                }
                Some(name) => match folder.lock_exclusive(&name_of(name.as_str()))? {
                    Some(lock) => Some((name.clone(), lock)),
                    None => {
                        is_taken = true;
                        return Err(Unfit::Io(io::ErrorKind::AlreadyExists.into()));
                    }
                },
                None => None,
            };
            Ok(Self::bind(folder, held)?)
        });
        match (bound, name) {
            (Ok(((instance, listener), _)), _) => Ok(Listening { instance, listener }),
            (Err(_), Some(name)) if is_taken => Err(NoInstance::NameTaken(name)),
            (Err(refusals), _) => {
                let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                Err(NoInstance::NoFolder(reasons.join("; ")))
            }
        }
    }

    fn bind(folder: &Folder, name: Option<(Word, Lock)>) -> io::Result<(Self, UnixListener)> {
        remove_dead(folder);
        let (run, lives) = new_run(folder, name.as_ref().map(|(name, _)| name.as_str()))?;
        let folder = folder.try_clone()?;
        // If an error occurs below, dropping the instance removes the files that were created.
        let instance = Self { folder, run, _lives: lives, name };
        let (new, socket) = (new_of(&instance.run), socket_of(&instance.run));
        let listener = UnixListener::bind(instance.folder.own_path(&new)).and_then(|listener| {
            instance.folder.set_mode(&new, FOR_OWNER)?;
            // Rename the socket now that it listens. Clients assume that a run is dead if a socket
            // with this name refuses connections.
            instance.folder.rename(&new, &socket)?;
            Ok(listener)
        });
        if listener.is_err() {
            instance.folder.remove(&new);
        }
        Ok((instance, listener?))
    }
}

/// A control socket for which no thread answers requests yet.
#[derive(Debug)]
pub struct Listening {
    instance: Instance,
    listener: UnixListener,
}

impl Listening {
    /// Starts a thread that answers requests. The thread runs until the process ends.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn serve(
        self,
        kind: RunKind,
        program: Vec<String>,
        responder: impl CallResponder,
    ) -> io::Result<Instance> {
        let Self { instance, listener } = self;
        listener.set_nonblocking(true)?;
        let mut empty = Reply::new(kind, program);
        empty.name = instance.name.as_ref().map(|(name, _)| name.clone());
        std::thread::Builder::new().name("towpath-ss".into()).spawn(move || {
            connections::serve(&listener, Times::USUAL, empty, responder);
        })?;
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Remove the socket before the lock file. Otherwise another run could take the lock, and
        // remove the socket because it seems to belong to a dead run.
        self.folder.remove(&socket_of(&self.run));
        self.folder.remove(&lock_of(&self.run));
        if let Some((name, _)) = &self.name {
            self.folder.remove(&name_of(name.as_str()));
        }
    }
}

/// Chooses the name for the files of this run, and locks it.
///
/// Returns no lock if other runs removed the lock file at every attempt, because they assumed that
/// this run was dead. Other runs may then also remove the run's socket.
fn new_run(folder: &Folder, name: Option<&str>) -> io::Result<(String, Option<Lock>)> {
    let mut tries = NAMES_TRIED_MAX;
    loop {
        let mut run = format!("{}-{}", std::process::id(), unguessable()?);
        if let Some(name) = name {
            run.push('-');
            run.push_str(name);
        }
        let lives = folder.lock_exclusive(&lock_of(&run))?;
        tries -= 1;
        if lives.is_some() || tries == 0 {
            return Ok((run, lives));
        }
    }
}

/// Maximum number of names that are tried. An attempt fails if another run removes the file. Each
/// run removes files only once, when it starts, so a second name is nearly always sufficient.
const NAMES_TRIED_MAX: u32 = 8;

fn new_of(run: &str) -> String {
    format!("{run}.new")
}

pub(crate) fn socket_of(run: &str) -> String {
    format!("{run}.sock")
}

pub(crate) fn lock_of(run: &str) -> String {
    format!("{run}.lock")
}

fn name_of(name: &str) -> String {
    format!("{name}.name")
}

/// Returns the user id of a Unix socket's peer. For a listener, returns the user that called
/// listen(2). We cannot use rustix's `socket_peercred`, because it fails if the peer is not visible
/// in this PID namespace.
pub(crate) fn user_behind(socket: &impl AsFd) -> Result<u32, Errno> {
    let credentials = nix::sys::socket::getsockopt(socket, PeerCredentials);
    credentials.map(|peer| peer.uid()).map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Parses the process id and the name of a run from the common part of its file names.
pub(crate) fn run_of(run: &str) -> Option<(u32, Option<Word>)> {
    let (pid, rest) = run.split_once('-')?;
    let (random, name) = match rest.split_once('-') {
        Some((random, name)) => (random, Some(name)),
        None => (rest, None),
    };
    if !is_unguessable(random) || name.is_some_and(|name| !is_name(name)) {
        return None;
    }
    Some((pid.parse().ok()?, name.and_then(|name| Word::try_from(name).ok())))
}

/// Removes the files of killed runs from a directory.
fn remove_dead(folder: &Folder) {
    let files = folder.names().unwrap_or_default();
    let runs = files.iter().filter_map(|file| {
        let (run, kind) = file.split_once('.')?;
        (["new", "sock", "lock"].contains(&kind) && run_of(run).is_some()).then_some(run)
    });
    let mut runs: Vec<_> = runs.collect();
    runs.sort_unstable();
    runs.dedup();
    runs.iter().for_each(|run| remove_if_dead(folder, run));
    if folder.owner() != geteuid().as_raw() {
        return;
    }
    for file in files.iter().filter(|file| file.strip_suffix(".name").is_some_and(is_name)) {
        if let Ok(Some(_free)) = folder.lock_exclusive(file) {
            folder.remove(file);
        }
    }
}

/// Removes the files of a run if no process holds the run's lock.
pub(crate) fn remove_if_dead(folder: &Folder, run: &str) {
    if folder.owner() != geteuid().as_raw() {
        return;
    }
    if let Ok(Some(_dead)) = folder.lock_exclusive(&lock_of(run)) {
        folder.remove(&new_of(run));
        folder.remove(&socket_of(run));
        folder.remove(&lock_of(run));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;
    use crate::ask::{Told, ask_user};
    use crate::client::{Client, Error, Runs};
    use crate::request::RequestFault;

    /// Lock that prevents tests from running concurrently. All tests run in one process, and the
    /// files of a run are named by its process id.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(pid: u32) -> Vec<Told> {
        ask_user(geteuid().as_raw(), |run| run.pid == pid, &Call::Info)
    }

    fn serve(name: Option<&'static str>) -> Instance {
        let listening = Instance::open(name.map(Word::known)).unwrap();
        let answer = |call: Call, reply: &mut Reply| match call {
            Call::Info => {}
            Call::Apply { changes } => reply.applied = Some(changes.len()),
            _ => reply.error = Some(RequestFault::new("unsupported", "not here")),
        };
        listening.serve(RunKind::Run, vec!["hello".to_owned()], answer).unwrap()
    }

    #[test]
    fn asked_and_answered_and_gone() {
        let _alone = alone();
        let pid = std::process::id();
        let instance = serve(None);
        let told = ask(pid);
        let [(_, Ok(bytes))] = &told[..] else { panic!("{told:?}") };
        let reply: Reply = serde_json::from_slice(bytes).unwrap();
        assert_eq!((reply.pid, reply.program), (pid, vec!["hello".to_owned()]));
        let folder = instance.folder.try_clone().unwrap();
        drop(instance);
        assert!(ask(pid).is_empty());
        // Create the files of a killed run, with a process id that cannot exist. The next run
        // removes them.
        let name = format!("4194304-{}", unguessable().unwrap());
        let lives = folder.lock_exclusive(&lock_of(&name)).unwrap();
        drop(UnixListener::bind(folder.own_path(&socket_of(&name))).unwrap());
        let there = || folder.socket(&socket_of(&name)).is_ok();
        assert!(ask(4_194_304).is_empty());
        assert!(there(), "it may be of another kernel that has the folder too");
        drop(lives);
        assert!(ask(4_194_304).is_empty());
        assert!(!there());
    }

    #[test]
    fn a_name_is_one_runs_and_finds_it() {
        let _alone = alone();
        let instance = serve(Some("model_test_name"));
        let taken = Instance::open(Some(Word::known("model_test_name"))).unwrap_err();
        assert!(taken.to_string().contains("--name model_test_name: another run"), "{taken}");
        let client = Client::named("model_test_name").unwrap();
        assert_eq!(client.pid(), std::process::id());
        assert_eq!(client.apply(&[]).unwrap(), 0);
        let refused = client.net().unwrap_err();
        assert!(matches!(&refused, Error::Refused(fault) if fault.message == "not here"));
        assert!(Runs::own().list().iter().any(|run| run.name() == Some("model_test_name")));
        drop(instance);
        assert!(matches!(Client::named("model_test_name"), Err(Error::NoRun(_))));
        drop(serve(Some("model_test_name")));
    }

    #[test]
    fn a_request_that_is_none_has_an_error_for_an_answer() {
        let _alone = alone();
        let instance = serve(None);
        let path = instance.folder.own_path(&socket_of(&instance.run));
        let ask = |text: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let reply: Reply = serde_json::from_slice(&answer).unwrap();
            reply.error.map(|fault| (fault.code.to_string(), fault.message)).unwrap()
        };
        let code = |text: &str| ask(text).0;
        assert_eq!(code(""), "request");
        assert_eq!(code("{\"version\":1,\"request\":\"info\"}"), "request", "no end of the line");
        assert_eq!(code("nonsense\n"), "request");
        assert_eq!(code("{\"request\":\"info\"}\n"), "request");
        assert_eq!(code("{\"version\":2,\"request\":\"info\"}\n"), "version");
        let (code, why) = ask("{\"version\":1,\"request\":\"nett\"}\n");
        assert!(code == "request" && why.contains("unknown variant `nett`"), "{why}");
        let change = "{\"change\":\"set-mtu\",\"dev\":\"eth0\",\"mtu\":1400,\"mtv\":1}";
        let (_, why) =
            ask(&format!("{{\"version\":1,\"request\":\"apply\",\"changes\":[{change}]}}\n"));
        assert!(why.contains("unknown field `mtv`"), "{why}");
    }

    #[test]
    fn names_are_words_without_what_files_mean() {
        assert!(is_name("web_1") && is_name("X"));
        for wrong in ["", "a-b", "a.b", "../x", "a b", &"x".repeat(33)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
