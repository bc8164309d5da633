//! Descriptors that are closed without libc.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};

/// An [`OwnedFd`] whose drop makes the system call itself: std's calls libc's close, in whose place a
/// library that is built on this crate may have put a function of its own.
#[derive(Debug)]
pub struct Fd(ManuallyDrop<OwnedFd>);

impl Fd {
    /// For a caller that takes care of closing it: dropped as an [`OwnedFd`], it is closed by libc's function.
    pub fn into_owned(mut self) -> OwnedFd {
        // SAFETY: taken once, as the drop is forgotten.
        let owned = unsafe { ManuallyDrop::take(&mut self.0) };
        std::mem::forget(self);
        owned
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl Deref for Fd {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: it is ours alone, and std's drop of it never runs.
        unsafe { rustix::io::close(self.0.as_raw_fd()) }
    }
}
