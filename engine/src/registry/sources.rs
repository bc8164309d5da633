//! Event sources that wake the thread of the registry.

use rustix::event::epoll::EventFlags;

use crate::ids::ChannelId;
use crate::poller;

/// An event source that wakes the registry's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegistrySource {
    /// The control socket of a process: it has sent a request, or has ended.
    Control(ChannelId),
    /// The notification descriptor of [`crate::Remote`]: another thread has sent a request.
    Remote,
    /// The notification descriptor of the shards: a shard has sent reports.
    Shards,
}

const KIND: u64 = 1 << 32;

impl poller::PollSource for RegistrySource {
    fn token(self) -> u64 {
        match self {
            Self::Remote => KIND,
            Self::Shards => 2 * KIND,
            Self::Control(id) => 3 * KIND + u64::from(id.0),
        }
    }

    fn of(token: u64) -> Self {
        match token / KIND {
            1 => Self::Remote,
            2 => Self::Shards,
            _ => Self::Control(ChannelId(token as u32)),
        }
    }

    /// Most sources are level-triggered, so that an unhandled event is reported again. The shards'
    /// eventfd is edge-triggered, because it is never read.
    fn wanted(self) -> EventFlags {
        match self {
            Self::Shards => EventFlags::IN | EventFlags::ET,
            Self::Control(_) | Self::Remote => EventFlags::IN,
        }
    }
}
