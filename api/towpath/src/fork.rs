//! Detects whether this process is a forked child of the process that created a stack.
//!
//! A page of memory contains the process id, so that a check needs no system call. The kernel wipes
//! the page in a child (MADV_WIPEONFORK, madvise(2)), so that the id is 0 there.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::StartError;

/// The process in which a stack was created, by its process id and the page that contains this id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pid: u32,
    page: &'static AtomicU32,
}

static PAGE: OnceLock<&'static AtomicU32> = OnceLock::new();
/// Length of the mapping in bytes; the kernel rounds it up to a page.
const LEN: usize = size_of::<AtomicU32>();

impl Origin {
    /// Returns the calling process as the origin of a new stack.
    ///
    /// # Errors
    /// Returns [`StartError::System`] with ENOMEM, or with EINVAL if the kernel is older than 4.14
    /// and cannot wipe pages.
    pub fn here() -> Result<Self, StartError> {
        let page = match PAGE.get() {
            Some(page) => page,
            None => {
                let fresh = page().map_err(|errno| StartError::System(errno.into()))?;
                PAGE.get_or_init(|| fresh)
            }
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        if page.swap(pid, Relaxed) != pid {
            // The process has created no stack before. If the process is a forked child, the thread
            // has a new id, so clear the cached id of the parent's thread.
            towpath_ring::forget_thread_id();
        }
        Ok(Self { pid, page })
    }

    /// Returns whether this process has created a stack itself. False in a forked child that has
    /// only inherited stacks.
    pub fn is_in_place() -> bool {
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        PAGE.get().is_some_and(|page| page.load(Relaxed) == pid)
    }

    /// Returns whether this process is a forked child of the process that `self` describes.
    #[inline]
    pub fn is_elsewhere(self) -> bool {
        self.page.load(Relaxed) != self.pid
    }
}

fn page() -> io::Result<&'static AtomicU32> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: `at` is the new mapping of this length, which is not in use yet.
    if let Err(errno) = unsafe { madvise(at, LEN, Advice::LinuxWipeOnFork) } {
        // SAFETY: `at` is the new mapping of this length, which is not in use.
        let _ = unsafe { munmap(at, LEN) };
        return Err(errno);
    }
    // SAFETY: the mapping is aligned to a page, zeroed, and never unmapped.
    Ok(unsafe { &*at.cast::<AtomicU32>() })
}
