//! Event sources that wake the registry.

use rustix::event::epoll::EventFlags;

use crate::ids::ChannelId;
use crate::poller;

/// Event source that wakes the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegistrySource {
    /// A process has sent a request, or has ended.
    Control(ChannelId),
    /// A [`crate::Remote`] has sent a request.
    Remote,
    /// A shard has sent reports.
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

    /// Level-triggered, so that unhandled events are reported again. The shards' notification is
    /// edge-triggered, because it is never cleared.
    fn wanted(self) -> EventFlags {
        match self {
            Self::Shards => EventFlags::IN | EventFlags::ET,
            Self::Control(_) | Self::Remote => EventFlags::IN,
        }
    }
}
