//! Access to a running engine from other threads.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_shm::Fd;

use towpath_ring::notification;

use towpath_filter::Rules;
use towpath_pool::Port;
use towpath_stack::IfaceId;
use towpath_stack::net::{Change, Fault, InterfaceConfig, KernelRoutes, Net, Refused, RuleSet};
use towpath_tcp::{Instant, TcpDefaults};

use crate::config::ResolverConfig;
use crate::net::{Applied, NetState};
use crate::queries::{
    AttachQuery, ChangeTcpQuery, CountersQuery, DetachQuery, NetQuery, SetResolverQuery,
    SettleQuery, SocketsQuery, UnsentQuery,
};
use crate::query::{PendingQuery, PendingWork, Portion, Query, QueryTarget, ShardQuery};
use crate::report::{Counters, Left, SocketEntry};

/// A handle to an engine for other threads. Clones refer to the same engine.
///
/// Calls wait for the reply, which the engine sends in one of the next iterations of its event
/// loop. The event loop runs in [`crate::Engine::run`], or when a host program calls
/// [`crate::Engine::turn`]. A call on the engine's own thread would block for ever.
#[derive(Debug, Clone)]
pub struct Remote {
    shared: Arc<RemoteState>,
}

/// Error: the engine does not run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine does not run any more")]
pub struct Gone;

impl From<Gone> for io::Error {
    fn from(gone: Gone) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, gone)
    }
}

/// Reason why an interface cannot be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The stack rejects the interface, for this reason.
    #[error("{0}")]
    Refused(Fault),
    /// A shard (event loop) cannot poll its port for the interface, because of this error.
    #[error(transparent)]
    System(io::Error),
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] Gone),
}

#[derive(Debug)]
struct RemoteState {
    notifier: Fd,
    /// Number of shards of the engine.
    shards: usize,
    mailbox: Mutex<RemoteMailbox>,
}

#[derive(Debug, Default)]
struct RemoteMailbox {
    requests: VecDeque<RemoteRequest>,
    closed: bool,
}

/// A request of another thread to the registry (process manager).
#[derive(Debug)]
pub(crate) enum RemoteRequest {
    /// Stops the engine, after remaining data was sent.
    Stop,
    /// Creates a control socket for one more process. If `is_last`, a refusal is counted, because
    /// the caller does not try again.
    Attach { is_last: bool, answer: Sender<io::Result<Fd>> },
    /// Runs queries on the shards, one on each.
    Query(Vec<Box<dyn ShardQuery>>),
    /// Runs a job on the first shard at once, without waiting for earlier work.
    Work(Box<dyn ShardQuery>),
    /// Returns the state of the registry: processes and counters.
    State(Sender<RegistryState>),
}

/// State of the registry: processes and counters.
#[derive(Debug)]
pub(crate) struct RegistryState {
    /// Number of processes that use the engine.
    pub processes: usize,
    /// Counters of the registry (process manager), with the names used in [`Counters::engine`].
    pub counters: Vec<(&'static str, u64)>,
}

impl Remote {
    pub(crate) fn new(shards: usize) -> io::Result<Self> {
        let (notifier, mailbox) = (notification::create()?, Mutex::default());
        let shared = RemoteState { notifier, shards, mailbox };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Stops the engine, so that [`crate::Engine::run`] returns and programs lose their connection
    /// to it. Does not wait for the end of the engine. Does nothing if it has already ended.
    pub fn stop(&self) {
        // Ignore an error: the engine has already ended.
        let _ = self.send(RemoteRequest::Stop);
    }

    /// Sets the nameserver that programs find in /etc/resolv.conf. Programs that have already read
    /// the file keep the old nameserver.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn set_resolver(&self, resolver: Option<ResolverConfig>) -> Result<(), Gone> {
        self.query(SetResolverQuery(resolver))
    }

