//! [`Poller`], which waits for events of descriptors with epoll(7).

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use towpath_shm::Fd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// A source of events: a descriptor that can wake a thread.
pub(crate) trait PollSource: Copy {
    /// Returns a number that identifies the source. [`Self::of`] converts it back.
    fn token(self) -> u64;
    /// Returns the event source that has this number as its token.
    fn of(token: u64) -> Self;
    /// Returns the epoll events to wait for. EPOLLHUP is always reported.
    fn wanted(self) -> EventFlags;
}

/// A kernel epoll set with the event sources of a thread.
pub(crate) struct Poller<S> {
    epoll: Fd,
    events: Vec<epoll::Event>,
    /// Number of descriptors in the epoll set.
    watched: usize,
    sources: PhantomData<S>,
}

// SAFETY: event data may be a pointer in general, but here it is always a number
// ([`PollSource::token`]).
unsafe impl<S: Send> Send for Poller<S> {}

/// The descriptor of the epoll set, which is readable when an event is pending.
impl<S> AsFd for Poller<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<S: PollSource> Poller<S> {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?.into();
        Ok(Self { epoll, events: Vec::new(), watched: 0, sources: PhantomData })
    }

    pub fn add(&mut self, fd: BorrowedFd<'_>, source: S) -> io::Result<()> {
        let token = EventData::new_u64(source.token());
        epoll::add(&self.epoll, fd, token, source.wanted())?;
        self.watched += 1;
        Ok(())
    }

    /// Changes the events to wait for on a descriptor.
    pub fn change(&mut self, fd: BorrowedFd<'_>, source: S, wanted: EventFlags) -> io::Result<()> {
        let token = EventData::new_u64(source.token());
        Ok(epoll::modify(&self.epoll, fd, token, wanted)?)
    }

    /// Removes a descriptor from the epoll set before it is closed. Closing it would not remove it,
    /// because other processes may have the same open file.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) {
        let removed = epoll::delete(&self.epoll, fd);
        debug_assert!(removed.is_ok());
        self.watched -= 1;
    }

    /// Sleeps until an event, for at most `timeout` (`None`: no limit; zero: no sleep). Returns all
    /// pending events at once, so that their order cannot matter. Otherwise the end of a process
    /// could be reported after a later request of another process. Returns false if a signal
    /// interrupted the sleep.
    pub fn wait(&mut self, timeout: Option<Duration>, woken: &mut Vec<S>) -> io::Result<bool> {
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
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        woken.extend(self.events.iter().map(|event| S::of(event.data.u64())));
        Ok(true)
    }
}
