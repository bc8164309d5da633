//! The attachment of a process to its engine.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use towpath_client::Client;

use crate::Result;
use crate::errno::fail;

/// The attachment of a process to its engine, or none yet.
#[derive(Debug)]
pub(crate) struct ProcessAttachment {
    /// Page that contains the pointer to the attachment; null before [`Self::make_page`]. The
    /// kernel zeroes the page in a child that is forked without this library (inside libc, or by a
    /// raw clone). Otherwise such a child would share its parent's rings.
    page: AtomicPtr<AtomicPtr<Client>>,
    is_active: AtomicBool,
    /// Attachments of this process, and of its parents before a fork, which are never freed.
    /// LeakSanitizer follows pointers in static variables, but not those in mapped pages.
    kept: AtomicPtr<Kept>,
}

/// Entry of the list of attachments: one attachment, and the next older entry.
#[expect(dead_code, reason = "LeakSanitizer reads the pointers")]
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

    /// See [`crate::Posix::client`].
    #[inline]
    pub fn client(&self) -> Result<&'static Client> {
        // SAFETY: the page is set once and stays mapped. The pointer in the page is null or that of
        // a leaked box.
        let client = unsafe {
            let page = self.page.load(Ordering::Acquire).as_ref();
            page.and_then(|page| page.load(Ordering::Acquire).as_ref())
        };
        match client {
            Some(client) => Ok(client),
            None => fail(libc::ENETDOWN),
        }
    }

    /// See [`crate::Posix::is_active`].
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Declares that this process uses an engine: from now on its sockets are those of the engine,
    /// or fail.
    pub fn activate(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Maps the page for the attachment's pointer. Called once, before [`Self::install`].
    pub fn make_page(&self) -> Result<()> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: the mapping is new, zeroed (a null AtomicPtr), and never unmapped. A kernel
        // before 4.14 does not know the advice and does not zero the page in children.
        let page = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let page = mmap_anonymous(null_mut(), 4096, prot, MapFlags::PRIVATE)?;
            let _ = madvise(page, 4096, Advice::LinuxWipeOnFork);
            page.cast::<AtomicPtr<Client>>()
        };
        self.page.store(page, Ordering::Release);
        Ok(())
    }

    /// Sets the attachment of this process.
    pub fn install(&self, client: Client) {
        // SAFETY: `make_page` has set the page, which is never unmapped.
        if let Some(page) = unsafe { self.page.load(Ordering::Acquire).as_ref() } {
            let client = Box::into_raw(Box::new(client));
            let kept = Box::new(Kept { client, before: self.kept.load(Ordering::Relaxed) });
            self.kept.store(Box::into_raw(kept), Ordering::Relaxed);
            page.store(client, Ordering::Release);
        }
    }
}
