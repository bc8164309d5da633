//! Descriptors that an epoll instance watches.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use towpath_shm::Fd;

/// Epoll instance of a port, whose descriptor wakes the stack.
#[derive(Debug, Clone)]
pub(crate) struct WatchList(Arc<Fd>);

/// Source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum WatchSource {
    /// A front end wants to connect.
    Listener,
    /// The front end has sent a message, or disconnected.
    FrontEnd,
    /// The driver has added entries to a virtqueue.
    Queue,
}

/// Sources that were ready.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadySources {
    pub(crate) listener: bool,
    pub(crate) front_end: bool,
}

/// Maximum number of descriptors in a list: the front end or the listener, and the virtqueues.
const WATCHED_MAX: usize = 4;

/// A descriptor that is watched until it is dropped.
///
/// Closing a descriptor does not end that if another process has a duplicate, as QEMU has of the
/// eventfds. Therefore the descriptor is removed explicitly.
#[derive(Debug)]
pub(crate) struct WatchedFd<T: AsFd> {
    list: WatchList,
    pub(crate) fd: T,
}

impl WatchList {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(epoll::create(CreateFlags::CLOEXEC)?.into())))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Watches a descriptor until the result is dropped.
    pub(crate) fn watch<T: AsFd>(&self, fd: T, source: WatchSource) -> io::Result<WatchedFd<T>> {
        self.add(&fd, source)?;
        Ok(WatchedFd { list: self.clone(), fd })
    }

    /// Watches a descriptor until [`Self::remove`].
    pub(crate) fn add(&self, fd: impl AsFd, source: WatchSource) -> io::Result<()> {
        // An eventfd is reported once for each notification, so that it need not be read.
        let edge = match source {
            WatchSource::Queue => EventFlags::ET,
            WatchSource::Listener | WatchSource::FrontEnd => EventFlags::empty(),
        };
        Ok(epoll::add(&*self.0, fd, EventData::new_u64(source as u64), EventFlags::IN | edge)?)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        // Ignore the error, which means that the descriptor is already removed.
        let _ = epoll::delete(&*self.0, fd);
    }

    /// Returns the ready sources, and resets those of virtqueues.
    pub(crate) fn take(&self) -> ReadySources {
        let mut space = [const { MaybeUninit::<Event>::uninit() }; WATCHED_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the call is interrupted, the descriptor stays readable, and the stack asks again.
        let Ok((events, _)) = epoll::wait(&*self.0, &mut space[..], Some(&now)) else {
            return ReadySources::default();
        };
        let has = |source| events.iter().any(|event| event.data.u64() == source as u64);
        ReadySources { listener: has(WatchSource::Listener), front_end: has(WatchSource::FrontEnd) }
    }
}

impl<T: AsFd> Drop for WatchedFd<T> {
    fn drop(&mut self) {
        self.list.remove(&self.fd);
    }
}
