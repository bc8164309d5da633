//! Whether this process is a child of the one that made a stack.
//!
//! A page of the process says so without a system call. The kernel wipes the page in a child
//! (MADV_WIPEONFORK, madvise(2)): the process id that was written there is 0 in the child.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::StartError;

/// The process that a stack was made in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pid: u32,
    page: &'static AtomicU32,
}

static PAGE: OnceLock<&'static AtomicU32> = OnceLock::new();
/// Length of the mapping; the kernel rounds it up to a page.
const LEN: usize = size_of::<AtomicU32>();

impl Origin {
    /// The calling process.
    ///
    /// # Errors
    /// [`StartError::System`] with ENOMEM, or with EINVAL of a kernel before 4.14, which cannot
    /// wipe pages.
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
            // The first stack of this process. In a child the thread has another id than in its
            // parent.
            towpath_ring::forget_thread_id();
        }
        Ok(Self { pid, page })
    }

    /// Whether the process is the last one that made a stack, and no child of it.
    pub fn is_in_place() -> bool {
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        PAGE.get().is_some_and(|page| page.load(Relaxed) == pid)
    }

    /// Whether this process is another one: a child of it.
    #[inline]
    pub fn is_elsewhere(self) -> bool {
        self.page.load(Relaxed) != self.pid
    }
}

fn page() -> io::Result<&'static AtomicU32> {
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let at = unsafe {
        mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: the mapping of above, which no child has yet.
    if let Err(errno) = unsafe { madvise(at, LEN, Advice::LinuxWipeOnFork) } {
        // SAFETY: as above.
        let _ = unsafe { munmap(at, LEN) };
        return Err(errno);
    }
    // SAFETY: aligned to a page, zeroed, and never unmapped.
    Ok(unsafe { &*at.cast::<AtomicU32>() })
}