    /// Creates a control socket for one more process, as [`crate::Engine::attach`] does.
    ///
    /// # Errors
    /// As for [`crate::Engine::attach`], and [`io::ErrorKind::BrokenPipe`] if the engine has ended.
    pub fn attach(&self) -> io::Result<OwnedFd> {
        let attach = |is_last| self.ask(|answer| RemoteRequest::Attach { is_last, answer });
        if let Ok(control) = attach(false)? {
            return Ok(control.into_owned());
        }
        // All channels are in use. Wait until the shards have finished earlier work, which may free
        // channels of ended processes, and try again.
        self.query(SettleQuery)?;
        attach(true)?.map(Fd::into_owned)
    }

    /// Returns all sockets of all programs, and connections without a socket: half-open ones and
    /// those in TIME-WAIT. The list is not a consistent snapshot, because the engine does other
    /// work while it is created. A socket that exists all the time is listed exactly once. A
    /// connection without a socket may be missed, or listed twice.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn sockets(&self) -> Result<Vec<SocketEntry>, Gone> {
        self.query(SocketsQuery::default())
    }

    /// Returns the counters of all layers since the engine was created.
    ///
    /// # Errors
    /// Fails if the engine has ended; [`Engine::run`](crate::Engine::run) has then returned the
    /// final counters.
    pub fn counters(&self) -> Result<Counters, Gone> {
        let mut counters = self.query(CountersQuery)?;
        counters.add_registry(&self.registry()?.counters);
        Ok(counters)
    }

