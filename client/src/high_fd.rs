//! Descriptors of our own, at high numbers that programs do not expect.

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
/// Distance from the soft limit (RLIMIT_NOFILE) at which our descriptors begin. Room for the
/// control socket, notification descriptors and tokens, for those of a child that is being forked,
/// and for epoll sets' sleepers.
const BELOW_LIMIT: u64 = 64;
/// A kernel's descriptor table is as long as its highest number: not higher than this.
const HIGHEST: u64 = 16384;

/// A descriptor that the program does not know of. Its close, dup2 and close_range leave it alone
/// (dup2 makes it move).
#[derive(Debug)]
pub struct HighFd {
    number: Box<AtomicI32>,
    /// Where it is entered.
    among: &'static Descriptors,
}

impl HighFd {
    /// Moves a descriptor up and makes it close-on-exec. Its number is shortly below the soft limit
    /// (RLIMIT_NOFILE), because programs expect the lowest free ones for themselves. Without room
    /// above, the number stays.
    pub fn new(fd: Fd, among: &'static Descriptors) -> Self {
        let low = fd.into_owned().into_raw_fd();
        let number = match move_up(low) {
            Some(high) => {
                syscall::close(low);
                high
            }
            None => {
                // F_SETFD of an open descriptor does not fail.
                let _ = syscall::fcntl(low, F_SETFD, FD_CLOEXEC);
                low
            }
        };
        Self::at(number, among)
    }

    /// Another descriptor for the same: up there, or where there is room.
    ///
    /// # Errors
    /// EMFILE when the process has no number left.
    pub fn duplicate(&self) -> Result<Self, i32> {
        duplicate(self.get()).map(|number| Self::at(number, self.among)).ok_or(EMFILE)
    }

    /// The same at the first free number from `lowest` on.
    ///
    /// # Errors
    /// EMFILE when there is none.
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

    /// Becomes a duplicate of `other` under its own number. Other threads see either the old or the
    /// new descriptor under it, never none. `inheritable`: it survives exec.
    ///
    /// # Errors
    /// As for [`syscall::dup3`]; it is then unchanged.
    pub fn become_duplicate(&self, other: &Self, inheritable: bool) -> Result<(), i32> {
        syscall::dup3(other.get(), self.get(), if inheritable { 0 } else { O_CLOEXEC })
    }

    /// The number; -1 after [`Self::close`]. A dup2 of the program to this number changes it, so
    /// ask each time.
    pub fn get(&self) -> i32 {
        self.number.load(Ordering::Relaxed)
    }

    /// For calls that want a borrowed one. Not after [`Self::close`].
    pub fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.get()) }
    }

    /// Closes it before its time.
    pub fn close(&self) {
        let number = self.number.swap(-1, Ordering::Relaxed);
        if number >= 0 {
            self.among.clear(number);
            syscall::close(number);
        }
    }

    /// After [`Self::close`]: a duplicate of another one, if there is a number for it.
    pub fn renew(&self, of: &Self) {
        if self.get() < 0
            && let Some(number) = duplicate(of.get())
        {
            self.number.store(number, Ordering::Relaxed);
            self.among.set_internal(number, &self.number);
        }
    }

    /// Whether it survives exec; it does not unless this was called.
    pub fn set_inheritable(&self, yes: bool) {
        // The call fails only after `close`, when there is nothing to be inherited.
        let _ = syscall::fcntl(self.get(), F_SETFD, if yes { 0 } else { FD_CLOEXEC });
    }
}

impl Drop for HighFd {
    fn drop(&mut self) {
        self.close();
    }
}

/// Gives way: `number` is about to be overwritten by dup2.
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
    // SAFETY: struct rlimit64 is two 64-bit words; a null new limit only asks.
    let _ = unsafe { syscall::syscall(nr::PRLIMIT64, args) };
    limits[0]
}
