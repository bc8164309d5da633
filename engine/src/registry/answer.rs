//! Replies to requests on control sockets, and the descriptors sent with them.

use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::Channel;
use towpath_shm::control::ControlReply;

use crate::errno::Errno;

/// A reply and the descriptors sent with it.
pub(crate) type Answer = Result<(ControlReply, Vec<Passed>), Errno>;

/// A descriptor that is sent with a reply.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Descriptor of the shared memory that contains sockets and their buffers.
    Region,
    /// Descriptor of the shared memory with the shards' status pages.
    Status,
    /// Kernel descriptor without the name of a socket, of which the descriptors of sockets are
    /// duplicates.
    Blank,
    /// Read end of the parent-death pipe. Its write ends are open only in processes that can end
    /// the run.
    Lifeline,
    /// Descriptor of the shared memory of a process's channels.
    Memory(Channel),
    /// Descriptor with which a process notifies a shard. The shard has the same descriptor.
    Shared(Arc<Fd>),
    /// Descriptor that is closed here after it was sent, so that only the program has it.
    Own(Fd),
}
