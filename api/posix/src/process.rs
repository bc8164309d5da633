//! The process's one attachment.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use towpath_client::{Client, Error, Process};
use towpath_shm::control::{Reply, Request};

use crate::errno::fail;
use crate::{Errno, Result};

// Where the attachment's pointer is: a page that the kernel wipes in a child that was forked without
// us (inside libc, or by a bare clone). Such a child would share its parent's rings.
static PAGE: AtomicPtr<AtomicPtr<Client>> = AtomicPtr::new(std::ptr::null_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// What it has once.
pub static PROCESS: Process = Process::new();

/// The attachment.
///
/// # Errors
/// ENETDOWN when there was to be one and it did not come about: nothing falls back to the kernel
/// in silence.
#[inline]
pub fn client() -> Result<&'static Client> {
    // SAFETY: the page is set once and stays mapped; what it holds is a leaked box, or null.
    let client = unsafe {
        let page = PAGE.load(Ordering::Acquire).as_ref();
        page.and_then(|page| page.load(Ordering::Acquire).as_ref())
    };
    match client {
        Some(client) => Ok(client),
        None => fail(libc::ENETDOWN),
    }
}

/// Asks the engine.
pub(crate) fn call(request: &Request) -> Result<Reply> {
    let client = client()?;
    match client.call(request) {
        // A handler forked before it was asked, and this is the child.
        Err(Error::Forked) => match self::client()? {
            own if !ptr::eq(own, client) => call(request),
            _ => fail(libc::ENETDOWN),
        },
        result => Ok(result?),
    }
}

/// Whether AF_INET and AF_INET6 sockets are the engine's. Also where attaching to it failed, and every call gives
/// ENETDOWN.
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Lets a call wait before it tells that the engine has gone, if it has.
///
/// A server that logs an error of accept(2) and calls it again would otherwise fill a disk: nothing that it
/// does can help, and nothing makes it wait. Nobody waits for a network that is not there.
pub fn rest_when_engine_is_gone() {
    let gone = is_active() && client().is_ok_and(|client| !client.check_alive());
    if gone {
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: REST_NS };
        // A signal may end it early.
        let _ = rustix::thread::nanosleep(&pause);
    }
}

/// Ten errors per second and thread: some 100 MB of messages in a day.
const REST_NS: i64 = 100_000_000;

/// There is to be an attachment: from now on sockets are the engine's, or fail.
pub(crate) fn activate() {
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Makes the place of the attachment's pointer. Once, before [`install`].
pub(crate) fn make_page() -> Result<()> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a fresh page, zeroed, which is a null AtomicPtr, and never unmapped. A kernel without
    // the advice (before 4.14) keeps the page in such children.
    let page = unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(std::ptr::null_mut(), 4096, prot, MapFlags::PRIVATE)?;
        let _ = madvise(page, 4096, Advice::LinuxWipeOnFork);
        page.cast::<AtomicPtr<Client>>()
    };
    PAGE.store(page, Ordering::Release);
    Ok(())
}

/// From now on the process's attachment is this one.
pub(crate) fn install(client: Client) {
    // SAFETY: set by `make_page`, never unmapped.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        page.store(Box::into_raw(Box::new(client)), Ordering::Release);
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// CAP_NET_ADMIN.
pub(crate) const CAP_NET_ADMIN: u32 = 12;
/// CAP_NET_RAW.
pub(crate) const CAP_NET_RAW: u32 = 13;

/// Whether this thread has a privilege: what the kernel asks before it changes what others chose.
pub(crate) fn may(capability: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable, for capabilities 0..32 and 32..64.
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the header and room for both structs of version 3 outlive the call.
    let asked = unsafe { towpath_client::syscall::syscall(libc::SYS_capget as usize, args) };
    asked.is_ok() && sets[0] & 1 << capability != 0
}
