//! The one place where the engine sleeps.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use towpath_pool::Port;

use crate::channels::ChannelId;

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
    /// Which ports are watched for room too.
    blocked: Vec<bool>,
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

impl Poller {
    pub fn new(ports: &[Box<dyn Port>]) -> io::Result<Self> {
        let mut poller = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::new(),
            watched: 0,
            blocked: vec![false; ports.len()],
        };
        for port in ports {
            if let Some(fd) = port.wake_fd() {
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

    /// Watches ports for room as long as they refuse packets.
    pub fn watch_blocked(&mut self, ports: &[Box<dyn Port>]) -> io::Result<()> {
        for (port, was) in ports.iter().zip(&mut self.blocked) {
            let is = port.blocked();
            if is != *was
                && let Some(fd) = port.wake_fd()
            {
                let flags = if is { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                epoll::modify(&self.epoll, fd, Source::Port.token(), flags)?;
                *was = is;
            }
        }
        Ok(())
    }

    /// Sleeps for at most `timeout` (None: for ever). Zero: only looks. Gives everything that there is: who
    /// is gone must not be among what comes with the next look.
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
