//! An epoll descriptor that is readable if one of the bridge's ports must be polled.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use towpath_pool::Port;
use towpath_shm::Fd;

/// Events of a port's descriptor that epoll reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Frames,
    /// Wait for received frames, and for room for frames that the port refused to send.
    Room,
    /// No events, because the port has no descriptor or was removed.
    Nothing,
}

/// Epoll instance with the descriptors of all ports of the bridge.
#[derive(Debug)]
pub(crate) struct Wakes {
    epoll: Fd,
    wanted: Vec<Wanted>,
}

/// Maximum number of ready ports returned per query. The next query returns further ones, because
/// the epoll descriptor stays readable.
const READY_MAX: usize = 32;

impl Wakes {
    pub fn new(ports: &[Box<dyn Port + Send>]) -> io::Result<Self> {
        let epoll = Fd::from(epoll::create(CreateFlags::CLOEXEC)?);
        let mut wanted = Vec::new();
        for (place, port) in (0..).zip(ports) {
            wanted.push(if port.wake_fd().is_some() { Wanted::Frames } else { Wanted::Nothing });
            if let Some(fd) = port.wake_fd() {
                epoll::add(&epoll, fd, EventData::new_u64(place), EventFlags::IN)?;
            }
        }
        Ok(Self { epoll, wanted })
    }

    /// Returns the epoll descriptor, which is readable if the descriptor of a port is.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Informs each port of the bridge whether its descriptor is ready.
    pub fn look(&self, ports: &mut [Box<dyn Port + Send>], ready: bool) {
        let mut space = [const { MaybeUninit::uninit() }; READY_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the query fails, act as if no port were ready; the query will be repeated at once.
        let found = match ready {
            true => epoll::wait(&self.epoll, &mut space, Some(&now)).map(|(events, _)| &*events),
            false => Ok(&[][..]),
        };
        let events = found.unwrap_or_default();
        for (place, port) in (0..).zip(ports) {
            port.looked(events.iter().any(|event| event.data.u64() == place));
        }
    }

    /// Updates the events for which epoll watches a port.
    pub fn follow(&mut self, place: usize, port: &(dyn Port + Send)) {
        let wanted = match () {
            () if self.wanted[place] == Wanted::Nothing || port.is_gone() => Wanted::Nothing,
            () if port.blocked() => Wanted::Room,
            () => Wanted::Frames,
        };
        let before = std::mem::replace(&mut self.wanted[place], wanted);
        let Some(fd) = port.wake_fd().filter(|_| before != wanted) else { return };
        let data = EventData::new_u64(place as u64);
        // The change fails if kernel memory is exhausted. The previous events then stay in effect.
        let changed = match wanted {
            Wanted::Frames => epoll::modify(&self.epoll, fd, data, EventFlags::IN),
            Wanted::Room => epoll::modify(&self.epoll, fd, data, EventFlags::IN | EventFlags::OUT),
            Wanted::Nothing => epoll::delete(&self.epoll, fd),
        };
        if changed.is_err() {
            self.wanted[place] = before;
        }
    }
}
