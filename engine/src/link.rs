//! Rings and notifications between a process image and the shards.

use std::io;
use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::{Channel, EngineChannel, notification};

/// The shard's side of a process's channel.
#[derive(Debug)]
pub(crate) struct ChannelLink {
    pub ring: EngineChannel,
    /// Our end of the notification to the process, shared by all shards. A shard sends it when the
    /// process sleeps and has events.
    pub doorbell: Arc<Fd>,
    /// Notification from the process, in the shard's poller.
    pub engine_bell: Arc<Fd>,
}

/// Descriptors and memory that the process receives, for all shards.
#[derive(Debug)]
pub(crate) struct Given {
    /// A channel of the process. Its memory contains those of all shards.
    pub channel: Channel,
    /// Notifications to the shards, one each.
    pub engine_bells: Vec<Arc<Fd>>,
    /// The process's end of its notification.
    pub doorbell: Fd,
}

impl ChannelLink {
    /// Allocates rings and notifications for a new process image, one link per shard. With `lost`,
    /// the program first checks all its sockets.
    pub fn new(lost: bool, shards: u32) -> io::Result<(Vec<Self>, Given)> {
        let channels = Channel::create_all(shards)?;
        let (ours, theirs) = notification::pair()?;
        let ours = Arc::new(ours);
        let bell = || notification::create().map(Arc::new);
        let bells = channels.iter().map(|_| bell()).collect::<io::Result<Vec<_>>>()?;
        let given =
            Given { channel: channels[0].clone(), engine_bells: bells.clone(), doorbell: theirs };
        let link = |(channel, engine_bell): (Channel, _)| {
            if lost {
                channel.header().events_lost.store(1, std::sync::atomic::Ordering::Relaxed);
            }
            Self { ring: EngineChannel::new(channel), doorbell: Arc::clone(&ours), engine_bell }
        };
        Ok((channels.into_iter().zip(bells).map(link).collect(), given))
    }

    /// Returns the notifications, because their last close may block and must happen on another
    /// thread.
    pub fn into_notifiers(self) -> [Arc<Fd>; 2] {
        [self.doorbell, self.engine_bell]
    }
}
