//! Requests of processes that have not been answered yet.

use towpath_shm::Fd;
use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::link::Given;

/// State of a request that has not been answered yet.
#[derive(Debug)]
pub(crate) enum Pending {
    /// The request waits until the shards have handled all earlier work.
    Settling(Box<Request>),
    /// The request waits for free descriptors.
    Room(DescriptorRequest),
    /// A part of a HELLO that has several parts.
    List,
    /// HELLO. Contains the descriptors for the new process image.
    Hello(Given),
    /// CLONE. Contains the descriptors for the new process.
    Clone { control: Fd, given: Given, clone: ChannelId },
    /// CLONE that is going to be refused.
    NoClone,
    /// TOKENS, for these sockets by slot and generation.
    Tokens(Vec<(u32, u32)>),
}

/// Results of the shards for a process's request.
#[derive(Debug, Default)]
pub(crate) struct WantOutcome {
    /// Number of shards that have not answered.
    pub due: usize,
    /// Error of a shard that refused.
    pub refused: Option<Errno>,
    /// Bit set of the sockets of [`Pending::Tokens`] that the process holds.
    pub held: u64,
}

/// Processes whose requests wait for free descriptors.
#[derive(Debug, Default)]
pub(crate) struct DescriptorWaits {
    /// Channels, each with the time at which its wait ends. Ids are reused: see
    /// [`DescriptorRequest::until`].
    pub channels: Vec<(Instant, ChannelId)>,
    pub look_at: Option<Instant>,
}

/// A request that waits for free descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorRequest {
    pub request: Box<Request>,
    pub until: Instant,
}

impl DescriptorWaits {
    /// Returns the time of the next check for free descriptors.
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }
}
