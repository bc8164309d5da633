//! Replies to requests on control sockets, and the descriptors sent with them.

use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::Channel;
use towpath_shm::control::ControlReply;

use crate::errno::Errno;

/// A reply to a process, with its descriptors, or an errno.
pub(crate) type Answer = Result<(ControlReply, Vec<Passed>), Errno>;

/// A descriptor that is sent with a reply.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Descriptor of the shared memory that contains sockets and their buffers.
    Region,
    /// Descriptor of the shared memory with the shards' status pages.
    Status,
    /// Kernel descriptor that contains no name of a socket. The descriptors of a program's sockets
    /// are duplicates of it.
    Blank,
    /// Read end of the parent-death pipe, see
    /// [`set_parent_death_pipe`](crate::Engine::set_parent_death_pipe).
    Lifeline,
    /// Descriptor of the shared memory of a process's channels.
    Memory(Channel),
    /// Eventfd by which a process notifies a shard (event loop). The shard keeps this descriptor.
    Shared(Arc<Fd>),
    /// Descriptor that is closed here after sending, so that only the program has it.
    Own(Fd),
}
