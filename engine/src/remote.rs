//! How other threads talk to an engine that runs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_shm::Fd;

use towpath_ring::notification;

use towpath_filter::Rules;
use towpath_stack::IfaceId;
use towpath_stack::net::{Change, Net, Refused, RuleSet};
use towpath_tcp::Instant;

use crate::net::{Applied, NetState};
use crate::queries::{CountersQuery, NetQuery, SettleQuery, SocketsQuery, UnsentQuery};
use crate::query::{PendingQuery, PendingWork, Query, QueryTarget, ShardQuery};
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
    notifier: Fd,
    /// Number of shards.
    shards: usize,
    mailbox: Mutex<RemoteMailbox>,
}

#[derive(Debug, Default)]
struct RemoteMailbox {
    requests: VecDeque<RemoteRequest>,
    closed: bool,
}

/// A request of another thread to the registry.
#[derive(Debug)]
pub(crate) enum RemoteRequest {
    /// The engine ends.
    Stop,
    /// A control socket for one more process. A refusal of the last attempt is counted.
    Attach { is_last: bool, answer: Sender<io::Result<Fd>> },
    /// Queries, one for each shard.
    Query(Vec<Box<dyn ShardQuery>>),
    /// Work that the first shard does at once.
    Work(Box<dyn ShardQuery>),
    /// The registry's own state.
    State(Sender<RegistryState>),
}

/// State of the registry.
#[derive(Debug)]
pub(crate) struct RegistryState {
    /// Processes that are attached.
    pub processes: usize,
    /// Counters of the registry, by the names that [`Counters::engine`] has for them.
    pub counters: Vec<(&'static str, u64)>,
}

impl Remote {
    pub(crate) fn new(shards: usize) -> io::Result<Self> {
        let (notifier, mailbox) = (notification::create()?, Mutex::default());
        let shared = RemoteState { notifier, shards, mailbox };
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
        let attach = |is_last| self.ask(|answer| RemoteRequest::Attach { is_last, answer });
        if let Ok(control) = attach(false)? {
            return Ok(control.into_owned());
        }
        // Processes that have ended leave room for the new one, once the shards have done all
        // earlier work.
        self.query(SettleQuery)?;
        attach(true)?.map(Fd::into_owned)
    }

    /// All sockets of all programs, and connections without a socket: half-open ones and those in
    /// TIME-WAIT. The list is made in portions, with the engine's other work between them: it is no
    /// picture of one moment. A socket that is there all the time stands in it once; a connection
    /// without one may be missed, or stand there twice.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn sockets(&self) -> Result<Vec<SocketEntry>, Gone> {
        self.query(SocketsQuery::default())
    }

    /// Counters of all layers since the engine was made.
    ///
    /// # Errors
    /// The engine does not run any more; [`Engine::run`](crate::Engine::run) has returned what they
    /// came to.
    pub fn counters(&self) -> Result<Counters, Gone> {
        let mut counters = self.query(CountersQuery)?;
        counters.add_registry(&self.registry()?.counters);
        Ok(counters)
    }

    /// Connections and data that keep an engine running that ends with its last program. The call
    /// looks at every socket.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn left(&self) -> Result<Left, Gone> {
        let unsent = self.query(UnsentQuery)?;
        Ok(Left { processes: self.registry()?.processes, unsent })
    }

    /// Interfaces, routes and neighbours as they are now.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn net(&self) -> Result<NetState, Gone> {
        self.query(NetQuery)?.ok_or(Gone)
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
        let applied = Applied { changes: changes.len() };
        let made = self.change(move |net, now| net.apply(now, &changes))?;
        Ok(made.map(|()| applied))
    }

    /// The rules by which packets are judged, with what they count.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn rules(&self) -> Result<Option<Arc<RuleSet>>, Gone> {
        self.on_first_shard(|shard| shard.net().rules().cloned())
    }

    /// Judges packets by other rules, or by none. Every shard goes by them when this returns, and
    /// no packet was judged by parts of two sets.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn set_rules(&self, rules: Option<Rules>) -> Result<(), Gone> {
        self.change(move |net, _| net.set_rules(rules))
    }

    /// Says whether an interface has a link. Without one the routers behind it are avoided where a
    /// route has others.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn set_carrier(&self, iface: IfaceId, carrier: bool) -> Result<(), Gone> {
        self.change(move |net, now| net.set_carrier(now, iface, carrier))
    }

    /// Changes the control part of the net. Every shard goes by the change when this returns.
    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Net, Instant) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let made = self.on_first_shard(move |shard| {
            let now = shard.now();
            change(shard.net(), now)
        })?;
        self.query(SettleQuery)?;
        Ok(made)
    }

    /// Asks all shards, and waits for their parts of the answer.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn query<Q: Query>(&self, query: Q) -> Result<Q::Answer, Gone> {
        let (to, parts) = channel();
        let one = |_| Box::new(PendingQuery::new(query.clone(), to.clone())) as Box<dyn ShardQuery>;
        self.send(RemoteRequest::Query((0..self.shared.shards).map(one).collect()))?;
        // Otherwise the parts would seem to have a sender when the engine has ended.
        drop(to);
        let parts: Vec<_> = parts.iter().collect();
        if parts.len() < self.shared.shards {
            return Err(Gone);
        }
        Ok(Q::join(parts))
    }

    /// Has the first shard do `work` between two turns, and waits for the result. The first shard
    /// has the control part of the net. Other shards go by a change of it when a [`Query`] that
    /// was asked later is answered.
    ///
    /// # Errors
    /// The engine does not run any more.
    pub fn on_first_shard<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn QueryTarget) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        self.ask(|to| RemoteRequest::Work(Box::new(PendingWork::new(work, to))))
    }

    fn registry(&self) -> Result<RegistryState, Gone> {
        self.ask(RemoteRequest::State)
    }

    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> RemoteRequest) -> Result<T, Gone> {
        let (sender, receiver) = channel();
        self.send(request(sender))?;
        receiver.recv().map_err(|_| Gone)
    }

    fn send(&self, request: RemoteRequest) -> Result<(), Gone> {
        let mut mailbox = self.lock();
        if mailbox.closed {
            return Err(Gone);
        }
        mailbox.requests.push_back(request);
        drop(mailbox);
        notification::ring(self.notifier());
        Ok(())
    }

    /// Readable when there are requests.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }

    pub(crate) fn take(&self) -> VecDeque<RemoteRequest> {
        notification::clear(self.notifier());
        std::mem::take(&mut self.lock().requests)
    }

    /// Refuses requests from now on, and drops those that wait: their threads get [`Gone`].
    pub(crate) fn close(&self) {
        let mut mailbox = self.lock();
        mailbox.closed = true;
        mailbox.requests.clear();
    }

    fn lock(&self) -> MutexGuard<'_, RemoteMailbox> {
        self.shared.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
