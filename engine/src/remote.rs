//! How other threads talk to an engine that runs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_shm::Fd;

use towpath_ring::notification;

use towpath_filter::Rules;
use towpath_stack::net::{Change, Refused, RuleSet};

use crate::net::{Applied, NetState};
use crate::report::{Counters, Left, SocketEntry};

/// A handle on an engine, for other threads than its own; clones are of the same one.
///
/// A thread that asks waits for the answer, which the engine gives in one of its next turns. Before
/// [`crate::Engine::run`] begins, or a host [turns](crate::Engine::turn) the engine, there is none:
/// on the engine's own thread such a call would wait for ever.
#[derive(Debug, Clone)]
pub struct Remote {
    shared: Arc<RemoteState>,
}

/// The engine does not run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine does not run any more")]
pub struct Gone;

impl From<Gone> for io::Error {
    fn from(gone: Gone) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, gone)
    }
}

#[derive(Debug)]
struct RemoteState {
    bell: Fd,
    mailbox: Mutex<RemoteMailbox>,
}

#[derive(Debug, Default)]
struct RemoteMailbox {
    wishes: VecDeque<RemoteRequest>,
    closed: bool,
}

/// A wish of another thread, with the sender for its answer.
#[derive(Debug)]
pub(crate) enum RemoteRequest {
    Stop,
    Attach(Sender<io::Result<Fd>>),
    Sockets(Sender<Vec<SocketEntry>>),
    Counters(Sender<Counters>),
    Left(Sender<Left>),
    Net(Sender<NetState>),
    Apply(Vec<Change>, Sender<Result<Applied, Refused>>),
    Rules(Sender<Option<Arc<RuleSet>>>),
    SetRules(Option<Box<Rules>>, Sender<Result<Applied, Refused>>),
}

impl Remote {
    pub(crate) fn new() -> io::Result<Self> {
        let shared = RemoteState { bell: notification::create()?, mailbox: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Lets [`crate::Engine::run`] return. Programs then find their engine gone. Waits for nothing,
    /// and does nothing when the engine has gone.
    pub fn stop(&self) {
        // An engine that is gone has stopped.
        let _ = self.send(RemoteRequest::Stop);
    }

    /// A control socket for one more process, as [`crate::Engine::attach`].
    ///
    /// # Errors
    /// As there; [`io::ErrorKind::BrokenPipe`] when the engine does not run any more.
    pub fn attach(&self) -> io::Result<OwnedFd> {
        self.ask(RemoteRequest::Attach)?.map(Fd::into_owned)
    }

    /// All sockets of all programs, and connections without a socket: half-open ones and those in
    /// TIME-WAIT. The list is made in portions, with the engine's other work between them: it is no
    /// picture of one moment. A socket that is there all the time stands in it once; a connection
    /// without one may be missed, or stand there twice.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn sockets(&self) -> Result<Vec<SocketEntry>, Gone> {
        self.ask(RemoteRequest::Sockets)
    }

    /// Counters of all layers since the engine was made.
    ///
    /// # Errors
    /// The engine does not run any more; [`Engine::run`](crate::Engine::run) has returned what they
    /// came to.
    pub fn counters(&self) -> Result<Counters, Gone> {
        self.ask(RemoteRequest::Counters)
    }

    /// Connections and data that keep an engine running that ends with its last program. The call
    /// looks at every socket.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn left(&self) -> Result<Left, Gone> {
        self.ask(RemoteRequest::Left)
    }

    /// Interfaces, routes and neighbours as they are now.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn net(&self) -> Result<NetState, Gone> {
        self.ask(RemoteRequest::Net)
    }

    /// Makes all of several changes while packets flow, for each shard at one moment. Every shard
    /// goes by them when this returns.
    ///
    /// # Errors
    /// The engine does not run any more. The inner error: none of the changes was made, and why.
    ///
    /// ```
    /// use std::thread;
    ///
    /// use towpath_engine::{Change, Engine, EngineConfig, EngineError, Fault};
    /// use towpath_stack::net::IfaceId;
    ///
    /// # fn main() -> Result<(), EngineError> {
    /// let engine = Engine::new(EngineConfig::default(), Vec::new(), [7; 32])?;
    /// let remote = engine.remote();
    /// let thread = thread::spawn(|| engine.run());
    /// let prefix = "10.9.0.1/32".parse().expect("a prefix");
    /// let address = Change::AddAddress { iface: IfaceId::LOOPBACK, prefix };
    /// assert!(remote.apply(vec![address]).expect("it runs").is_ok());
    /// let refused = remote.apply(vec![address]).expect("it runs").expect_err("it is there");
    /// assert_eq!((refused.at, refused.why), (0, Fault::Exists));
    /// let lo = &remote.net().expect("it runs").interfaces[0];
    /// assert!(lo.addresses.iter().any(|address| address.prefix == prefix));
    /// remote.stop();
    /// # thread.join().expect("it does not panic");
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply(&self, changes: Vec<Change>) -> Result<Result<Applied, Refused>, Gone> {
        self.ask(|answer| RemoteRequest::Apply(changes, answer))
    }

    /// The rules by which packets are judged, with what they count.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn rules(&self) -> Result<Option<Arc<RuleSet>>, Gone> {
        self.ask(RemoteRequest::Rules)
    }

    /// Judges packets by other rules, or by none. Every shard goes by them when this returns, and
    /// no packet was judged by parts of two sets.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn set_rules(&self, rules: Option<Rules>) -> Result<(), Gone> {
        let made = self.ask(|answer| RemoteRequest::SetRules(rules.map(Box::new), answer))?;
        debug_assert!(made.is_ok(), "rules that are compiled are taken");
        Ok(())
    }

    fn ask<T>(&self, wish: impl FnOnce(Sender<T>) -> RemoteRequest) -> Result<T, Gone> {
        let (sender, receiver) = channel();
        self.send(wish(sender))?;
        receiver.recv().map_err(|_| Gone)
    }

    fn send(&self, wish: RemoteRequest) -> Result<(), Gone> {
        let mut mailbox = self.lock();
        if mailbox.closed {
            return Err(Gone);
        }
        mailbox.wishes.push_back(wish);
        drop(mailbox);
        notification::ring(self.notifier());
        Ok(())
    }

    /// Readable when there are wishes.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    pub(crate) fn take(&self) -> VecDeque<RemoteRequest> {
        notification::clear(self.notifier());
        std::mem::take(&mut self.lock().wishes)
    }

    /// From here on everybody is told that the engine is gone; those who wait, too.
    pub(crate) fn close(&self) {
        let mut mailbox = self.lock();
        mailbox.closed = true;
        mailbox.wishes.clear();
    }

    fn lock(&self) -> MutexGuard<'_, RemoteMailbox> {
        self.shared.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
