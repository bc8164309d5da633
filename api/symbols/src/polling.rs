//! Exports poll, select, epoll and similar functions.

use std::time::Duration;

use libc::{
    c_int, c_void, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use towpath_client::Deadline;
use towpath_client::descriptors::DESCRIPTORS_MAX;
use towpath_posix::poll::{self as posix, Sets};
use towpath_posix::{Errno, Result, descriptor, epoll};

use crate::cancel::point;
use crate::{POSIX, answer, real};

/// Converts a timeout in milliseconds to a deadline. Returns `None` for a negative timeout, which
/// never expires.
fn after_ms(timeout: c_int) -> Option<Deadline> {
    u64::try_from(timeout).ok().map(|ms| Deadline::after(Duration::from_millis(ms)))
}

unsafe fn after(timeout: *const timespec) -> Result<Option<Deadline>> {
    // SAFETY: the program upholds the C function's contract.
    match unsafe { timeout.as_ref() } {
        Some(limit) => Ok(Some(Deadline::after(posix::duration(limit)?))),
        None => Ok(None),
    }
}

/// Returns whether `count` exceeds the maximum number of descriptors of this process. The kernel
/// rejects such a call before it reads the list, whose address may be invalid.
fn too_many(count: nfds_t) -> bool {
    // Number below every usual descriptor limit. Polling fewer descriptors needs no system call to
    // check the limit.
    const FEW: nfds_t = 256;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    count > FEW
        && unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0
        && count > limit.rlim_cur
}

/// Returns whether the list of a poll(2) call contains a descriptor of the stack.
pub unsafe fn any_ours(fds: *mut pollfd, count: nfds_t) -> bool {
    // SAFETY: the program upholds the C function's contract.
    POSIX.is_active() && !too_many(count) && unsafe { posix::any_ours(&POSIX, list(fds, count)) }
}

unsafe fn list<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the program upholds the C function's contract.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if any_ours(fds, count) {
            let deadline = after_ms(timeout);
            let poll = || posix::poll(&POSIX, list(fds, count), deadline, std::ptr::null());
            return point(|| answer::int(poll()));
        }
        real::poll(fds, count, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if any_ours(fds, count) {
            let poll = |deadline| posix::poll(&POSIX, list(fds, count), deadline, mask.cast());
            let deadline = after(timeout);
            return point(|| answer::int(deadline.and_then(poll)));
        }
        real::ppoll(fds, count, timeout, mask)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract. libc aborts the program if `room` bytes
    // do not hold `count` entries.
    unsafe {
        if room / size_of::<pollfd>() < count as usize {
            return real::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if room / size_of::<pollfd>() < count as usize {
            return real::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
    }
}

pub fn sets(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set) -> Sets {
    let count = usize::try_from(count).unwrap_or(0).min(DESCRIPTORS_MAX);
    Sets { at: [read.cast(), write.cast(), except.cast()], count }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = sets(count, read, write, except);
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() || !sets.any_ours(&POSIX) {
            return real::select(count, read, write, except, timeout);
        }
        let deadline = match timeout.as_ref() {
            Some(limit) if limit.tv_sec < 0 || limit.tv_usec < 0 => {
                return answer::int(Err(Errno(libc::EINVAL)));
            }
            Some(limit) => {
                let limit = Duration::from_secs(limit.tv_sec as u64)
                    + Duration::from_micros(limit.tv_usec as u64);
                Some(Deadline::after(limit))
            }
            None => None,
        };
        let result = point(|| answer::int(sets.select(&POSIX, deadline, std::ptr::null())));
        // Write the remaining time to the timeout of select(2), as Linux does.
        if let (Some(deadline), Some(timeout)) = (deadline, timeout.as_mut()) {
            let left = deadline.left();
            timeout.tv_sec = left.as_secs() as libc::time_t;
            timeout.tv_usec = libc::suseconds_t::from(left.subsec_micros());
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = sets(count, read, write, except);
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !POSIX.is_active() || !sets.any_ours(&POSIX) {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        let deadline = after(timeout);
        let select = |deadline| sets.select(&POSIX, deadline, mask.cast());
        point(|| answer::int(deadline.and_then(select)))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if POSIX.is_active() && size > 0 {
        return answer::int(epoll::create(&POSIX, 0));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::epoll_create(size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    if POSIX.is_active() {
        return answer::int(epoll::create(&POSIX, flags));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::epoll_create1(flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, epfd) {
            return answer::zero(epoll::ctl(&POSIX, epfd, op, fd, event));
        }
        real::epoll_ctl(epfd, op, fd, event)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, epfd) {
            let deadline = after_ms(timeout);
            let wait = || epoll::wait(&POSIX, epfd, events, most, deadline, std::ptr::null());
            return point(|| answer::int(wait()));
        }
        real::epoll_wait(epfd, events, most, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, epfd) {
            let deadline = after_ms(timeout);
            let wait = || epoll::wait(&POSIX, epfd, events, most, deadline, mask.cast::<c_void>());
            return point(|| answer::int(wait()));
        }
        real::epoll_pwait(epfd, events, most, timeout, mask)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, epfd) {
            let wait = |deadline| epoll::wait(&POSIX, epfd, events, most, deadline, mask.cast());
            let deadline = after(timeout);
            return point(|| answer::int(deadline.and_then(wait)));
        }
        real::epoll_pwait2(epfd, events, most, timeout, mask)
    }
}
