//! File descriptors that are closed without libc, and can be moved to high numbers.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

std::thread_local! {
    /// Lowest number for new descriptors of this thread, as set by [`placed`]; 0 if they keep their
    /// numbers.
    static LOWEST: Cell<u32> = const { Cell::new(0) };
}

/// An [`OwnedFd`] that is closed by a direct system call. The standard library would call libc's
/// close(2), which a library that uses this crate may have replaced.
#[derive(Debug)]
pub struct Fd(ManuallyDrop<OwnedFd>);

impl Fd {
    /// Converts to an [`OwnedFd`], which is closed by libc's close(2). The caller must ensure that
    /// this is acceptable.
    pub fn into_owned(mut self) -> OwnedFd {
        // SAFETY: the descriptor is taken only once, because `forget` prevents that this value is
        // dropped.
        let owned = unsafe { ManuallyDrop::take(&mut self.0) };
        std::mem::forget(self);
        owned
    }
}

/// Takes ownership of the descriptor. Within [`placed`], moves it to a higher number.
impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        let low = Self(ManuallyDrop::new(fd));
        let lowest = LOWEST.get();
        if lowest == 0 || low.as_raw_fd().cast_unsigned() >= lowest {
            return low;
        }
        move_up(&low, lowest).unwrap_or(low)
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> Self {
        fd.into_owned()
    }
}

impl Deref for Fd {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and the drop of the `OwnedFd` never runs.
        unsafe { rustix::io::close(self.0.as_raw_fd()) }
    }
}

/// Runs `work`. While it runs, every [`Fd`] created on this thread gets the lowest free number from
/// `lowest` on, and is close-on-exec. An engine that runs within a program's process uses this,
/// because the program expects low numbers for its own descriptors. If `lowest` is 0, descriptors
/// keep their numbers.
///
/// ```
/// use std::os::fd::AsRawFd;
/// use towpath_shm::{Fd, placed};
///
/// let open = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map(Fd::from);
/// let high = placed(700, open)?;
/// assert!(high.as_raw_fd() >= 700 && open()?.as_raw_fd() < 700);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn placed<T>(lowest: u32, work: impl FnOnce() -> T) -> T {
    struct Before(u32);
    impl Drop for Before {
        fn drop(&mut self) {
            LOWEST.set(self.0);
        }
    }
    let _before = Before(LOWEST.replace(lowest));
    work()
}

/// Opens a descriptor by `open`. Within [`placed`], this succeeds even if the process has reached
/// its soft limit of descriptors. The limit is meant for the program's own descriptors.
///
/// # Errors
/// Returns errors of `open`, which may be called twice. Returns EMFILE if the hard limit is reached
/// as well.
pub fn opened<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    // Do not drop the result here: the standard library's close would be called; see `Fd`.
    let done = ManuallyDrop::new(open());
    if !matches!(*done, Err(Errno::MFILE)) || LOWEST.get() == 0 {
        return ManuallyDrop::into_inner(done);
    }
    match beyond_soft_limit(getrlimit(Resource::Nofile), open) {
        Some(done) => done,
        None => Err(Errno::MFILE),
    }
}

/// Duplicates the descriptor to a number of at least `lowest`, which may be beyond the soft limit.
/// The kernel checks the limit only when it assigns a number. Returns `None` if no number is free.
fn move_up(fd: &Fd, lowest: u32) -> Option<Fd> {
    let limit = getrlimit(Resource::Nofile);
    let is_beyond = limit.current.is_some_and(|current| current <= u64::from(lowest));
    let duplicate = || {
        let high = fcntl_dupfd_cloexec(fd, lowest.cast_signed());
        high.ok().map(|high| Fd(ManuallyDrop::new(high)))
    };
    if !is_beyond {
        return duplicate();
    }
    beyond_soft_limit(limit, duplicate)?
}

/// Runs `work` while the soft limit of descriptors is raised to the hard limit. `limit` contains
/// the current limits. Returns `None` if the limit cannot be raised.
///
/// The change is visible to all threads. A concurrent change of the limit would conflict, but
/// programs change the limit only at the start.
fn beyond_soft_limit<T>(limit: Rlimit, work: impl FnOnce() -> T) -> Option<T> {
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).ok()?;
    // Do not drop the result here: the standard library's close would be called; see `Fd`.
    let done = ManuallyDrop::new(work());
    // Ignore the result, because lowering the soft limit is always allowed.
    let _ = setrlimit(Resource::Nofile, limit);
    Some(ManuallyDrop::into_inner(done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn number(lowest: u32) -> u32 {
        let open = || Fd::from(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
        let fd = placed(lowest, open);
        assert!(rustix::io::fcntl_getfd(&fd).is_ok_and(|flags| !flags.is_empty()));
        fd.as_raw_fd().cast_unsigned()
    }

    #[test]
    fn descriptors_are_placed_beyond_the_soft_limit_as_far_as_the_hard_one_goes() {
        let before = getrlimit(Resource::Nofile);
        assert!(number(0) < 500);
        let lowered = Rlimit { current: Some(600), ..before };
        setrlimit(Resource::Nofile, lowered).expect("it is lowered");
        assert!(number(590) >= 590);
        assert!(before.maximum.is_none_or(|hard| hard > 900), "a limit of descriptors");
        assert!(number(800) >= 800);
        // Use up all descriptor numbers below the limit, then free one.
        let open = || eventfd(0, EventfdFlags::CLOEXEC);
        let mut taken: Vec<_> = std::iter::from_fn(|| open().ok().map(Fd::from)).collect();
        assert_eq!(opened(open).map(drop), Err(Errno::MFILE));
        let fd = placed(800, || opened(open).map(Fd::from)).expect("a number beyond the limit");
        assert!(fd.as_raw_fd() >= 800 && open().is_err());
        taken.pop();
        assert!(open().is_ok());
        drop(taken);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(600));
        // If no number from the requested one on is free, the descriptor keeps its low number.
        if let Some(hard) = before.maximum {
            assert!(number(u32::try_from(hard).unwrap_or(u32::MAX >> 1)) < 500);
        }
        setrlimit(Resource::Nofile, before).expect("it was so");
    }
}
