//! Where the attachment of a process is.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use towpath_client::Client;

use crate::Result;
use crate::errno::fail;

/// The attachment that a process has, or is to have.
#[derive(Debug)]
pub(crate) struct ProcessAttachment {
    /// Page with the attachment's pointer. The kernel wipes it in a child that is forked without
    /// this library (inside libc, or by a bare clone). Otherwise the child would share its parent's
    /// rings. Null before there is a page.
    page: AtomicPtr<AtomicPtr<Client>>,
    is_active: AtomicBool,
    /// Attachments of this process, and of its parents before a fork, none of which
    /// is freed. LeakSanitizer follows pointers in static variables, and none in mapped pages.
    kept: AtomicPtr<Kept>,
}

/// An attachment, and those before.
#[expect(dead_code, reason = "LeakSanitizer reads the pointers")]
#[derive(Debug)]
struct Kept {
    client: *mut Client,
    before: *mut Kept,
}

impl ProcessAttachment {
    /// There is none, nor is there to be one.
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
        // SAFETY: the page is set once and stays mapped; what it holds is a leaked box, or null.
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

    /// There is to be an attachment: from now on sockets are the engine's, or fail.
    pub fn activate(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Makes the place of the attachment's pointer. Once, before [`Self::install`].
    pub fn make_page(&self) -> Result<()> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        // SAFETY: a fresh page, zeroed, which is a null AtomicPtr, and never unmapped. A kernel
        // without the advice (before 4.14) keeps the page in such children.
        let page = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let page = mmap_anonymous(null_mut(), 4096, prot, MapFlags::PRIVATE)?;
            let _ = madvise(page, 4096, Advice::LinuxWipeOnFork);
            page.cast::<AtomicPtr<Client>>()
        };
        self.page.store(page, Ordering::Release);
        Ok(())
    }

    /// From now on the process's attachment is this one.
    pub fn install(&self, client: Client) {
        // SAFETY: set by `make_page`, never unmapped.
        if let Some(page) = unsafe { self.page.load(Ordering::Acquire).as_ref() } {
            let client = Box::into_raw(Box::new(client));
            let kept = Box::new(Kept { client, before: self.kept.load(Ordering::Relaxed) });
            self.kept.store(Box::into_raw(kept), Ordering::Relaxed);
            page.store(client, Ordering::Release);
        }
    }
}