    /// Returns why an engine that ends with its last program still runs: the number of processes,
    /// and unsent data. Iterates over all sockets.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn left(&self) -> Result<Left, Gone> {
        let unsent = self.query(UnsentQuery)?;
        Ok(Left { processes: self.registry()?.processes, unsent })
    }

    /// Returns the current interfaces, routes and neighbors.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn net(&self) -> Result<NetState, Gone> {
        self.query(NetQuery)?.ok_or(Gone)
    }

    /// Applies several changes of the network configuration while packets flow. If one is invalid,
    /// none is applied. In each shard (event loop), all changes take effect together. All shards
    /// use them when this function returns.
    ///
    /// # Errors
    /// Fails if the engine has ended. The inner error contains the first invalid change; no change
    /// was made.
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
        let gone: Vec<IfaceId> = removed(&changes).collect();
        let made = self.change(move |net, now| net.apply(now, &changes))?;
        if made.is_ok() {
            for iface in gone {
                drop(self.query(DetachQuery(iface))?);
            }
        }
        Ok(made.map(|()| applied))
    }

    /// Adds a network interface while packets flow. Each shard gets one of the `ports`, the queues
    /// of the interface's device. [`Change::RemoveInterface`] removes the interface, and
    /// [`Remote::apply`] then drops the ports on the calling thread.
    ///
    /// # Errors
    /// Fails if the interface is invalid or if the engine has ended. The ports are dropped then.
    ///
    /// # Panics
    /// If the number of ports is not [`Remote::shards`].
    pub fn add_interface(
        &self,
        config: InterfaceConfig,
        ports: Vec<Box<dyn Port + Send>>,
    ) -> Result<IfaceId, AddError> {
        assert_eq!(ports.len(), self.shared.shards, "each shard has a queue of the device");
        if config.any_address {
            return Err(AddError::Refused(Fault::Invalid));
        }
        let added = self.change(move |net, now| net.try_add_interface(now, &config))?;
        let iface = added.map_err(AddError::Refused)?;
        let attached = self.query(AttachQuery::new(iface, ports))?;
        if let Err(error) = attached {
            // The change cannot be rejected, because the interface has just been added.
            let _ = self.apply(vec![Change::RemoveInterface { iface }])?;
            return Err(AddError::System(error));
        }
        Ok(iface)
    }

    /// Replaces the routes taken over from the kernel to the given networks, while packets flow.
    /// Returns the number of refused routes ([`Net::set_kernel_routes`]).
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn set_kernel_routes(&self, updates: Vec<KernelRoutes>) -> Result<usize, Gone> {
        self.change(move |net, _| net.set_kernel_routes(&updates))
    }

    /// Returns the number of shards of the engine.
    pub fn shards(&self) -> usize {
        self.shared.shards
    }

    /// Returns the packet filter rules with their counters.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn rules(&self) -> Result<Option<Arc<RuleSet>>, Gone> {
        self.on_first_shard(|shard| shard.net().rules().cloned())
    }

    /// Replaces or removes the packet filter rules. Every shard uses the new rules when this
    /// returns, and no packet is filtered by parts of two rule sets.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn set_rules(&self, rules: Option<Rules>) -> Result<(), Gone> {
        self.change(move |net, _| net.set_rules(rules))
    }

    /// Returns the TCP settings of new connections.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn tcp_defaults(&self) -> Result<TcpDefaults, Gone> {
        self.on_first_shard(|shard| shard.tcp_defaults())
    }

    /// Changes the TCP settings of new connections, also of those that existing listeners accept.
    /// Every shard uses the new settings when this returns. `change` runs once for each shard
    /// (event loop) on the current settings, so that concurrent changes are not lost.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn change_tcp(
        &self,
        change: impl Fn(&mut TcpDefaults) + Clone + Send + 'static,
    ) -> Result<(), Gone> {
        self.query(ChangeTcpQuery(change))
    }

    /// Sets whether an interface has a link. Without a link, packets are sent to routers on other
    /// interfaces, if possible.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn set_carrier(&self, iface: IfaceId, carrier: bool) -> Result<(), Gone> {
        self.change(move |net, now| net.set_carrier(now, iface, carrier))
    }

    /// Changes the configuration of the network layer. All shards (event loops) use the new
    /// configuration when this returns.
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

    /// Sends a query to all shards, and waits for their answers.
    ///
    /// # Errors
    /// Fails if the engine has ended.
    pub fn query<Q: Query>(&self, query: Q) -> Result<Q::Answer, Gone> {
        let (to, parts) = channel();
        let one = |_| Box::new(PendingQuery::new(query.clone(), to.clone())) as Box<dyn ShardQuery>;
        self.send(RemoteRequest::Query((0..self.shared.shards).map(one).collect()))?;
        // Drop this thread's sender. Otherwise the loop below would not end if the engine ends.
        drop(to);
        let (mut left, mut all) = (self.shared.shards, Vec::new());
        while left > 0 {
            match parts.recv().map_err(|_| Gone)? {
                Portion::Last(part) => {
                    left -= 1;
                    all.push(part);
                }
                Portion::More(part) => all.push(part),
            }
        }
        Ok(Q::join(all))
    }

    /// Runs `work` on the first shard between two iterations of its event loop, and returns its
    /// result. The first shard has the configuration of the network layer. Other shards use the
    /// changes made by `work` before they answer a later [`Query`].
    ///
    /// # Errors
    /// Fails if the engine has ended.
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

    /// Returns the descriptor that notifies the registry of requests.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }

    pub(crate) fn take(&self) -> VecDeque<RemoteRequest> {
        notification::clear(self.notifier());
        std::mem::take(&mut self.lock().requests)
    }

    /// Rejects requests from now on, and drops queued ones. The threads that sent the requests get
    /// [`Gone`].
    pub(crate) fn close(&self) {
        let mut mailbox = self.lock();
        mailbox.closed = true;
        mailbox.requests.clear();
    }

    fn lock(&self) -> MutexGuard<'_, RemoteMailbox> {
        self.shared.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the interfaces that a list of changes removes.
pub(crate) fn removed(changes: &[Change]) -> impl Iterator<Item = IfaceId> {
    changes.iter().filter_map(|change| match change {
        Change::RemoveInterface { iface } => Some(*iface),
        _ => None,
    })
}
