//! Implements calls on descriptors of sockets and epoll sets: open, close, dup, fcntl.

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::descriptors::{self, DescriptorKind};
use towpath_client::syscall::{self, syscall};
use towpath_client::{Client, Socket};

use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::{Errno, Posix, Result, epoll, socket, table};

const CLOSE_RANGE_CLOEXEC: u32 = 4;
const CLOSE_RANGE_UNSHARE: u32 = 2;

/// Returns whether `fd` is a socket or epoll set of the stack, or an internal descriptor of this
/// library.
#[inline]
pub fn is_ours(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.lookup(fd) != DescriptorKind::Kernel
}

/// Returns whether `fd` is a socket of the user-space stack.
#[inline]
pub fn is_socket(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.socket(fd).is_some()
}

/// Returns whether `fd` is an internal descriptor of this library, which the program sees as
/// closed.
#[inline]
pub fn is_hidden(posix: &'static Posix, fd: i32) -> bool {
    posix.process.descriptors.lookup(fd) == DescriptorKind::Internal
}

/// Closes a socket of the stack, and opens an unused kernel socket with its number. A libc function
/// calls the kernel directly to replace the descriptor; until then the number must stay in use.
///
/// # Errors
/// EBADF if the descriptor is closed already.
pub fn give_up(posix: &'static Posix, fd: i32) -> Result<()> {
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;
    let args = [libc::AF_UNIX as usize, kind, 0, 0, 0, 0];
    // SAFETY: socket(2) takes integers only.
    match unsafe { syscall(libc::SYS_socket as usize, args) } {
        Ok(other) => {
            let done = dup2(posix, other as i32, fd, Some(libc::O_CLOEXEC));
            syscall::close(other as i32);
            done.map(drop)
        }
        // No descriptor is free for the stack's socket. Close the kernel's, so that the libc
        // function that called socket(2) fails.
        Err(_) => close(posix, fd),
    }
}

/// Creates a descriptor for a new socket, to which the channel of `client` has a reference.
/// `file_flags` are SOCK_NONBLOCK and SOCK_CLOEXEC.
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

/// close(2) of a socket or epoll set of the stack. Closing the last descriptor in the last process
/// closes the socket itself. With SO_LINGER, the call waits until the connection has ended.
///
/// # Errors
/// EBADF if the descriptor is not the stack's, or if a concurrent call has closed it.
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

/// Entry of the descriptor table for which another descriptor is being created. The reactor counts
/// the descriptors of each epoll set. Take the reactor's lock before the lock of the table.
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

    /// Decrements the descriptor count of the epoll set again, because no descriptor was added.
    fn release(self, posix: &'static Posix) {
        release(posix, descriptors::ClosedDescriptor { entry: self.0, last: false });
    }
}

/// dup(2), and fcntl F_DUPFD and F_DUPFD_CLOEXEC (which return a number of at least `lowest`).
/// Returns the new number.
///
/// # Errors
/// EMFILE if no descriptor number is free, EINVAL if `lowest` is above the limit (RLIMIT_NOFILE).
pub fn dup(posix: &'static Posix, fd: i32, command: i32, lowest: usize) -> Result<i32> {
    loop {
        let retained = Retained::new(posix, fd)?;
        let table = table::lock(posix);
        // Check that no concurrent call has replaced the descriptor.
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

/// Implements dup2(2), and dup3(2) with its flags, if one of the descriptors is the stack's. If
/// `new` is open, it is closed atomically. If `new` is an internal descriptor of this library, the
/// internal descriptor is moved to a different number. Returns `new`.
///
/// # Errors
/// EBADF if `old` is not open or `new` is above the limit (RLIMIT_NOFILE). EINVAL for dup3 if `old`
/// and `new` are equal.
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

/// Implements close_range(2), but leaves internal descriptors of this library open.
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
        // No descriptor has the number u32::MAX, so this call closes nothing. The effect is only to
        // give this thread its own copy of the descriptor table (CLOSE_RANGE_UNSHARE). The code
        // below closes the descriptors in this copy.
        real_close_range(u32::MAX, u32::MAX, flags)?;
    }
    // Do not close the descriptors of an engine that runs in this process. The engine's descriptors
    // have the highest numbers.
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
    // SAFETY: close_range takes integers only, and the program wants these descriptors closed.
    unsafe { syscall(libc::SYS_close_range as usize, args) }.map(drop).map_err(Errno)
}

/// Implements fcntl(2) for a descriptor of a socket or epoll set of the stack.
///
/// # Safety
/// As for fcntl, `arg` must be a pointer for commands that take one.
pub unsafe fn fcntl(posix: &'static Posix, fd: i32, command: i32, arg: usize) -> Result<i32> {
    let kernel = || syscall::fcntl(fd, command, arg).map(|value| value as i32).map_err(Errno);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return dup(posix, fd, command, arg),
        _ if posix.process.descriptors.lookup(fd) == DescriptorKind::Internal => {
            return fail(libc::EBADF);
        }
        libc::F_GETFD => return kernel(),
        libc::F_SETFD => {
            // Take the lock of the descriptor table. Otherwise a concurrent call that replaces the
            // kernel descriptor could restore the flag that it read before this change.
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
        // Refuse O_ASYNC, because the stack would not send a signal for I/O.
        libc::F_SETFL if arg as i32 & libc::O_ASYNC != 0 => fail(libc::EINVAL),
        libc::F_SETFL => handle.change(|slot| {
            slot.file_flags.store((arg as i32 & SETTABLE) as u32, Relaxed);
            0
        }),
        // The socket's owner is the process or process group that receives SIGURG.
        libc::F_GETOWN => Ok(handle.slot.owner.load(Relaxed)),
        libc::F_SETOWN => set_owner(&handle, arg as i32).map(|()| 0),
        F_GETOWN_EX | F_SETOWN_EX if arg == 0 => fail(libc::EFAULT),
        F_GETOWN_EX => {
            let owner = handle.slot.owner.load(Relaxed);
            let kind = if owner < 0 { F_OWNER_PGRP } else { F_OWNER_PID };
            // SAFETY: `arg` is not null, and points to a struct f_owner_ex, as F_GETOWN_EX
            // requires.
            unsafe { (arg as *mut [i32; 2]).write_unaligned([kind, owner.wrapping_abs()]) };
            Ok(0)
        }
        // SAFETY: `arg` is not null, and points to a struct f_owner_ex, as F_SETOWN_EX requires.
        F_SETOWN_EX => match unsafe { (arg as *const [i32; 2]).read_unaligned() } {
            [F_OWNER_PID, owner] if owner >= 0 => set_owner(&handle, owner).map(|()| 0),
            [F_OWNER_PGRP, owner] if owner >= 0 => set_owner(&handle, -owner).map(|()| 0),
            _ => fail(libc::EINVAL),
        },
        // Only signal 0 is supported, which means the default, SIGIO.
        F_GETSIG => Ok(0),
        F_SETSIG if arg == 0 => Ok(0),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => fail(libc::EBADF),
        _ => fail(libc::EINVAL),
    }
}

fn set_owner(handle: &OpenSocket, owner: i32) -> Result<()> {
    let args = [owner as usize, 0, 0, 0, 0, 0];
    // SAFETY: kill takes integers only. Signal 0 sends nothing, and tells whether the process
    // exists.
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
