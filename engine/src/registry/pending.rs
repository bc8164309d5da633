//! Requests of processes that are not answered yet.

use towpath_shm::Fd;
use towpath_shm::control::Request;
use towpath_tcp::Instant;

use crate::errno::Errno;
use crate::ids::ChannelId;
use crate::link::Given;

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
