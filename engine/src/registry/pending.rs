//! Requests and queries that are not answered yet, of processes and of other threads.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use towpath_shm::Fd;

use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::link::Given;
use towpath_stack::net::{Refused, RuleSet, Traffic};

use crate::net::{Applied, NetState};
use crate::report::{Counters, Left, SocketEntry};

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) enum Pending {
    /// The request waits until the shards have done all earlier work.
    Settling(Box<Request>),
    /// The request waits for descriptors.
    Room(DescriptorRequest),
    /// A part of a HELLO.
    List,
    /// Descriptors for the new process image.
    Hello(Given),
    /// Descriptors for the new process.
    Clone { control: Fd, given: Given, clone: ChannelId },
    /// A CLONE that cannot be.
    NoClone,
    /// For which sockets, by (slot, generation).
    Tokens(Vec<(u32, u32)>),
}

/// Answers of the shards to a process's want.
#[derive(Debug, Default)]
pub(crate) struct WantOutcome {
    /// Shards that have said nothing yet.
    pub due: usize,
    /// Reason of a shard that has refused.
    pub refused: Option<Errno>,
    /// Sockets of [`Pending::Tokens`] that the process holds, one bit each.
    pub held: u64,
}

/// Processes whose requests wait for descriptors.
#[derive(Debug, Default)]
pub(crate) struct DescriptorWaits {
    /// With the time at which it is looked no longer whether there are some. Numbers of channels
    /// are used again: see [`DescriptorRequest::until`].
    pub channels: Vec<(Instant, ChannelId)>,
    pub look_at: Option<Instant>,
}

/// A request that waits for descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorRequest {
    pub request: Box<Request>,
    pub until: Instant,
}

impl DescriptorWaits {
    /// When it is looked again whether there are descriptors.
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }
}

/// Queries that are not answered yet, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    /// With the number of shards that have not said everything.
    pub asked: HashMap<u64, (usize, PendingQuery)>,
    /// How many there ever were.
    pub count: u64,
}

/// Answer collected so far, and its receiver. The thread that asked may have gone meanwhile: then
/// nobody receives the answer.
#[derive(Debug)]
pub(crate) enum PendingQuery {
    Sockets(Vec<SocketEntry>, Sender<Vec<SocketEntry>>),
    Counters(Counters, Sender<Counters>),
    Left(u64, Sender<Left>),
    /// The first shard's part, and what other shards carried.
    Net(Option<Box<NetState>>, Vec<Vec<Traffic>>, Sender<NetState>),
    /// The rules that the first shard knows.
    Rules(Option<Arc<RuleSet>>, Sender<Option<Arc<RuleSet>>>),
    /// Changes that the first shard makes.
    Apply(Applied, Option<Refused>, Sender<Result<Applied, Refused>>),
    /// Changes that the first shard has made, until all others know of them.
    Known(Applied, Sender<Result<Applied, Refused>>),
    /// A process, for which there was no room.
    Attach(Sender<io::Result<Fd>>),
    /// The end.
    Stop,
}
