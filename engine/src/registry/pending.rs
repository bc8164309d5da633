//! Requests of processes that have not been answered yet.

use towpath_shm::Fd;
use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::link::Given;

/// State of a process's request that has not been answered yet.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Waits until the shards have handled all earlier work.
    Settling(Box<Request>),
    /// Waits for free descriptors.
    Room(DescriptorRequest),
    /// A part of a HELLO that is not the last. The shards have the list of sockets.
    List,
    /// HELLO, sent to the shards. Contains the descriptors for the new process image.
    Hello(Given),
    /// A CLONE request that was sent to the shards. Contains the descriptors for the new process.
    Clone { control: Fd, given: Given, clone: ChannelId },
    /// A CLONE request that will be rejected. The shards discard the list of sockets that was sent
    /// for it.
    NoClone,
    /// A TOKENS request: the process wants kernel descriptors with the names of these sockets,
    /// which are given by slot and generation.
    Tokens(Vec<(u32, u32)>),
}

/// Results of the shards for the pending request of a process.
#[derive(Debug, Default)]
pub(crate) struct WantOutcome {
    /// Number of shards that have not answered the request yet.
    pub due: usize,
    /// Error of a shard (event loop) that has rejected the request.
    pub refused: Option<Errno>,
    /// Bit set: which of the sockets in [`Pending::Tokens`] the process has.
    pub held: u64,
}

/// Processes whose requests wait until descriptor numbers are free.
#[derive(Debug, Default)]
pub(crate) struct DescriptorWaits {
    /// Channels whose requests wait, each with the time at which the wait ends. Channel IDs may
    /// have been reused: see [`DescriptorRequest::until`].
    pub channels: Vec<(Instant, ChannelId)>,
    pub look_at: Option<Instant>,
}

/// A request that cannot be answered until descriptors are free.
#[derive(Debug)]
pub(crate) struct DescriptorRequest {
    pub request: Box<Request>,
    pub until: Instant,
}

impl DescriptorWaits {
    /// Returns the time of the next check for free descriptors. `None`: no request waits.
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }
}
