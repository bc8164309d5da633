//! Event sources that wake a shard's thread.

use rustix::event::epoll::EventFlags;

use crate::ids::ChannelId;
use crate::poller;

/// Event source that wakes a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardSource {
    /// A program has sent a notification, because it wrote commands.
    Doorbell,
    /// The registry, which runs on the same thread, has work.
    Registry,
    /// The shard with this number, which runs on the same thread, has work.
    Shard(u8),
    /// The registry, which runs on another thread, has sent messages.
    Mail,
    /// The port of the interface with this index has packets, or has room again.
    Port(u32),
    /// A process has ended, so its control socket hung up.
    Gone(ChannelId),
}

const KIND: u64 = 1 << 32;

impl poller::PollSource for ShardSource {
    fn token(self) -> u64 {
        match self {
            Self::Doorbell => KIND,
            Self::Registry => 2 * KIND,
            Self::Port(place) => 3 * KIND + u64::from(place),
            Self::Mail => 4 * KIND,
            Self::Shard(number) => 5 * KIND + u64::from(number),
            Self::Gone(id) => 6 * KIND + u64::from(id.0),
        }
    }

    fn of(token: u64) -> Self {
        match token / KIND {
            1 => Self::Doorbell,
            2 => Self::Registry,
            3 => Self::Port(token as u32),
            4 => Self::Mail,
            5 => Self::Shard(token as u8),
            _ => Self::Gone(ChannelId(token as u32)),
        }
    }

    /// Level-triggered, so that an event that was not handled is reported again. Notifications are
    /// edge-triggered, because they are never read.
    fn wanted(self) -> EventFlags {
        match self {
            Self::Doorbell | Self::Mail => EventFlags::IN | EventFlags::ET,
            Self::Registry | Self::Shard(_) | Self::Port(_) => EventFlags::IN,
            // Wait only for EPOLLHUP, because the registry reads the messages on the control
            // socket.
            Self::Gone(_) => EventFlags::empty(),
        }
    }
}
