//! The one place where the engine sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use towpath_pool::Port;

use crate::ids::ChannelId;

/// What woke us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A program rang.
    Doorbell,
    /// A [`crate::Remote`] did.
    Remote,
    /// A port has packets, or room again.
    Port,
    /// A process asks something.
    Control(ChannelId),
    /// A process is gone.
    Gone(ChannelId),
}

/// An epoll instance with everything the engine waits for. Level-triggered, so that what is not dealt
/// with comes again, but for the programs' bells: those are never read, and each ring comes once.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// Descriptors in it.
    watched: usize,
    /// How each port is watched.
    ports: Vec<Watch>,
}

/// What of a port is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Packets.
    Packets,
    /// Packets, and room for those that it refused.
    Room,
    /// Nothing: its device has gone, or it has no descriptor.
    Nothing,
}

const KIND: u64 = 1 << 32;

impl Source {
    fn token(self) -> EventData {
        EventData::new_u64(match self {
            Self::Doorbell => KIND,
            Self::Remote => 2 * KIND,
            Self::Port => 3 * KIND,
            Self::Control(id) | Self::Gone(id) => 4 * KIND + u64::from(id.0),
        })
    }

    fn of(event: &epoll::Event) -> Self {
        // A packed struct: copies, not references.
        let (token, flags) = (event.data.u64(), event.flags);
        match token / KIND {
            1 => Self::Doorbell,
            2 => Self::Remote,
            3 => Self::Port,
            _ if flags.contains(EventFlags::HUP) => Self::Gone(ChannelId(token as u32)),
            _ => Self::Control(ChannelId(token as u32)),
        }
    }
}

/// The epoll set: readable when something that is waited for is.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Poller {
    pub fn new(ports: &[Box<dyn Port>]) -> io::Result<Self> {
        let mut poller = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::new(),
            watched: 0,
            ports: Vec::new(),
        };
        for port in ports {
            let fd = port.wake_fd();
            poller.ports.push(if fd.is_some() { Watch::Packets } else { Watch::Nothing });
            if let Some(fd) = fd {
                poller.add(fd, Source::Port)?;
            }
        }
        Ok(poller)
    }

    pub fn add(&mut self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let how = match source {
            Source::Doorbell => EventFlags::IN | EventFlags::ET,
            _ => EventFlags::IN,
        };
        epoll::add(&self.epoll, fd, source.token(), how)?;
        self.watched += 1;
        Ok(())
    }

    /// A descriptor that is about to be closed; needed because processes share its file.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) {
        let removed = epoll::delete(&self.epoll, fd);
        debug_assert!(removed.is_ok());
        self.watched -= 1;
    }

    /// Watches ports for room as long as they refuse packets, and for nothing when their device has gone: it
    /// would be reported for ever.
    pub fn watch_ports(&mut self, ports: &[Box<dyn Port>]) -> io::Result<()> {
        for (port, watch) in ports.iter().zip(&mut self.ports) {
            let wanted = match () {
                () if *watch == Watch::Nothing || port.is_gone() => Watch::Nothing,
                () if port.blocked() => Watch::Room,
                () => Watch::Packets,
            };
            if wanted == *watch {
                continue;
            }
            let Some(fd) = port.wake_fd() else { continue };
            *watch = wanted;
            let flags = match wanted {
                Watch::Packets => EventFlags::IN,
                Watch::Room => EventFlags::IN | EventFlags::OUT,
                Watch::Nothing => {
                    epoll::delete(&self.epoll, fd)?;
                    self.watched -= 1;
                    continue;
                }
            };
            epoll::modify(&self.epoll, fd, Source::Port.token(), flags)?;
        }
        Ok(())
    }

    /// Sleeps for at most `timeout` (None: for ever). Zero: only looks. Gives everything that there is: the end of a
    /// process must not come with a later look than a request that was made after that end.
    pub fn wait(&mut self, timeout: Option<Duration>, woken: &mut Vec<Source>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        self.events.clear();
        self.events.reserve(self.watched.max(1));
        woken.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            timeout.as_ref(),
        ) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        woken.extend(self.events.iter().map(Source::of));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::{AsFd, OwnedFd};
    use std::rc::Rc;

    use towpath_pool::{Batch, LinkType, Offloads, Pool};

    use super::*;

    /// What a deleted device leaves: a file that has something for ever.
    struct Deleted {
        fd: OwnedFd,
        known: Rc<Cell<bool>>,
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
            self.known.get()
        }
    }

    #[test]
    fn a_device_that_has_gone_does_not_wake_the_engine_for_ever() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(write);
        let known = Rc::new(Cell::new(false));
        let ports: [Box<dyn Port>; 1] = [Box::new(Deleted { fd: read, known: known.clone() })];
        let mut poller = Poller::new(&ports).unwrap();
        let look = |poller: &mut Poller| {
            let mut woken = Vec::new();
            poller.watch_ports(&ports).unwrap();
            poller.wait(Some(Duration::ZERO), &mut woken).unwrap();
            woken
        };
        assert_eq!(look(&mut poller), [Source::Port]);
        known.set(true);
        assert_eq!(look(&mut poller), []);
        assert_eq!(look(&mut poller), []);
    }
}
