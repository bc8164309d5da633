//! Answers to requests, and the descriptors that go with them.

use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::Channel;
use towpath_shm::control::ControlReply;

use crate::errno::Errno;

/// An answer and the descriptors that go with it.
pub(crate) type Answer = Result<(ControlReply, Vec<Passed>), Errno>;

/// A descriptor that goes with an answer.
#[derive(Debug)]
pub(crate) enum Passed {
    /// The region's.
    Region,
    /// The status page's.
    Status,
    /// The descriptor whose duplicates are the sockets' descriptors.
    Blank,
    /// The pipe that outlives nobody who could end the run.
    Lifeline,
    /// Descriptor of a channel's memory.
    Memory(Channel),
    /// Bell that a process rings; the shard has it, too.
    Shared(Arc<Fd>),
    /// For the program alone.
    Own(Fd),
}
