//! Descriptors of sockets and epoll sets: open, close, dup, fcntl.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::descriptors::{self, DescriptorKind};
use towpath_client::syscall::{self, syscall};
use towpath_client::{Client, Socket};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, epoll, socket, table};

const CLOSE_RANGE_CLOEXEC: u32 = 4;
const CLOSE_RANGE_UNSHARE: u32 = 2;

/// Whether `fd` is a socket or epoll set of ours, or a number that the program must not touch.
#[inline]
pub fn is_ours(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.lookup(fd) != DescriptorKind::Kernel
}

/// Whether `fd` is a socket of ours.
#[inline]
pub fn is_socket(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.socket(fd).is_some()
}

/// Whether `fd` is a descriptor of this library: to the program it is not open.
#[inline]
pub fn is_hidden(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.lookup(fd) == DescriptorKind::Internal
}

/// Closes a socket, but leaves its number taken: by a socket of the kernel's that is for nothing.
/// For functions of libc that put a file into its place without us.
///
/// # Errors
/// EBADF when it was not open any more.
pub fn give_up(posix: &'static Posix, fd: i32) -> Result<()> {
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;
    let args = [libc::AF_UNIX as usize, kind, 0, 0, 0, 0];
    // SAFETY: socket(2) takes numbers.
    match unsafe { syscall(libc::SYS_socket as usize, args) } {
        Ok(other) => {
            let done = dup2(posix, other as i32, fd, Some(libc::O_CLOEXEC));
            syscall::close(other as i32);
            done.map(drop)
        }
        // There are no descriptors left for anybody: the function of libc will find none either.
        Err(_) => close(posix, fd),
    }
}

/// A descriptor for a socket that this channel holds. `file_flags` are SOCK_NONBLOCK and
/// SOCK_CLOEXEC.
pub(crate) fn open(
    posix: &'static Posix,
    client: &Client,
    new: Socket,
    file_flags: i32,
) -> Result<i32> {
    if let Some(slot) = client.slot(new) {
        slot.file_flags.store((file_flags & libc::SOCK_NONBLOCK) as u32, Relaxed);
    }
    table::lock(posix).open(client, new, file_flags & libc::SOCK_CLOEXEC != 0)
}

/// close(2) of a socket or epoll set of ours. The last descriptor of the last process ends the
/// socket; SO_LINGER makes it wait for that.
///
/// # Errors
/// EBADF for a number that is not ours, also when another thread was faster.
pub fn close(posix: &'static Posix, fd: i32) -> Result<()> {
    let taken = table::lock(posix).close(fd);
    match taken.entry {
        DescriptorKind::Kernel | DescriptorKind::Internal => return fail(libc::EBADF),
        _ => release(posix, taken),
    }
    Ok(())
}

fn release(posix: &'static Posix, taken: descriptors::ClosedDescriptor) {
    match taken.entry {
        DescriptorKind::Socket(socket) if taken.last => socket::close_last(posix, socket),
        DescriptorKind::Epoll(index) => epoll::release(posix, index),
        _ => {}
    }
}

/// An entry that is about to get one more descriptor. An epoll set counts them itself, under the
/// hub's lock, which comes before the table's.
struct Retained(DescriptorKind);

impl Retained {
    fn new(posix: &'static Posix, fd: i32) -> Result<Self> {
        let entry = posix.process.descriptors.lookup(fd);
        match entry {
            DescriptorKind::Internal => return fail(libc::EBADF),
            DescriptorKind::Epoll(index) => epoll::retain(posix, index),
            DescriptorKind::Kernel | DescriptorKind::Socket(_) => {}
        }
        Ok(Self(entry))
    }

    /// There is none after all.
    fn release(self, posix: &'static Posix) {
        release(posix, descriptors::ClosedDescriptor { entry: self.0, last: false });
    }
}

/// dup(2), and fcntl F_DUPFD (with its lowest number) and F_DUPFD_CLOEXEC. Gives the new number.
///
/// # Errors
/// EMFILE when no number is left, EINVAL when `lowest` is above the limit (RLIMIT_NOFILE).
pub fn dup(posix: &'static Posix, fd: i32, command: i32, lowest: usize) -> Result<i32> {
    loop {
        let retained = Retained::new(posix, fd)?;
        let table = table::lock(posix);
        // Another thread may have put something else there.
        let result = (posix.process.descriptors.lookup(fd) == retained.0).then(|| {
            let new = table.duplicate(fd, command, lowest)?;
            posix.process.descriptors.replace(new, retained.0);
            Ok(new)
        });
        drop(table);
        match result {
            Some(Ok(new)) => return Ok(new),
            Some(Err(errno)) => {
                retained.release(posix);
                return Err(errno);
            }
            None => retained.release(posix),
        }
    }
}

