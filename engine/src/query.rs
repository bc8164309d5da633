//! Questions of other threads to a running engine.
//!
//! ```text
//!   asking thread          registry                shards
//!   Remote::query ──────► ShardCommand::Query ──► Query::ask, in a round
//!   Query::join   ◄────── part by part       ◄── ShardReport::Answered
//! ```
//!
//! A new question is a type with its [`Query`], anywhere in the workspace: the threads between pass
//! it on without knowing it. The registry delivers the parts, so that a thread that has all of them
//! finds the registry's state after all earlier reports of the shards.

use std::fmt;
use std::sync::mpsc::Sender;

use towpath_stack::net::Net;
use towpath_tcp::Instant;

use crate::report::{Counters, SocketEntry};

/// A question to all shards, each of which gives a part of the answer.
///
/// Every shard first executes the commands that programs gave before the question came, and turns
/// its stack. No shard waits for another.
pub trait Query: Clone + Send + 'static {
    /// Answer of one shard.
    type Part: Send + 'static;
    /// Answer of all shards.
    type Answer;

    /// Returns the shard's part. `None` continues in the next turn of the shard, so that a long
    /// list does not delay packets. Each shard has its own clone of the query.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> Option<Self::Part>;

    /// Joins the parts of all shards, on the asking thread. Parts are in the order of arrival.
    fn join(parts: Vec<Self::Part>) -> Self::Answer;
}

/// The shard that a [`Query`] asks.
pub trait QueryTarget {
    /// Number of the shard; 0 has the control part of the net.
    fn number(&self) -> u32;
    /// Time of the turn, on the engine's clock.
    fn now(&self) -> Instant;
    /// The net of the shard's stack.
    fn net(&mut self) -> &mut Net;
    /// Counters of all layers of the shard.
    fn counters(&self) -> Counters;
    /// Bytes and packets that no peer or port has taken yet.
    fn unsent(&self) -> u64;
    /// Appends sockets from `progress` on, as many as one turn has time for.
    fn list_sockets(&mut self, progress: &mut ListingProgress, to: &mut Vec<SocketEntry>);
}

/// Position in a listing of the sockets of a shard.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListingProgress {
    /// First slot that was not listed, counted from the first slot of the shard.
    pub(crate) slot: u32,
    /// Connections without a slot that were listed.
    pub(crate) without_slot: usize,
    /// No socket is left.
    pub(crate) is_done: bool,
}

/// A query on its way to a shard, and back with the shard's part.
pub(crate) trait ShardQuery: Send {
    /// Asks the shard. False: the query is to be asked again in the next turn.
    fn ask(&mut self, shard: &mut dyn QueryTarget) -> bool;
    /// Gives the part to the asking thread, which may be gone.
    fn deliver(self: Box<Self>);
}

impl fmt::Debug for dyn ShardQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardQuery")
    }
}

/// Work that the registry sends to a shard, and gets back when it is done.
#[derive(Debug)]
pub(crate) enum ShardJob {
    /// A question of another thread.
    Ask(Box<dyn ShardQuery>),
    /// No question: the shard has executed all earlier commands.
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

/// Work for the first shard.
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
