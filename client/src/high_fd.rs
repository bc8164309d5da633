//! Internal descriptors of this library. The numbers are high, so that programs are unlikely to use
//! them.

use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use towpath_shm::Fd;

use crate::descriptors::Descriptors;
use crate::syscall::{self, nr};

const F_DUPFD_CLOEXEC: i32 = 1030;
const F_SETFD: i32 = 2;
const FD_CLOEXEC: usize = 1;
const EMFILE: i32 = 24;
const O_CLOEXEC: i32 = 0o2000000;
const RLIMIT_NOFILE: usize = 7;
/// Distance of the lowest internal descriptor from the soft limit (RLIMIT_NOFILE). The numbers in
/// between are for the control socket, notification descriptors and tokens, also of a child that is
/// being forked. Calls on epoll sets need further ones to sleep on.
const BELOW_LIMIT: u64 = 64;
/// Upper bound of the number at which internal descriptors begin. The bound is low, because the
/// kernel's descriptor table of a process is as long as its highest number.
const HIGHEST: u64 = 16384;

/// An internal descriptor of this library, hidden from the program. close and close_range do not
/// close it. If the program calls dup2 with its number as target, it moves to another number.
#[derive(Debug)]
pub struct HighFd {
    number: Box<AtomicI32>,
    /// The process's descriptor table, which has an entry for this descriptor.
    among: &'static Descriptors,
}

impl HighFd {
    /// Moves a descriptor to a number slightly below the soft limit (RLIMIT_NOFILE), because
    /// programs expect the lowest free numbers for themselves. Sets close-on-exec. Keeps the number
    /// if no high number is free.
    pub fn new(fd: Fd, among: &'static Descriptors) -> Self {
        let low = fd.into_owned().into_raw_fd();
        let number = match move_up(low) {
            Some(high) => {
                syscall::close(low);
                high
            }
            None => {
                // Ignore the result, because F_SETFD does not fail for an open descriptor.
                let _ = syscall::fcntl(low, F_SETFD, FD_CLOEXEC);
                low
            }
        };
        Self::at(number, among)
    }

    /// Duplicates the descriptor, to a high number if one is free.
    ///
    /// # Errors
    /// EMFILE if the process has no free descriptor number.
    pub fn duplicate(&self) -> Result<Self, i32> {
        duplicate(self.get()).map(|number| Self::at(number, self.among)).ok_or(EMFILE)
    }

    /// Duplicates the descriptor to the first free number from `lowest` on.
    ///
    /// # Errors
    /// EMFILE if no such number is free.
    pub fn duplicate_above(&self, lowest: i32) -> Result<Self, i32> {
        duplicate_from(self.get(), lowest as usize)
            .map(|number| Self::at(number, self.among))
            .ok_or(EMFILE)
    }

    fn at(number: i32, among: &'static Descriptors) -> Self {
        let word = Box::new(AtomicI32::new(number));
        among.set_internal(number, &word);
        Self { number: word, among }
    }

    /// Replaces this descriptor by a duplicate of `other` with the same number. Other threads see
    /// either the old or the new descriptor, never a closed number. If `inheritable` is true, the
    /// descriptor stays open at exec.
    ///
    /// # Errors
    /// As for [`syscall::dup3`]; the descriptor is then unchanged.
    pub fn become_duplicate(&self, other: &Self, inheritable: bool) -> Result<(), i32> {
        syscall::dup3(other.get(), self.get(), if inheritable { 0 } else { O_CLOEXEC })
    }

    /// Returns the descriptor's number, or -1 after [`Self::close`]. Call this for each use: the
    /// number changes when the program calls dup2 with this number as target.
    pub fn get(&self) -> i32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns a reference to the descriptor. Must not be called after [`Self::close`].
    pub fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until `self` is closed or dropped.
        unsafe { BorrowedFd::borrow_raw(self.get()) }
    }

    /// Closes the descriptor. Calls after the first have no effect.
    pub fn close(&self) {
        let number = self.number.swap(-1, Ordering::Relaxed);
        if number >= 0 {
            self.among.clear(number);
            syscall::close(number);
        }
    }

    /// Makes this descriptor a duplicate of `of`, if it was closed by [`Self::close`] and a
    /// descriptor number is free.
    pub fn renew(&self, of: &Self) {
        if self.get() < 0
            && let Some(number) = duplicate(of.get())
        {
            self.number.store(number, Ordering::Relaxed);
            self.among.set_internal(number, &self.number);
        }
    }

    /// Sets whether the descriptor stays open at exec. Initially it does not.
    pub fn set_inheritable(&self, yes: bool) {
        // Ignore an error: the call fails only after `close`, when no descriptor can be inherited.
        let _ = syscall::fcntl(self.get(), F_SETFD, if yes { 0 } else { FD_CLOEXEC });
    }
}

impl Drop for HighFd {
    fn drop(&mut self) {
        self.close();
    }
}

/// Moves an internal descriptor to another number, because the program's dup2 is about to overwrite
/// `number`.
pub(crate) fn evacuate(among: &Descriptors, number: i32, word: &AtomicI32) {
    if let Some(other) = duplicate(number) {
        word.store(other, Ordering::Relaxed);
        among.set_internal(other, word);
        among.clear(number);
    }
}

fn duplicate(fd: i32) -> Option<i32> {
    move_up(fd).or_else(|| duplicate_from(fd, 0))
}

fn move_up(fd: i32) -> Option<i32> {
    let lowest = soft_limit().saturating_sub(BELOW_LIMIT).min(HIGHEST);
    duplicate_from(fd, lowest as usize)
}

fn duplicate_from(fd: i32, lowest: usize) -> Option<i32> {
    syscall::fcntl(fd, F_DUPFD_CLOEXEC, lowest).ok().map(|number| number as i32)
}

fn soft_limit() -> u64 {
    let mut limits = [1024u64, 0];
    let args = [0, RLIMIT_NOFILE, 0, limits.as_mut_ptr() as usize, 0, 0];
    // SAFETY: struct rlimit64 is two 64-bit words. With a null new limit the call only reads.
    let _ = unsafe { syscall::syscall(nr::PRLIMIT64, args) };
    limits[0]
}