/// dup2(2), and dup3(2) with its flags: for any two descriptors of which one is ours. The old
/// descriptor `new` is closed in the same step; a descriptor of this library moves away. Gives
/// `new`.
///
/// # Errors
/// EBADF when `old` is not open or `new` is beyond the limit; EINVAL of dup3 when they are one
/// number.
pub fn dup2(posix: &'static Posix, old: i32, new: i32, flags: Option<i32>) -> Result<i32> {
    loop {
        let retained = Retained::new(posix, old)?;
        let table = table::lock(posix);
        let result = (posix.process.descriptors.lookup(old) == retained.0).then(|| {
            if posix.process.descriptors.is_engines(new) {
                return fail(libc::EBADF);
            }
            syscall::fcntl(old, libc::F_GETFD, 0).map_err(Errno)?;
            if old == new {
                return if flags.is_none() { Ok(None) } else { fail(libc::EINVAL) };
            }
            if !descriptors::fits(new) && retained.0 != DescriptorKind::Kernel {
                return fail(libc::EBADF);
            }
            table.replace(old, new, flags.unwrap_or(0)).map(Some)
        });
        drop(table);
        match result {
            Some(Ok(Some(replaced))) => {
                release(posix, replaced);
                return Ok(new);
            }
            Some(Ok(None)) => {
                retained.release(posix);
                return Ok(new);
            }
            Some(Err(errno)) => {
                retained.release(posix);
                return Err(errno);
            }
            None => retained.release(posix),
        }
    }
}

/// close_range(2), for all descriptors: those of this library stay open.
///
/// # Errors
/// EINVAL for unknown flags and when `first` is above `last`; ENOSYS before Linux 5.9.
pub fn close_range(posix: &'static Posix, first: u32, last: u32, flags: u32) -> Result<()> {
    if flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 || first > last {
        return fail(libc::EINVAL);
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        let _table = table::lock(posix);
        return real_close_range(first, last, flags);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        // No descriptor has the number u32::MAX: the call only copies the table. The code below
        // closes descriptors of the copy.
        real_close_range(u32::MAX, u32::MAX, flags)?;
    }
    // The numbers of an engine in this process are the last.
    let last = match posix.process.descriptors.engines_from() {
        0 => last,
        lowest if lowest <= first => return Ok(()),
        lowest => last.min(lowest - 1),
    };
    let mut from = first;
    for (fd, entry) in posix.process.descriptors.ours(first) {
        let number = fd as u32;
        if number > last {
            break;
        }
        if entry == DescriptorKind::Internal {
            if number > from {
                real_close_range(from, number - 1, 0)?;
            }
            from = number + 1;
        } else {
            let taken = table::lock(posix).close(fd);
            release(posix, taken);
        }
    }
    if from <= last { real_close_range(from, last, 0) } else { Ok(()) }
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
pub unsafe fn fcntl(posix: &'static Posix, fd: i32, command: i32, arg: usize) -> Result<i32> {
    let kernel = || syscall::fcntl(fd, command, arg).map(|value| value as i32).map_err(Errno);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return dup(posix, fd, command, arg),
        _ if posix.process.descriptors.lookup(fd) == DescriptorKind::Internal => {
            return fail(libc::EBADF);
        }
        libc::F_GETFD => return kernel(),
        libc::F_SETFD => {
            // An exchange of the token restores the flag that it found: without the lock it could
            // undo this change.
            let _table = table::lock(posix);
            return kernel();
        }
        _ if !is_socket(posix, fd) => return kernel(),
        _ => {}
    }
    let handle = OpenSocket::new(posix, fd)?;
    const SETTABLE: i32 = libc::O_NONBLOCK;
    match command {
        libc::F_GETFL => Ok(libc::O_RDWR | handle.slot.file_flags.load(Relaxed) as i32),
        // Signal-driven I/O does not exist here: better refused than never signalled.
        libc::F_SETFL if arg as i32 & libc::O_ASYNC != 0 => fail(libc::EINVAL),
        libc::F_SETFL => handle.change(|slot| {
            slot.file_flags.store((arg as i32 & SETTABLE) as u32, Relaxed);
            0
        }),
        // Whom to signal (SIGURG).
        libc::F_GETOWN => Ok(handle.slot.owner.load(Relaxed)),
        libc::F_SETOWN => set_owner(&handle, arg as i32).map(|()| 0),
        F_GETOWN_EX | F_SETOWN_EX if arg == 0 => fail(libc::EFAULT),
        F_GETOWN_EX => {
            let owner = handle.slot.owner.load(Relaxed);
            let kind = if owner < 0 { F_OWNER_PGRP } else { F_OWNER_PID };
            // SAFETY: the caller's promise: a struct f_owner_ex.
            unsafe { (arg as *mut [i32; 2]).write_unaligned([kind, owner.wrapping_abs()]) };
            Ok(0)
        }
        // SAFETY: as above.
        F_SETOWN_EX => match unsafe { (arg as *const [i32; 2]).read_unaligned() } {
            [F_OWNER_PID, owner] if owner >= 0 => set_owner(&handle, owner).map(|()| 0),
            [F_OWNER_PGRP, owner] if owner >= 0 => set_owner(&handle, -owner).map(|()| 0),
            _ => fail(libc::EINVAL),
        },
        // 0 is SIGIO.
        F_GETSIG => Ok(0),
        F_SETSIG if arg == 0 => Ok(0),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => fail(libc::EBADF),
        _ => fail(libc::EINVAL),
    }
}

fn set_owner(handle: &OpenSocket, owner: i32) -> Result<()> {
    let args = [owner as usize, 0, 0, 0, 0, 0];
    // SAFETY: integers only; signal 0 only asks whether there is somebody.
    if owner != 0 && unsafe { syscall(libc::SYS_kill as usize, args) } == Err(libc::ESRCH) {
        return fail(libc::ESRCH);
    }
    handle.change(|slot| slot.owner.store(owner, Relaxed))
}

const F_OWNER_PID: i32 = 1;
const F_OWNER_PGRP: i32 = 2;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
