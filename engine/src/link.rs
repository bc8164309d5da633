//! Rings and notification descriptors between a process image and the shards.

use std::io;
use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::{Channel, EngineChannel, notification};

/// The shard's side of a process's channel: rings and notification descriptors.
#[derive(Debug)]
pub(crate) struct ChannelLink {
    pub ring: EngineChannel,
    /// The engine's end of the notification socket to the process, shared by all shards. A shard
    /// (event loop) writes to it if it has events for the process and the process sleeps.
    pub doorbell: Arc<Fd>,
    /// Descriptor with which the process notifies the shard, registered in the shard's poller.
    pub engine_bell: Arc<Fd>,
}

/// Descriptors and memory that the engine passes to a new process, for all shards.
#[derive(Debug)]
pub(crate) struct Given {
    /// A channel of the process. Its memory contains the channels to all shards.
    pub channel: Channel,
    /// Eventfds by which the process notifies the shards, one for each shard (event loop).
    pub engine_bells: Vec<Arc<Fd>>,
    /// The process's end of the socket on which the engine notifies it.
    pub doorbell: Fd,
}

impl ChannelLink {
    /// Creates rings and notification descriptors for a new program, one link per shard (event
    /// loop). If `lost` is true, the program will check all its sockets first, because earlier
    /// events were not sent to it.
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

    /// Returns the notification descriptors. Close them on another thread, because the last close
    /// may block.
    pub fn into_notifiers(self) -> [Arc<Fd>; 2] {
        [self.doorbell, self.engine_bell]
    }
}
