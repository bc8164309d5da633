//! Waiting for many sockets: poll, and epoll sets.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::PoisonError;
use std::time::Duration;

use libc::{epoll_event, nfds_t, pollfd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsRawFd;
use towpath_client::Deadline;
use towpath_posix::{Errno, Posix, Result, descriptor, epoll, poll};

use crate::answer::{ended_by_exit, int, with, zero};
use crate::stack::{ObjectInUse, OwnedDescriptor, are_of_one_stack, find};
use crate::table::FIRST;

/// Maximum length of a list for [`towpath_poll`] to work without a heap allocation.
const SMALL: usize = 64;
/// Maximum length of the list passed to [`towpath_poll`], equal to the kernel's default limit of
/// descriptors (fs.nr_open).
const LIST_MAX: usize = 1 << 20;
/// TOWPATH_EPOLL_WAKE: value of `epoll_event.data` in the event that [`towpath_epoll_wake`] causes.
const WAKE: u64 = u64::MAX;

/// Converts a timeout in milliseconds to a deadline. A negative timeout means no limit.
fn deadline(timeout_ms: c_int) -> Option<Deadline> {
    let limit = u64::try_from(timeout_ms).ok()?;
    Some(Deadline::after(Duration::from_millis(limit)))
}

/// # Safety
/// `list` must point to `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_poll(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    int(match count {
        _ if count > LIST_MAX => Err(Errno(libc::EINVAL)),
        0 => poll_list(&mut [], timeout_ms),
        _ if list.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: `list` is not null, and points to `count` entries.
        _ => poll_list(unsafe { std::slice::from_raw_parts_mut(list, count) }, timeout_ms),
    })
}

fn poll_list(list: &mut [pollfd], timeout_ms: c_int) -> Result<c_int> {
    let mut small = [const { None }; SMALL];
    let mut large = Vec::new();
    let objects = if list.len() <= SMALL {
        &mut small[..list.len()]
    } else {
        large.resize_with(list.len(), || None);
        &mut large[..]
    };
    for (entry, object) in list.iter().zip(objects.iter_mut()) {
        // An unknown number gives `None`, and is reported as POLLNVAL below.
        *object = if entry.fd >= FIRST { find(entry.fd).ok() } else { None };
    }
    let is_known = |object: &&ObjectInUse| object.descriptor().is_ok();
    let Some(first) = objects.iter().flatten().find(is_known) else {
        return poll_kernel(list, timeout_ms);
    };
    ended_by_exit(first.descriptor()?, |first| {
        let mut known = objects.iter().flatten().filter_map(|object| object.descriptor().ok());
        if known.any(|other| !are_of_one_stack(first, other)) {
            return Err(Errno(libc::EXDEV));
        }
        let count = poll_stack(first.stack.posix(), list, objects, timeout_ms)?;
        first.stack.check_alive().map(|()| count)
    })
}

/// Polls a list without sockets of a stack, by poll(2) of the kernel.
fn poll_kernel(list: &mut [pollfd], timeout_ms: c_int) -> Result<c_int> {
    // SAFETY: the list outlives the call. The kernel reports numbers of this library as POLLNVAL.
    match unsafe { libc::poll(list.as_mut_ptr(), list.len() as nfds_t, timeout_ms) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        count => Ok(count),
    }
}

/// Polls a list with sockets of one stack. During the call, their numbers in the list are replaced
/// by kernel descriptors.
fn poll_stack(
    posix: &'static Posix,
    list: &mut [pollfd],
    objects: &[Option<ObjectInUse>],
    timeout_ms: c_int,
) -> Result<c_int> {
    let mut small = [pollfd { fd: -1, events: 0, revents: 0 }; SMALL];
    let mut large = Vec::new();
    let inner = if list.len() <= SMALL {
        small[..list.len()].copy_from_slice(list);
        &mut small[..list.len()]
    } else {
        large.extend_from_slice(list);
        &mut large[..]
    };
    let mut invalid = 0;
    for (entry, object) in inner.iter_mut().zip(objects) {
        let known = object.as_ref().and_then(|object| object.descriptor().ok());
        entry.fd = match known {
            Some(descriptor) => descriptor.inner,
            // The program must not use the kernel descriptor that represents a socket of the stack.
            None if entry.fd >= FIRST || descriptor::is_ours(posix, entry.fd) => {
                invalid += 1;
                INVALID
            }
            // poll(2) ignores all negative descriptors. Use -1, which differs from `INVALID`.
            None => entry.fd.max(-1),
        };
    }
    let deadline = deadline(if invalid > 0 { 0 } else { timeout_ms });
    // SAFETY: there is no signal mask.
    let count = unsafe { poll::poll(posix, inner, deadline, null()) };
    let count = count?;
    for (entry, inner) in list.iter_mut().zip(inner) {
        entry.revents = if inner.fd == INVALID { libc::POLLNVAL } else { inner.revents };
    }
    Ok(count + invalid)
}

