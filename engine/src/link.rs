//! What a process image and a shard tell each other by.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_ring::{Channel, EngineChannel, doorbell};

/// The shard's ends.
#[derive(Debug)]
pub(crate) struct Link {
    pub ring: EngineChannel,
    /// Our end of the bell that is rung when the process sleeps and has events.
    pub doorbell: Arc<OwnedFd>,
    /// What the process rings, in the shard's poller.
    pub engine_bell: Arc<OwnedFd>,
}

/// What the process is given of it.
#[derive(Debug)]
pub(crate) struct Given {
    pub channel: Channel,
    pub engine_bell: Arc<OwnedFd>,
    /// Its end of the bell that we ring.
    pub doorbell: OwnedFd,
}

impl Link {
    /// Fresh memory with empty rings and fresh bells, for a new process image. `lost`: the program shall look at
    /// everything first.
    pub fn new(lost: bool) -> io::Result<(Self, Given)> {
        let channel = Channel::create()?;
        if lost {
            channel.header().events_lost.store(1, std::sync::atomic::Ordering::Relaxed);
        }
        let (ours, theirs) = doorbell::pair()?;
        let engine_bell = Arc::new(doorbell::create()?);
        let ring = EngineChannel::new(channel.clone());
        let given = Given { channel, engine_bell: Arc::clone(&engine_bell), doorbell: theirs };
        Ok((Self { ring, doorbell: Arc::new(ours), engine_bell }, given))
    }

    /// What may have to be closed where that holds up nobody.
    pub fn into_bells(self) -> [Arc<OwnedFd>; 2] {
        [self.doorbell, self.engine_bell]
    }
}
