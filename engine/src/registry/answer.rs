//! Replies to requests, and the descriptors sent with them.

use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::Channel;
use towpath_shm::control::ControlReply;

use crate::errno::Errno;

/// A reply and the descriptors sent with it.
pub(crate) type Answer = Result<(ControlReply, Vec<Passed>), Errno>;

/// A descriptor sent with a reply.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Descriptor of the region.
    Region,
    /// Descriptor of the status pages.
    Status,
    /// Blank token, of which the sockets' descriptors are duplicates.
    Blank,
    /// Read end of the parent-death pipe. Its write ends are open only in processes that can end
    /// the run.
    Lifeline,
    /// Descriptor of a channel's memory.
    Memory(Channel),
    /// Notification that a process sends, shared with the shard.
    Shared(Arc<Fd>),
    /// Descriptor that only the program keeps.
    Own(Fd),
}
