//! Descriptors on which threads sleep in poll(2) and epoll_wait(2).

use std::os::fd::BorrowedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::hub::SleepPlace;
use crate::syscall::{nr, syscall};
use crate::{Client, Error, HighFd};

/// Values that epoll_wait(2) returns for the descriptor of
/// [`SetCall::go_to_sleep`](super::SetCall::go_to_sleep). Each value tells which member of that
/// epoll set is ready.
pub mod cookie {
    /// The kernel epoll set to which the program's descriptor refers.
    pub const PROGRAM: u64 = 1;
    /// The notification descriptor, which stays readable, so it is watched edge-triggered: only a
    /// new notification wakes a thread.
    pub const NOTIFIER: u64 = 2;
    /// The control socket, which is reported when the engine has ended.
    pub const CONTROL: u64 = 3;
    /// The eventfd with which another thread wakes the sleeping thread for an event.
    pub const WAKEUP: u64 = 4;
}

/// Creates an eventfd with which one sleeping thread is woken.
pub(super) fn new_wakeup(client: &Client) -> Result<HighFd, Error> {
    let wakeup = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    Ok(HighFd::new(wakeup.into(), &client.process().descriptors))
}

pub(super) fn wake(fd: i32) {
    let one = 1u64;
    // SAFETY: `one` has eight bytes, as eventfd(2) requires.
    let _ = unsafe { syscall(nr::WRITE, [fd as usize, &raw const one as usize, 8, 0, 0, 0]) };
}

/// Maximum number of notifications before the notification socket is read. Each is one byte, which
/// takes less than 1 KiB of the socket's buffer. The buffer may be as small as 4.5 KiB
/// (net.core.wmem_default).
pub(super) const RINGS: usize = 4;

/// Reads from an eventfd or the notification descriptor, so that it is not readable any more.
pub fn clear(fd: i32) {
    // An eventfd returns eight bytes. The notification descriptor returns one byte for each
    // notification.
    let mut bytes = [0u8; 64];
    let at = bytes.as_mut_ptr() as usize;
    // SAFETY: `bytes` has room for the number of bytes passed.
    let _ = unsafe { syscall(nr::READ, [fd as usize, at, bytes.len(), 0, 0, 0]) };
}

/// Creates a kernel epoll set that becomes readable when the engine (the network stack) sends a
/// notification or ends.
pub(super) fn new_place(client: &Client) -> Result<HighFd, Error> {
    let place = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let place = HighFd::new(place.into(), &client.process().descriptors);
    // Use edge-triggered mode, so that a notification wakes only one thread per epoll set. The
    // first woken thread takes all events out of the ring.
    put(&place, client.notifier().get(), EventFlags::IN | EventFlags::ET, cookie::NOTIFIER)?;
    // Watch only for the end of the engine: replies on the control socket are for the threads that
    // sent requests.
    put(&place, client.control().get(), EventFlags::RDHUP | EventFlags::ET, cookie::CONTROL)?;
    Ok(place)
}

fn put(place: &HighFd, fd: i32, events: EventFlags, cookie: u64) -> Result<(), Error> {
    // SAFETY: the descriptor is used in this call only, which fails with EBADF if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(epoll::add(place.borrow(), fd, EventData::new_u64(cookie), events)?)
}

impl SleepPlace {
    /// Creates the kernel epoll set on which threads sleep that wait for the program's set. `epfd`
    /// is the open descriptor of the program's set.
    pub fn new(client: &Client, epfd: i32) -> Result<Self, Error> {
        let epoll = new_place(client)?;
        put(&epoll, epfd, EventFlags::IN, cookie::PROGRAM)?;
        let wakeup = new_wakeup(client)?;
        put(&epoll, wakeup.get(), EventFlags::IN | EventFlags::ET, cookie::WAKEUP)?;
        Ok(Self { epoll, wakeup, forks: client.process().forks() })
    }
}
