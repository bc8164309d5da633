//! Queries of other threads to a running engine.
//!
//! ```text
//!   asking thread          registry                shards
//!   Remote::query ──────► ShardCommand::Query ──► Query::ask, in a round
//!   Query::join   ◄────── part by part       ◄── ShardReport::Answered
//! ```
//!
//! To add a query, implement [`Query`] for a type anywhere in the workspace; the engine needs no
//! change. The registry delivers the parts. So a thread with all parts sees the registry's state
//! after earlier reports of the shards.

use std::fmt;
use std::sync::mpsc::Sender;

use towpath_stack::net::Net;
use towpath_tcp::Instant;

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

    /// Returns the shard's part. `None` continues in the next turn of the shard, so that a long
    /// list does not delay packets. Each shard has its own clone of the query.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Option<Self::Part>;

    /// Joins the parts of all shards, on the asking thread. Parts are in the order of arrival.
    fn join(parts: Vec<Self::Part>) -> Self::Answer;
}

/// The shard on which a [`Query`] runs.
pub trait QueryTarget {
    /// Number of the shard; 0 has the control part of the net.
    fn number(&self) -> u32;
    /// Returns the time of the turn, on the engine's clock.
    fn now(&self) -> Instant;
    /// Returns the network layer of the shard's stack.
    fn net(&mut self) -> &mut Net;
    /// Returns the counters of all layers of the shard.
    fn counters(&self) -> Counters;
    /// Returns the number of bytes and packets that no peer or port has taken yet.
    fn unsent(&self) -> u64;
    /// Appends sockets, starting at `progress`, as many as one turn has time for.
    fn list_sockets(&mut self, progress: &mut ListingProgress, to: &mut Vec<SocketEntry>);
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

/// A query for one shard, which carries back the shard's part of the answer.
pub(crate) trait ShardQuery: Send {
    /// Runs the query. Returns false if it has to continue in the next turn.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> bool;
    /// Sends the result to the requesting thread, which may have ended.
    fn deliver(self: Box<Self>);
}

impl fmt::Debug for dyn ShardQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardQuery")
    }
}

/// A job that the registry sends to a shard, which returns it when done.
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
    part: Option<Q::Part>,
    to: Sender<Q::Part>,
}

impl<Q: Query> PendingQuery<Q> {
    pub fn new(query: Q, to: Sender<Q::Part>) -> Self {
        Self { query, part: None, to }
    }
}

impl<Q: Query> ShardQuery for PendingQuery<Q> {
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> bool {
        self.part = self.query.ask(shard);
        self.part.is_some()
    }

    fn deliver(self: Box<Self>) {
        self.part.map(|part| self.to.send(part));
    }
}

/// A closure to run on the first shard.
pub(crate) struct PendingWork<F, T> {
    work: Option<F>,
    result: Option<T>,
    to: Sender<T>,
}

impl<F, T> PendingWork<F, T> {
    pub fn new(work: F, to: Sender<T>) -> Self {
        Self { work: Some(work), result: None, to }
    }
}

impl<F, T> ShardQuery for PendingWork<F, T>
where
    F: FnOnce(&mut dyn QueryTarget) -> T + Send,
    T: Send,
{
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> bool {
        self.result = self.work.take().map(|work| work(shard));
        true
    }

    fn deliver(self: Box<Self>) {
        self.result.map(|result| self.to.send(result));
    }
}
