//! The process's one attachment.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use towpath_client::{Client, Process, Region};
use towpath_shm::Fd;
use towpath_shm::token::Run;

use crate::errno::fail;
use crate::{Errno, Result, exec, rights};

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

/// Attaches as the environment says; without TOWPATH_CONTROL, or in a set-user-id program, nothing.
///
/// # Errors
/// ENOMEM when this process has a limit of address space (RLIMIT_AS) that leaves no room for the shared memory.
/// When it fails there is no attachment, which every call says.
pub fn attach_from_environment() -> Result<()> {
    // SAFETY: getauxval only looks.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Ok(());
    }
    let Some(number) = exec::control_number() else {
        return Ok(());
    };
    // SAFETY: the number was made for us by whoever started this program.
    let control = unsafe { towpath_client::control_from_number(number) };
    ACTIVE.store(true, Ordering::Relaxed);
    control.map_or(Ok(()), attach)
}

/// Attaches over a control socket, with the sockets that this process image was born with.
///
/// # Errors
/// ENETDOWN when nobody answers, EPROTO when the engine is of another build, ENOMEM when this process may not have
/// the address space (RLIMIT_AS), EMFILE when it has no descriptors left.
pub fn attach(control: Fd) -> Result<()> {
    let claims = rights::inherited();
    let mut born_with = Vec::new();
    let held = |region: &Region, run: Run| {
        born_with.extend(
            claims.iter().filter_map(|claim| Some((claim.fd(), claim.resolve(region, run)?))),
        );
        born_with.iter().map(|&(_, socket)| socket).collect()
    };
    let client = Client::attach(&PROCESS, control, (!claims.is_empty()).then_some(held))?;
    for (fd, socket) in born_with {
        PROCESS.descriptors.set_socket(fd, socket);
    }
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
    ACTIVE.store(true, Ordering::Relaxed);
    install(client);
    Ok(())
}

pub(crate) fn install(client: Client) {
    // SAFETY: set by `attach`, never unmapped.
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
