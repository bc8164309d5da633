//! Event sources that wake the thread of a shard.

use rustix::event::epoll::EventFlags;

use crate::ids::ChannelId;
use crate::poller;

/// An event source that wakes the thread of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardSource {
    /// The eventfd by which programs notify this shard (event loop) that they have written
    /// commands.
    Doorbell,
    /// The poller of the registry (process manager), if it runs on this thread: the registry has
    /// work.
    Registry,
    /// The poller of the shard with this number, if it runs on this thread: the shard has work.
    Shard(u8),
    /// The mailbox to which the registry (process manager) sends messages, if it runs on another
    /// thread.
    Mail,
    /// The port of the interface with this index: it has received packets, or has space in its
    /// transmit queue.
    Port(u32),
    /// The control socket of a process, which hangs up when the process has ended.
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

    /// Most sources are level-triggered, so that an unhandled event is reported again. Eventfds for
    /// notifications are edge-triggered, because they are never read.
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
