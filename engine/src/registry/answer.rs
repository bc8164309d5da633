//! What a request is answered with.

use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::Channel;
use towpath_shm::control::Reply;

use crate::errno::Errno;

/// An answer and the descriptors that go with it.
pub(crate) type Answer = Result<(Reply, Vec<Passed>), Errno>;

/// A descriptor that goes with an answer.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The region's.
    Region,
    /// The status page's.
    Status,
    /// What sockets' descriptors are duplicates of.
    Blank,
    /// The pipe that outlives nobody who could end the run.
    Lifeline,
    /// That of a channel's memory.
    Memory(Channel),
    /// What a process rings; the shard has it, too.
    Shared(Arc<Fd>),
    /// For the program alone.
    Own(Fd),
}
