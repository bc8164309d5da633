//! Descriptors on which threads sleep in poll and epoll.

use std::os::fd::BorrowedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::hub::SleepPlace;
use crate::syscall::{nr, syscall};
use crate::{Client, Error, HighFd};

/// Data of epoll_wait(2) on the descriptor of
/// [`SetCall::go_to_sleep`](super::SetCall::go_to_sleep): the member that is ready.
pub mod cookie {
    /// The kernel's epoll set of the program.
    pub const PROGRAM: u64 = 1;
    /// The notification descriptor, which stays readable: only the next ring counts.
    pub const NOTIFIER: u64 = 2;
    /// The control socket: the engine has gone.
    pub const CONTROL: u64 = 3;
    /// A thread has taken an event for this one.
    pub const WAKEUP: u64 = 4;
}

/// Creates an eventfd that wakes one thread.
pub(super) fn new_wakeup(client: &Client) -> Result<HighFd, Error> {
    let wakeup = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    Ok(HighFd::new(wakeup.into(), &client.process().descriptors))
}

pub(super) fn wake(fd: i32) {
    let one = 1u64;
    // SAFETY: eight bytes, as an eventfd wants.
    let _ = unsafe { syscall(nr::WRITE, [fd as usize, &raw const one as usize, 8, 0, 0, 0]) };
}

/// Maximum number of rings in the notification descriptor before it is cleared. A byte in a socket
/// counts for less than 1 KiB of its buffer, which an administrator can make as short as 4.5 KiB
/// (net.core.wmem_default).
pub(super) const RINGS: usize = 4;

/// Reads a wake-up or the notification descriptor, so that it is no longer readable.
pub fn clear(fd: i32) {
    // An eventfd returns eight bytes, the notification descriptor a byte for each ring.
    let mut bytes = [0u8; 64];
    let at = bytes.as_mut_ptr() as usize;
    // SAFETY: as many bytes as there is room for.
    let _ = unsafe { syscall(nr::READ, [fd as usize, at, bytes.len(), 0, 0, 0]) };
}

/// Creates an epoll set that becomes readable at the next ring of the engine, and at its end.
pub(super) fn new_place(client: &Client) -> Result<HighFd, Error> {
    let place = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let place = HighFd::new(place.into(), &client.process().descriptors);
    // Edge-triggered: each ring wakes a thread of each set, and the first of them takes the events.
    put(&place, client.notifier().get(), EventFlags::IN | EventFlags::ET, cookie::NOTIFIER)?;
    // Replies on the control socket are for the threads that sent requests.
    put(&place, client.control().get(), EventFlags::RDHUP | EventFlags::ET, cookie::CONTROL)?;
    Ok(place)
}

fn put(place: &HighFd, fd: i32, events: EventFlags, cookie: u64) -> Result<(), Error> {
    // SAFETY: used for this call only, which says EBADF of a number that is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(epoll::add(place.borrow(), fd, EventData::new_u64(cookie), events)?)
}

impl SleepPlace {
    /// Creates a place to sleep for threads in the program's set `epfd`, which must be open.
    pub fn new(client: &Client, epfd: i32) -> Result<Self, Error> {
        let epoll = new_place(client)?;
        put(&epoll, epfd, EventFlags::IN, cookie::PROGRAM)?;
        let wakeup = new_wakeup(client)?;
        put(&epoll, wakeup.get(), EventFlags::IN | EventFlags::ET, cookie::WAKEUP)?;
        Ok(Self { epoll, wakeup, forks: client.process().forks() })
    }
}