/// Placeholder for an invalid number in a list. Because it is negative, poll ignores the entry.
const INVALID: i32 = i32::MIN;

#[unsafe(no_mangle)]
pub extern "C" fn towpath_epoll_create(stack: c_int) -> c_int {
    let create = || {
        let object = find(stack)?;
        let stack = object.stack()?;
        stack.check_process()?;
        OwnedDescriptor::open(stack, epoll::create(stack.posix(), libc::EPOLL_CLOEXEC)?)
    };
    int(create())
}

/// # Safety
/// `event` must point to an epoll_event (or be null for EPOLL_CTL_DEL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    zero(with(set, |set| {
        let posix = set.stack.posix();
        posix.client()?;
        // SAFETY: `event` is null or points to an epoll_event, as the caller ensures.
        let is_reserved = || unsafe { !event.is_null() && event.read_unaligned().u64 == WAKE };
        if op != libc::EPOLL_CTL_DEL && is_reserved() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `event` is null or points to an epoll_event, as the caller ensures.
        let change = |fd| unsafe { epoll::ctl(posix, set.inner, op, fd, event) };
        if fd < FIRST {
            // The program must not use the kernel descriptor that represents a socket of the stack.
            return if descriptor::is_ours(posix, fd) { BAD } else { change(fd) };
        }
        let member = find(fd)?;
        let member = member.descriptor().map_err(|_| Errno(libc::EPERM))?;
        if !are_of_one_stack(set, member) {
            return Err(Errno(libc::EXDEV));
        }
        change(member.inner)
    }))
}

const BAD: Result<()> = Err(Errno(libc::EBADF));

/// # Safety
/// `events` must have room for `most` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    int(with(set, |set| {
        let (posix, deadline) = (set.stack.posix(), deadline(timeout_ms));
        loop {
            // SAFETY: `events` has room for `most` events, as the caller ensures. There is no mask.
            let found = unsafe { epoll::wait(posix, set.inner, events, most, deadline, null()) }?;
            set.stack.check_alive()?;
            // SAFETY: `wait` has written `found` events.
            let kept = unsafe { keep_own_wakeup(set, events, found as usize) };
            if kept > 0 || found == 0 {
                return Ok(kept as c_int);
            }
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_epoll_wake(set: c_int) -> c_int {
    zero(with(set, |set| {
        set.stack.check_process()?;
        wake(set)
    }))
}

/// Makes the next wait for an epoll set return an event with the data [`WAKE`].
///
/// # Errors
/// EINVAL for a socket; EMFILE if there is no descriptor for the first wake-up of a set.
fn wake(set: &OwnedDescriptor) -> Result<()> {
    let mut wakeup = set.wakeup.lock().unwrap_or_else(PoisonError::into_inner);
    let eventfd = match &*wakeup {
        Some(eventfd) => eventfd,
        None => {
            let fresh = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: WAKE };
            let (posix, op, fd) = (set.stack.posix(), libc::EPOLL_CTL_ADD, fresh.as_raw_fd());
            // SAFETY: the event outlives the call.
            unsafe { epoll::ctl(posix, set.inner, op, fd, &raw mut event) }?;
            wakeup.insert(fresh)
        }
    };
    match rustix::io::write(eventfd, &1u64.to_ne_bytes()) {
        // EAGAIN: the eventfd's counter is at its maximum, so the eventfd is readable already.
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Clears the wake-up of an epoll set if its eventfd is among `count` reported events. If another
/// thread has already cleared the wake-up, removes this event. Returns the number of remaining
/// events.
///
/// # Safety
/// `events` must point to `count` events.
unsafe fn keep_own_wakeup(set: &OwnedDescriptor, events: *mut epoll_event, count: usize) -> usize {
    // SAFETY: `n` is less than `count`, and `events` points to `count` events.
    let is_wakeup = |n: &usize| unsafe { events.add(*n).read_unaligned() }.u64 == WAKE;
    match (0..count).find(is_wakeup) {
        Some(n) if !take_wakeup(set) => {
            // SAFETY: the events after `n` are inside of the `count` events.
            unsafe { std::ptr::copy(events.add(n + 1), events.add(n), count - n - 1) };
            count - 1
        }
        _ => count,
    }
}

/// Clears the eventfd that wakes threads waiting for the epoll set. Returns false if another thread
/// has already cleared it.
fn take_wakeup(set: &OwnedDescriptor) -> bool {
    let wakeup = set.wakeup.lock().unwrap_or_else(PoisonError::into_inner);
    wakeup.as_ref().is_some_and(|eventfd| rustix::io::read(eventfd, &mut [0; 8]).is_ok())
}
