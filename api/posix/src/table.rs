//! The order of steps when the stack's descriptors change.
//!
//! A descriptor number of the stack has an entry in the table of [`descriptors`], and a kernel
//! descriptor. Calls first look up the entry. Without an entry, they act on the kernel's
//! descriptor, as calls that bypass this library always do. Other threads may use, close, replace
//! and allocate numbers at any time. Therefore:
//!
//! - The kernel descriptor of a socket is a [`towpath_shm::token`], on which every call fails with
//!   EBADF. A thread that finds the descriptor without its entry gets the same error as after the
//!   close.
//! - Entry and kernel descriptor change under one lock, which serializes changes of the stack's
//!   numbers. Otherwise an entry could remain for a number that names another file by now. The
//!   kernel assigns numbers without this lock. Therefore an entry is removed before its descriptor
//!   is closed, and added after its descriptor is created. A number that the program closes is also
//!   closed in the kernel, even if another thread has just closed it.
//! - A holder of the lock waits neither for another lock nor for the engine. close(2) lingers after
//!   the number is free, as in the kernel.
//! - A signal handler may close descriptors after it has interrupted a thread that holds the lock.
//!   The handler continues without the lock, as if its change came between two steps of the
//!   interrupted one. Every step allows this for all numbers except those that it changes itself.
//!   Even without this library, a handler must not change a number that the interrupted call is
//!   closing or replacing. Only [`TableGuard::exchange`] changes numbers that are unrelated to the
//!   interrupted call, so it blocks signals. Other changes do not, because blocking takes two
//!   system calls, which a seccomp filter of the program may forbid.
//! - The lock is held while a process forks. The child's copies of the entries (memory) and of the
//!   descriptors (kernel) are then consistent.

use towpath_client::descriptors::{self, DescriptorKind, Descriptors};
use towpath_client::syscall;
use towpath_client::{Client, LockGuard, Socket};

use crate::errno::fail;
use crate::{Errno, Posix, Result};

/// Guard of the lock that is held while descriptors of the stack change.
#[derive(Debug)]
pub(crate) struct TableGuard {
    descriptors: &'static Descriptors,
    _lock: Option<LockGuard<'static, ()>>,
}

/// Takes the lock for changes of descriptors. A signal handler that interrupted the holder
/// continues without the lock.
pub(crate) fn lock(posix: &'static Posix) -> TableGuard {
    // Do not take the lock in a child forked without this library. The holder may be a thread of
    // the parent, which does not exist here. The child has a single thread, so it needs no lock.
    let lock = posix.client().ok().and_then(|_| posix.changes.lock_unless_mine());
    TableGuard { descriptors: &posix.process.descriptors, _lock: lock }
}

/// Returns whether this thread holds the lock for changes of descriptors, so that the caller is a
/// signal handler.
pub(crate) fn is_mine(posix: &'static Posix) -> bool {
    posix.changes.is_mine()
}

impl TableGuard {
    /// Creates a descriptor for a socket of the stack: duplicates the kernel descriptor that stands
    /// for sockets, and adds a table entry.
    pub fn open(&self, client: &Client, socket: Socket, cloexec: bool) -> Result<i32> {
        let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let fd = self.duplicate(client.blank().get(), command, 0)?;
        self.descriptors.set_socket(fd, socket);
        Ok(fd)
    }

    /// Duplicates a kernel descriptor with `command` (F_DUPFD or F_DUPFD_CLOEXEC). The new number
    /// has no table entry yet.
    pub fn duplicate(&self, fd: i32, command: i32, lowest: usize) -> Result<i32> {
        let new = match syscall::fcntl(fd, command, lowest) {
            Ok(new) => new as i32,
            // With lowest number 0, EINVAL can only mean that RLIMIT_NOFILE is 0. Return EMFILE,
            // like dup(2) and socket(2).
            Err(libc::EINVAL) if lowest == 0 => return fail(libc::EMFILE),
            Err(errno) => return fail(errno),
        };
        if !descriptors::fits(new) {
            syscall::close(new);
            return fail(libc::EMFILE);
        }
        Ok(new)
    }

    /// Removes the table entry of a number and closes its kernel descriptor. The caller must then
    /// release the socket or epoll set, without holding the lock.
    pub fn close(&self, fd: i32) -> descriptors::ClosedDescriptor {
        let taken = self.descriptors.take(fd);
        if !matches!(taken.entry, DescriptorKind::Kernel | DescriptorKind::Internal) {
            syscall::close(fd);
        }
        taken
    }

    /// Calls dup3(2), and copies the table entry of `old` to `new`. The caller must then release
    /// the socket or epoll set that had the number `new`, without holding the lock.
    ///
    /// A concurrent call that uses `new` must find either the old or the new file. Every call looks
    /// up the table entry first, then uses the kernel descriptor. Therefore if `new` has an entry,
    /// its kernel descriptor is replaced before the entry; otherwise the entry is set first. (If a
    /// file replaces a socket or vice versa, a call that has just read the entry fails with EBADF.)
    pub fn replace(&self, old: i32, new: i32, flags: i32) -> Result<descriptors::ClosedDescriptor> {
        self.descriptors.evacuate(new);
        if self.descriptors.lookup(new) == DescriptorKind::Internal {
            // Fail, because the library's internal descriptor at `new` could not be moved to
            // another number.
            return fail(libc::EMFILE);
        }
        let (entry, before) = (self.descriptors.lookup(old), self.descriptors.lookup(new));
        let hides_a_file = before == DescriptorKind::Kernel
            && entry != DescriptorKind::Kernel
            && syscall::fcntl(new, libc::F_GETFD, 0).is_ok();
        if hides_a_file {
            let taken = self.descriptors.replace(new, entry);
            return match dup3(old, new, flags) {
                Ok(()) => Ok(taken),
                // dup3 failed because the soft limit (RLIMIT_NOFILE) is below `new`. The descriptor
                // `new` was not replaced.
                Err(errno) => {
                    self.descriptors.take(new);
                    Err(errno)
                }
            };
        }
        dup3(old, new, flags)?;
        Ok(self.descriptors.replace(new, entry))
    }

    /// Replaces the kernel descriptor of `socket` by a duplicate of `token`, if the number `fd`
    /// still belongs to `socket`. The caller must have blocked signals before it took the lock.
    pub fn exchange(&self, fd: i32, socket: Socket, token: i32) -> Result<()> {
        if self.descriptors.socket(fd) != Some(socket) {
            return Ok(());
        }
        let kept = syscall::fcntl(fd, libc::F_GETFD, 0).map_err(Errno)?;
        dup3(token, fd, if kept & libc::FD_CLOEXEC as usize == 0 { 0 } else { libc::O_CLOEXEC })
    }
}

fn dup3(old: i32, new: i32, flags: i32) -> Result<()> {
    syscall::dup3(old, new, flags).map_err(Errno)
}
