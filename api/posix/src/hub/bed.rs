//! What threads sleep on in poll and epoll.

use towpath_client::syscall::syscall;
use towpath_client::{Client, HighFd, ready};

use super::EPOLLET;
use crate::{Errno, Result, process};

/// A kernel epoll set of our own that holds the program's one, the doorbell, the control socket and
/// a kick. The program's set itself is shared with forked children, and must not hold our things.
#[derive(Debug)]
pub(crate) struct Bed {
    pub epoll: HighFd,
    pub kick: HighFd,
    /// Forks of this process before it was made.
    pub forks: u32,
}

/// What wakes a [`Bed`].
pub(crate) mod cookie {
    pub const PROGRAM: u64 = 1;
    pub const BELL: u64 = 2;
    pub const CONTROL: u64 = 3;
    pub const KICK: u64 = 4;
}

/// An eventfd that wakes one thread.
pub(super) fn new_kick() -> Result<HighFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(HighFd::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?.into()))
}

pub(super) fn kick(fd: i32) {
    let one = 1u64;
    // SAFETY: eight bytes, as an eventfd wants.
    let _ = unsafe {
        syscall(libc::SYS_write as usize, [fd as usize, &raw const one as usize, 8, 0, 0, 0])
    };
}

/// Takes the count out of a kick, or the rings out of the doorbell, so that it is not readable any more.
pub(crate) fn clear(fd: i32) {
    // An eventfd gives eight bytes, the doorbell one byte per ring, and there is seldom more than one.
    let mut bytes = [0u8; 64];
    let at = bytes.as_mut_ptr() as usize;
    // SAFETY: as many bytes as there is room for.
    let _ = unsafe { syscall(libc::SYS_read as usize, [fd as usize, at, bytes.len(), 0, 0, 0]) };
}

impl Bed {
    /// For the program's set `epfd`.
    pub fn new(client: &Client, epfd: i32) -> Result<Self> {
        let epoll = HighFd::new(
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?.into(),
        );
        let kick = new_kick()?;
        let bed = Self { epoll, kick, forks: process::fork_count() };
        bed.put(epfd, libc::EPOLLIN as u32, cookie::PROGRAM)?;
        // Edge-triggered: each ring wakes a thread of each set, and the first of them takes the events.
        bed.put(client.bell().get(), libc::EPOLLIN as u32 | EPOLLET, cookie::BELL)?;
        bed.put(bed.kick.get(), libc::EPOLLIN as u32 | EPOLLET, cookie::KICK)?;
        // Its replies are for the threads that asked; only its end is of interest.
        bed.put(client.control().get(), ready::RDHUP | EPOLLET, cookie::CONTROL)?;
        Ok(bed)
    }

    fn put(&self, fd: i32, events: u32, cookie: u64) -> Result<()> {
        let event = libc::epoll_event { events, u64: cookie };
        let at = &raw const event as usize;
        let args = [self.epoll.get() as usize, libc::EPOLL_CTL_ADD as usize, fd as usize, at, 0, 0];
        // SAFETY: the event outlives the call.
        unsafe { syscall(libc::SYS_epoll_ctl as usize, args) }.map(drop).map_err(Errno)
    }
}
