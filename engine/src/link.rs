//! Connection between a process image and the shards.

use std::io;
use std::sync::Arc;
use towpath_shm::Fd;

use towpath_ring::{Channel, EngineChannel, notification};

/// A shard's ends.
#[derive(Debug)]
pub(crate) struct ChannelLink {
    pub ring: EngineChannel,
    /// Our end of the bell that is rung when the process sleeps and has events. All shards ring it.
    pub doorbell: Arc<Fd>,
    /// Bell that the process rings, in the shard's poller.
    pub engine_bell: Arc<Fd>,
}

/// Descriptors and memory that the process is given by all shards.
#[derive(Debug)]
pub(crate) struct Given {
    /// A channel of the process; its memory has all of them.
    pub channel: Channel,
    /// Bells of the shards, one each.
    pub engine_bells: Vec<Arc<Fd>>,
    /// Its end of the bell that we ring.
    pub doorbell: Fd,
}

impl ChannelLink {
    /// Fresh memory with empty rings and fresh bells, for a new process image: one for each shard.
    /// `lost`: the program shall look at everything first.
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

    /// Descriptors whose last close may sleep, so that it happens where no one waits.
    pub fn into_notifiers(self) -> [Arc<Fd>; 2] {
        [self.doorbell, self.engine_bell]
    }
}
