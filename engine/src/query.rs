//! Queries that other threads send to a running engine.
//!
//! ```text
//!   asking thread          registry                shards
//!   Remote::query ──────► ShardCommand::Query ──► Query::ask, in a round
//!   Query::join   ◄────── part by part       ◄── ShardReport::Answered
//! ```
//!
//! To add a query, implement [`Query`] for a type in any crate. Each shard (event loop) returns
//! parts of the answer. The registry forwards them in order with the shards' other reports.
//! Therefore a thread that has received all parts also sees the effects of earlier reports.

use std::sync::mpsc::Sender;
use std::{fmt, io};

use towpath_pool::Port;
use towpath_stack::IfaceId;
use towpath_stack::net::Net;
use towpath_tcp::{Instant, TcpDefaults};

use crate::config::ResolverConfig;
use crate::report::{Counters, SocketEntry};

/// A query to all shards (event loops) of an engine, each of which returns a part of the answer.
///
/// Before a shard handles the query, it executes earlier commands of programs and runs its stack.
/// Shards do not wait for each other.
pub trait Query: Clone + Send + 'static {
    /// The answer of one shard.
    type Part: Send + 'static;
    /// The combined answer of all shards.
    type Answer;

    /// Returns the answer of a shard, or a portion of it, so that a long list does not delay
    /// packets. Each shard has its own clone of the query.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part>;

    /// Combines the answers of all shards (event loops), in the order of their arrival. Called on
    /// the thread that sent the query.
    fn join(parts: Vec<Self::Part>) -> Self::Answer;
}

/// Result of a shard for one call of [`Query::ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion<T> {
    /// The complete answer of the shard (event loop), or its last portion.
    Last(T),
    /// A portion of the shard's answer. The shard (event loop) calls [`Query::ask`] again for the
    /// next one, in the next iteration of its event loop.
    More(T),
}

/// The shard on which a [`Query`] runs.
pub trait QueryTarget {
    /// Returns the number of the shard (event loop). Shard 0 has the configuration of the network
    /// layer, which all shards share.
    fn number(&self) -> u32;
    /// Returns the time at which the current turn of the event loop began, on the engine's clock.
    fn now(&self) -> Instant;
    /// Returns the network layer of the shard's stack.
    fn net(&mut self) -> &mut Net;
    /// Adds the port of an interface that was added at run time.
    ///
    /// # Errors
    /// Fails if the poller cannot wait for the port. The port is dropped.
    fn attach(&mut self, iface: IfaceId, port: Box<dyn Port + Send>) -> io::Result<()>;
    /// Removes and returns the port of a removed interface, and drops packets queued for it.
    fn detach(&mut self, iface: IfaceId) -> Option<Box<dyn Port + Send>>;
    /// Returns the TCP settings of new connections.
    fn tcp_defaults(&self) -> TcpDefaults;
    /// Replaces the TCP settings of new connections of this shard (event loop). Connections of
    /// existing listeners use them, too.
    fn set_tcp_defaults(&mut self, defaults: &TcpDefaults);
    /// Sets the nameserver that programs find in /etc/resolv.conf.
    fn set_resolver(&mut self, resolver: Option<ResolverConfig>);
    /// Returns the counters of this shard (event loop) for all layers.
    fn counters(&self) -> Counters;
    /// Returns the number of bytes not acknowledged by peers, plus the number of packets not sent
    /// by ports.
    fn unsent(&self) -> u64;
    /// Lists sockets, starting at `progress`. Returns as many as one iteration of the event loop
    /// should process.
    fn list_sockets(&mut self, progress: &mut ListingProgress) -> Vec<SocketEntry>;
}

/// Progress of a listing of a shard's sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListingProgress {
    /// Next slot to list, relative to the first slot of the shard (event loop).
    pub(crate) slot: u32,
    /// Number of connections already listed that have no slot, such as those in TIME-WAIT.
    pub(crate) without_slot: usize,
    /// Whether all sockets were listed.
    pub(crate) is_done: bool,
}

/// A query of any type, to be run on one shard (event loop).
pub(crate) trait ShardQuery: Send {
    /// Runs the query, and returns the shard's answer or a portion of it.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> ShardAnswer;
}

/// Answer of a shard (event loop) to a query, or a portion of it, and the closure that sends it to
/// the querying thread.
pub(crate) struct ShardAnswer {
    /// Whether this is the last portion of the answer. Otherwise the query must run again in the
    /// next iteration of the event loop.
    pub is_last: bool,
    deliver: Box<dyn FnOnce() + Send>,
}

impl ShardAnswer {
    fn new<T: Send + 'static>(is_last: bool, answer: T, to: &Sender<T>) -> Self {
        let to = to.clone();
        // Ignore an error, because the thread that sent the query may have ended.
        Self { is_last, deliver: Box::new(move || drop(to.send(answer))) }
    }

    /// Sends the answer to the thread that sent the query.
    pub fn deliver(self) {
        (self.deliver)();
    }
}

impl fmt::Debug for ShardAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardAnswer").field("is_last", &self.is_last).finish_non_exhaustive()
    }
}

impl fmt::Debug for dyn ShardQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardQuery")
    }
}

/// A job that the registry (process manager) gives to a shard.
#[derive(Debug)]
pub(crate) enum ShardJob {
    /// Runs a query for another thread.
    Ask(Box<dyn ShardQuery>),
    /// Does nothing. The report about this job shows the registry (process manager) that all
    /// earlier commands were executed.
    Settle,
}

/// A query for one shard (event loop), with the channel for its answer.
pub(crate) struct PendingQuery<Q: Query> {
    query: Q,
    to: Sender<Portion<Q::Part>>,
}

impl<Q: Query> PendingQuery<Q> {
    pub fn new(query: Q, to: Sender<Portion<Q::Part>>) -> Self {
        Self { query, to }
    }
}

impl<Q: Query> ShardQuery for PendingQuery<Q> {
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> ShardAnswer {
        let portion = self.query.ask(shard);
        ShardAnswer::new(matches!(portion, Portion::Last(_)), portion, &self.to)
    }
}

/// A closure to be run on the first shard, with the channel for its result.
pub(crate) struct PendingWork<F, T> {
    work: Option<F>,
    to: Sender<T>,
}

impl<F, T> PendingWork<F, T> {
    pub fn new(work: F, to: Sender<T>) -> Self {
        Self { work: Some(work), to }
    }
}

impl<F, T> ShardQuery for PendingWork<F, T>
where
    F: FnOnce(&mut dyn QueryTarget) -> T + Send,
    T: Send + 'static,
{
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> ShardAnswer {
        let work = self.work.take().expect("work is done once");
        ShardAnswer::new(true, work(shard), &self.to)
    }
}
