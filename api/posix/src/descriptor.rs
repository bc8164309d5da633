//! Descriptors of sockets and epoll sets: open, close, dup, fcntl.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::descriptors::{self, Entry};
use towpath_client::syscall::{self, syscall};
use towpath_client::{Client, Socket};
use towpath_shm::layout::descriptor_identity;

use crate::errno::fail;
use crate::socket::Handle;
use crate::{Errno, Result, epoll, socket};

const CLOSE_RANGE_CLOEXEC: u32 = 4;
const CLOSE_RANGE_UNSHARE: u32 = 2;

/// Whether `fd` is a socket or epoll set of ours, or a number that the program must not touch.
#[inline]
pub fn is_ours(fd: i32) -> bool {
    descriptors::lookup(fd) != Entry::Kernel
}

/// Whether `fd` is a socket of ours.
#[inline]
pub fn is_socket(fd: i32) -> bool {
    descriptors::socket(fd).is_some()
}

/// A descriptor for a socket that this channel holds. `file_flags` are SOCK_NONBLOCK and
/// SOCK_CLOEXEC.
pub(crate) fn open(client: &Client, new: Socket, file_flags: i32) -> Result<i32> {
    let identity = descriptor_identity(new.slot, new.generation);
    let cloexec = file_flags & libc::SOCK_CLOEXEC;
    let flags = libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK | cloexec;
    let args = [identity as usize, flags as usize, 0, 0, 0, 0];
    // SAFETY: integers only.
    let fd = unsafe { syscall(libc::SYS_eventfd2 as usize, args) }.map_err(Errno)? as i32;
    if !descriptors::fits(fd) {
        syscall::close(fd);
        return fail(libc::EMFILE);
    }
    if let Some(slot) = client.slot(new) {
        slot.file_flags.store((file_flags & libc::SOCK_NONBLOCK) as u32, Relaxed);
    }
    descriptors::set_socket(fd, new);
    Ok(fd)
}

/// close(2).
pub fn close(fd: i32) -> Result<()> {
    let taken = descriptors::take(fd);
    match taken.entry {
        Entry::Kernel | Entry::Internal => return fail(libc::EBADF),
        _ => release(taken),
    }
    syscall::close(fd);
    Ok(())
}

fn release(taken: descriptors::Taken) {
    match taken.entry {
        Entry::Socket(socket) if taken.last => socket::close_last(socket),
        Entry::Epoll(index) => epoll::release(index),
        _ => {}
    }
}

/// dup(2), and fcntl F_DUPFD (with its lowest number) and F_DUPFD_CLOEXEC.
pub fn dup(fd: i32, command: i32, lowest: usize) -> Result<i32> {
    let entry = descriptors::lookup(fd);
    if entry == Entry::Internal {
        return fail(libc::EBADF);
    }
    let new = syscall::fcntl(fd, command, lowest).map_err(Errno)? as i32;
    if !descriptors::fits(new) {
        syscall::close(new);
        return fail(libc::EMFILE);
    }
    enter(new, entry);
    Ok(new)
}

fn enter(fd: i32, entry: Entry) {
    match entry {
        Entry::Socket(socket) => descriptors::set_socket(fd, socket),
        Entry::Epoll(index) => {
            epoll::retain(index);
            descriptors::set_epoll(fd, index);
        }
        Entry::Kernel | Entry::Internal => {}
    }
}

/// dup2(2), and dup3(2) with its flags: for any two descriptors of which one is ours.
pub fn dup2(old: i32, new: i32, flags: Option<i32>) -> Result<i32> {
    let entry = descriptors::lookup(old);
    if entry == Entry::Internal {
        return fail(libc::EBADF);
    }
    syscall::fcntl(old, libc::F_GETFD, 0).map_err(Errno)?;
    if old == new {
        return if flags.is_none() { Ok(new) } else { fail(libc::EINVAL) };
    }
    if !descriptors::fits(new) && entry != Entry::Kernel {
        return fail(libc::EBADF);
    }
    descriptors::evacuate(new);
    let replaced = descriptors::take(new);
    let args = [old as usize, new as usize, flags.unwrap_or(0) as usize, 0, 0, 0];
    // SAFETY: integers only. What `new` was before is closed by this.
    let result = unsafe { syscall(libc::SYS_dup3 as usize, args) };
    release(replaced);
    result.map_err(Errno)?;
    enter(new, entry);
    Ok(new)
}

/// close_range(2), for all descriptors: those of this library stay open.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    if flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 || first > last {
        return fail(libc::EINVAL);
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        return real_close_range(first, last, flags);
    }
    let mut from = first;
    for (fd, entry) in descriptors::ours(first) {
        let number = fd as u32;
        if number > last {
            break;
        }
        if entry == Entry::Internal {
            if number > from {
                real_close_range(from, number - 1, flags)?;
            }
            from = number + 1;
        } else {
            release(descriptors::take(fd));
        }
    }
    if from <= last { real_close_range(from, last, flags) } else { Ok(()) }
}

fn real_close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    let args = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: integers only. The program asked for these to be closed.
    unsafe { syscall(libc::SYS_close_range as usize, args) }.map(drop).map_err(Errno)
}

/// fcntl(2) on a socket or epoll set of ours.
///
/// # Safety
/// As for fcntl: with commands that take a pointer, `arg` must be one.
pub unsafe fn fcntl(fd: i32, command: i32, arg: usize) -> Result<i32> {
    let kernel = || syscall::fcntl(fd, command, arg).map(|value| value as i32).map_err(Errno);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return dup(fd, command, arg),
        _ if descriptors::lookup(fd) == Entry::Internal => return fail(libc::EBADF),
        libc::F_GETFD | libc::F_SETFD => return kernel(),
        _ if !is_socket(fd) => return kernel(),
        _ => {}
    }
    let handle = Handle::new(fd)?;
    const SETTABLE: i32 = libc::O_NONBLOCK;
    match command {
        libc::F_GETFL => Ok(libc::O_RDWR | handle.slot.file_flags.load(Relaxed) as i32),
        // Signal-driven I/O does not exist here: better refused than never signalled.
        libc::F_SETFL if arg as i32 & libc::O_ASYNC != 0 => fail(libc::EINVAL),
        libc::F_SETFL => handle.change(|slot| {
            slot.file_flags.store((arg as i32 & SETTABLE) as u32, Relaxed);
            0
        }),
        libc::F_GETOWN | libc::F_SETOWN | F_GETSIG | F_SETSIG | F_GETOWN_EX | F_SETOWN_EX => {
            kernel()
        }
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => fail(libc::EBADF),
        _ => fail(libc::EINVAL),
    }
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
