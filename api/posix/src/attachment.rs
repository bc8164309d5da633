//! [`ProcessAttachment`], the attachment of a process to its engine.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use towpath_client::Client;

use crate::Result;
use crate::errno::fail;

/// Length in bytes of the memory page that contains the pointer to the process's connection to the
/// engine.
const PAGE: usize = 4096;

/// The connection (attachment) of a process to its engine, if it has one.
#[derive(Debug)]
pub(crate) struct ProcessAttachment {
    /// Page that contains the pointer to the connection to the engine; null before
    /// [`Self::make_page`]. If this library does not see a fork (inside libc, or by a raw clone),
    /// the kernel zeroes the page in the child. Otherwise the child would use its parent's command
    /// rings.
    page: AtomicPtr<AtomicPtr<Client>>,
    is_active: AtomicBool,
    /// List of this process's connections to engines, including those copied from its parents by
    /// fork(2). Connections are never freed. Without this list LeakSanitizer would report them,
    /// because it does not search mapped pages for pointers.
    kept: AtomicPtr<Kept>,
}

/// Entry of the list of attachments: one attachment, and a pointer to the next older entry.
#[derive(Debug)]
struct Kept {
    client: *mut Client,
    before: *mut Kept,
}

impl ProcessAttachment {
    /// Creates the state of a process without an attachment.
    pub const fn new() -> Self {
        Self {
            page: AtomicPtr::new(null_mut()),
            is_active: AtomicBool::new(false),
            kept: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the connection of this process to its engine, see [`crate::Posix::client`].
    #[inline]
    pub fn client(&self) -> Result<&'static Client> {
        // SAFETY: the page is set once, and stays mapped until `remove`. The pointer in the page is
        // null, or points to a leaked box that only `remove` frees.
        let client = unsafe {
            let page = self.page.load(Ordering::Acquire).as_ref();
            page.and_then(|page| page.load(Ordering::Acquire).as_ref())
        };
        match client {
            Some(client) => Ok(client),
            None => fail(libc::ENETDOWN),
        }
    }

    /// Returns whether this process uses the sockets of an engine (the network stack), see
    /// [`crate::Posix::is_active`].
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Declares that this process uses an engine. From now on its socket calls use the engine's
    /// sockets, or fail if there is no connection to the engine.
    pub fn activate(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Maps the page for the pointer to the connection to the engine. Called once, before
    /// [`Self::install`].
    pub fn make_page(&self) -> Result<()> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: the mapping is new, and zeroed (a null AtomicPtr). Only `remove` unmaps it. Linux
        // before 4.14 ignores the advice MADV_WIPEONFORK, and does not zero the page in forked
        // children.
        let page = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let page = mmap_anonymous(null_mut(), PAGE, prot, MapFlags::PRIVATE)?;
            let _ = madvise(page, PAGE, Advice::LinuxWipeOnFork);
            page.cast::<AtomicPtr<Client>>()
        };
        self.page.store(page, Ordering::Release);
        Ok(())
    }

    /// Makes `client` the connection of this process to its engine.
    pub fn install(&self, client: Client) {
        // SAFETY: `make_page` has set the page, which stays mapped until `remove`.
        if let Some(page) = unsafe { self.page.load(Ordering::Acquire).as_ref() } {
            let client = Box::into_raw(Box::new(client));
            let kept = Box::new(Kept { client, before: self.kept.load(Ordering::Relaxed) });
            self.kept.store(Box::into_raw(kept), Ordering::Relaxed);
            page.store(client, Ordering::Release);
        }
    }

    /// Drops all connections to engines, and unmaps the page with the pointer. The state is then
    /// that of [`Self::new`].
    ///
    /// # Safety
    /// No reference that [`Self::client`] returned may be in use, now or later.
    pub unsafe fn remove(&self) {
        let page = self.page.swap(null_mut(), Ordering::AcqRel);
        if !page.is_null() {
            // SAFETY: `make_page` has mapped the page, and no reference to it remains.
            let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE) };
        }
        let mut next = self.kept.swap(null_mut(), Ordering::AcqRel);
        while !next.is_null() {
            // SAFETY: `install` has leaked both boxes, and only this loop takes them back.
            let kept = unsafe { Box::from_raw(next) };
            // SAFETY: `install` has leaked this box, and the caller ensures that the attachment is
            // not in use.
            drop(unsafe { Box::from_raw(kept.client) });
            next = kept.before;
        }
        self.is_active.store(false, Ordering::Relaxed);
    }
}
