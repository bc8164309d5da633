//! Event sources that wake a shard's thread.

use std::io;

use rustix::event::epoll::EventFlags;
use towpath_pool::Port;

use crate::ids::ChannelId;
use crate::poller;
use crate::poller::Poller;

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
    /// The port with this index has packets, or has room again.
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

/// Events of a port for which the shard waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortWatch {
    /// Received packets.
    Packets,
    /// Received packets, and room for packets that the port refused.
    Room,
    /// No events. The port has no descriptor, and reports itself when its next turn is due.
    NoDescriptor,
    /// No events, because the device was removed. Its descriptor would be ready forever.
    Gone,
}

/// Waits for received packets of new ports.
pub(crate) fn watch_new(
    poller: &mut Poller<ShardSource>,
    ports: &[Box<dyn Port + Send>],
    watched: &mut Vec<PortWatch>,
) -> io::Result<()> {
    for (place, port) in (0..).zip(ports) {
        let fd = port.wake_fd();
        watched.push(if fd.is_some() { PortWatch::Packets } else { PortWatch::NoDescriptor });
        if let Some(fd) = fd {
            poller.add(fd, ShardSource::Port(place))?;
        }
    }
    Ok(())
}

/// Waits for room in ports that refuse packets, and removes ports whose device was removed. Calls
/// `on_gone` once with the index of each such port.
pub(crate) fn watch(
    poller: &mut Poller<ShardSource>,
    ports: &[Box<dyn Port + Send>],
    watched: &mut [PortWatch],
    mut on_gone: impl FnMut(u32),
) -> io::Result<()> {
    for (place, (port, watch)) in (0..).zip(ports.iter().zip(watched)) {
        let wanted = match () {
            () if *watch == PortWatch::Gone || port.is_gone() => PortWatch::Gone,
            () if *watch == PortWatch::NoDescriptor => PortWatch::NoDescriptor,
            () if port.blocked() => PortWatch::Room,
            () => PortWatch::Packets,
        };
        let before = std::mem::replace(watch, wanted);
        if wanted == before {
            continue;
        }
        let fd = port.wake_fd().filter(|_| before != PortWatch::NoDescriptor);
        let source = ShardSource::Port(place);
        match (wanted, fd) {
            (PortWatch::Packets, Some(fd)) => poller.change(fd, source, EventFlags::IN)?,
            (PortWatch::Room, Some(fd)) => {
                poller.change(fd, source, EventFlags::IN | EventFlags::OUT)?;
            }
            (PortWatch::Gone, Some(fd)) => poller.remove(fd),
            _ => {}
        }
        if wanted == PortWatch::Gone {
            on_gone(place);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use rustix::fd::BorrowedFd;
    use towpath_pool::{Batch, LinkType, Offloads, Pool};

    use super::*;

    /// Model of the descriptor of a deleted device, which is readable forever.
    struct Deleted {
        fd: OwnedFd,
        known: Arc<AtomicBool>,
    }

    impl Port for Deleted {
        fn poll(&mut self, _: u64, _: &mut Pool, _: &mut Batch, _: usize) -> usize {
            0
        }
        fn submit(&mut self, _: u64, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn offloads(&self) -> Offloads {
            Offloads::default()
        }
        fn link_type(&self) -> LinkType {
            LinkType::Ip
        }
        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.fd.as_fd())
        }
        fn is_gone(&self) -> bool {
            self.known.load(Relaxed)
        }
    }

    #[test]
    fn reports_a_removed_device_once_and_is_not_woken_by_it() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(write);
        let known = Arc::new(AtomicBool::new(false));
        let ports: [Box<dyn Port + Send>; 1] =
            [Box::new(Deleted { fd: read, known: known.clone() })];
        let (mut poller, mut watched) = (Poller::new().unwrap(), Vec::new());
        let mut gone = Vec::new();
        watch_new(&mut poller, &ports, &mut watched).unwrap();
        let mut look = |poller: &mut Poller<ShardSource>| {
            let mut woken = Vec::new();
            watch(poller, &ports, &mut watched, |place| gone.push(place)).unwrap();
            poller.wait(Some(Duration::ZERO), &mut woken).unwrap();
            woken
        };
        assert_eq!(look(&mut poller), [ShardSource::Port(0)]);
        known.store(true, Relaxed);
        assert_eq!(look(&mut poller), []);
        assert_eq!(look(&mut poller), []);
        assert_eq!(gone, [0]);
    }
}
