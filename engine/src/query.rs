//! Queries of other threads to a running engine.
//!
//! ```text
//!   asking thread          registry                shards
//!   Remote::query ──────► ShardCommand::Query ──► Query::ask, in a round
//!   Query::join   ◄────── part by part       ◄── ShardReport::Answered
//! ```
//!
//! To add a query, implement [`Query`] for a type anywhere in the workspace; the engine needs no
//! change. The registry delivers the parts in order with the shards' reports. So a thread that has
//! received all parts also sees the effects of earlier reports.

use std::sync::mpsc::Sender;
use std::{fmt, io};

use towpath_pool::Port;
use towpath_stack::IfaceId;
use towpath_stack::net::Net;
use towpath_tcp::Instant;

use crate::config::ResolverConfig;
use crate::report::{Counters, SocketEntry};

/// A query to all shards, each of which returns a part of the answer.
///
/// Before a shard handles the query, it executes earlier commands of programs and turns its stack.
/// No shard waits for another.
pub trait Query: Clone + Send + 'static {
    /// Partial answer of one shard.
    type Part: Send + 'static;
    /// Combined answer of all shards.
    type Answer;

    /// Returns the shard's part, or a portion of it, so that a long list does not delay packets.
    /// Each shard has its own clone of the query.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Portion<Self::Part>;

    /// Joins the parts of all shards, on the asking thread. Parts are in the order of arrival.
    fn join(parts: Vec<Self::Part>) -> Self::Answer;
}

/// Reply of a shard to a call of [`Query::ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion<T> {
    /// The part, or the last portion of it.
    Last(T),
    /// A portion of the part. More follows, so the shard runs the query again in its next turn.
    More(T),
}

/// The shard on which a [`Query`] runs.
pub trait QueryTarget {
    /// Number of the shard; 0 has the control part of the net.
    fn number(&self) -> u32;
    /// Returns the time of the turn, on the engine's clock.
    fn now(&self) -> Instant;
    /// Returns the network layer of the shard's stack.
    fn net(&mut self) -> &mut Net;
    /// Adds the port of an interface that was added at run time.
    ///
    /// # Errors
    /// Fails if the poller cannot wait for the port. The port is dropped.
    fn attach(&mut self, iface: IfaceId, port: Box<dyn Port + Send>) -> io::Result<()>;
    /// Removes the port of a removed interface, and drops the packets that are queued for it.
    fn detach(&mut self, iface: IfaceId) -> Option<Box<dyn Port + Send>>;
    /// Sets the nameserver that programs find in /etc/resolv.conf.
    fn set_resolver(&mut self, resolver: Option<ResolverConfig>);
    /// Returns the counters of all layers of the shard.
    fn counters(&self) -> Counters;
    /// Returns the number of bytes and packets that no peer or port has taken yet.
    fn unsent(&self) -> u64;
    /// Lists sockets from `progress` on, as many as fit in one turn.
    fn list_sockets(&mut self, progress: &mut ListingProgress) -> Vec<SocketEntry>;
}

/// Position in a listing of the sockets of a shard.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListingProgress {
    /// Next slot to list, relative to the shard's first slot.
    pub(crate) slot: u32,
    /// Number of listed connections without a slot.
    pub(crate) without_slot: usize,
    /// Whether all sockets are listed.
    pub(crate) is_done: bool,
}

/// A query for one shard.
pub(crate) trait ShardQuery: Send {
    /// Runs the query, and returns the shard's part or a portion of it.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> ShardAnswer;
}

/// A part, or a portion of it, to be sent to the requesting thread.
pub(crate) struct ShardAnswer {
    /// Whether this is the last portion. Otherwise the query has to run again in the next turn.
    pub is_last: bool,
    deliver: Box<dyn FnOnce() + Send>,
}

impl ShardAnswer {
    fn new<T: Send + 'static>(is_last: bool, answer: T, to: &Sender<T>) -> Self {
        let to = to.clone();
        // The requesting thread may have ended, so errors are ignored.
        Self { is_last, deliver: Box::new(move || drop(to.send(answer))) }
    }

    /// Sends the reply to the requesting thread.
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

/// Work that the registry requests of a shard.
#[derive(Debug)]
pub(crate) enum ShardJob {
    /// A query of another thread.
    Ask(Box<dyn ShardQuery>),
    /// Nothing to do: the reply shows that all earlier commands were executed.
    Settle,
}

/// A copy of a query for one shard.
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

/// A closure to run on the first shard.
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
