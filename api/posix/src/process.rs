//! The process's one attachment.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use towpath_client::descriptors::Entry;
use towpath_client::syscall::SignalsBlocked;
use towpath_client::{Client, Error, Region, descriptors};
use towpath_shm::Fd;
use towpath_shm::control::purpose;
use towpath_shm::layout::{Command, op};
use towpath_shm::token::Run;

use crate::errno::fail;
use crate::{Errno, Result, exec, hub, rights, table};

// Where the attachment's pointer is: a page that the kernel wipes in a child that was forked without
// us (inside libc, or by a bare clone). Such a child would share its parent's rings.
static PAGE: AtomicPtr<AtomicPtr<Client>> = AtomicPtr::new(std::ptr::null_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU32 = AtomicU32::new(0);

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

/// Whether internet sockets are ours here (or were to be).
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Attaches as the environment says; without TOWPATH_CONTROL, or in a set-user-id program, nothing.
pub fn attach_from_environment() {
    // SAFETY: getauxval only looks.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let Some(number) = exec::control_number() else {
        return;
    };
    // SAFETY: the number was made for us by whoever started this program.
    let control = unsafe { towpath_client::control_from_number(number) };
    ACTIVE.store(true, Ordering::Relaxed);
    if let Some(control) = control {
        // When it fails there is no attachment, which every call says.
        let _ = attach(control);
    }
}

/// Attaches over a control socket, with the sockets that this process image was born with.
pub fn attach(control: Fd) -> Result<()> {
    let claims = rights::inherited();
    let mut born_with = Vec::new();
    let held = |region: &Region, run: Run| {
        born_with.extend(
            claims.iter().filter_map(|claim| Some((claim.fd(), claim.resolve(region, run)?))),
        );
        born_with.iter().map(|&(_, socket)| socket).collect()
    };
    let client = Client::attach(control, (!claims.is_empty()).then_some(held))?;
    for (fd, socket) in born_with {
        descriptors::set_socket(fd, socket);
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

fn install(client: Client) {
    // SAFETY: set by `attach`, never unmapped.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        page.store(Box::into_raw(Box::new(client)), Ordering::Release);
    }
}

/// Changes with every fork: what belongs to the parent's attachment is known by an older number.
pub fn fork_count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// fork(2): `real` is libc's. The child gets a channel of its own, on which it holds what the
/// parent holds.
pub fn fork(real: impl FnOnce() -> i32) -> i32 {
    let Ok(client) = client() else {
        return real();
    };
    // A handler that ran between here and there might want the locks, or open what the child then has.
    let _signals = SignalsBlocked::new();
    // In a signal handler on top of a call that has a lock, or is at a FIFO: parent and child would both
    // go on with it.
    let refused = || {
        // SAFETY: errno's own place in this thread.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        -1
    };
    let (Some(exec_lock), Ok(mut hub)) = (exec::lock(), hub::lock()) else {
        return refused();
    };
    let cloned = match client.clone_channel(purpose::FORK) {
        Ok(cloned) => Some(cloned),
        Err(Error::Refused(libc::EAGAIN)) => return refused(),
        // A dead engine cannot clone, nor is there a channel without descriptors left in this process,
        // which fork needs none of. The child finds out for itself.
        Err(_) => None,
    };
    // In the order in which others take them: who begins a datagram in parts has the first of these, looks
    // into the others, and may ask the engine.
    let (corked, options) = (crate::cork::lock(), crate::option::lock());
    let known = (crate::interface::lock(), crate::netlink::lock());
    let Some(client_locks) = client.lock_all().filter(|_| !towpath_client::is_inside()) else {
        return refused();
    };
    let locks = (client_locks, known, options, corked);
    // The child gets entries and descriptors as they are at one moment.
    let table = table::lock();
    if table.is_nested() {
        return refused();
    }
    let pid = real();
    if pid == 0 {
        FORKS.fetch_add(1, Ordering::Relaxed);
        towpath_client::forked();
        // Otherwise the page is empty, and every call says so.
        if let Some(Ok(own)) = cloned.map(|cloned| client.forked(cloned)) {
            settle(&own);
            install(own);
        }
        client.abandon();
        hub.forked();
    } else {
        // What the child has now.
        drop(cloned);
    }
    drop((table, locks, hub, exec_lock));
    pid
}

/// In the child after fork: says what it has. Other threads of the parent may have opened and closed
/// sockets since the channel was cloned.
fn settle(client: &Client) {
    for (_, entry) in descriptors::ours(0) {
        if let Entry::Socket(socket) = entry {
            client.socket_command(socket, op::LIST, 0, 0);
        }
    }
    client.command(&Command { op: op::SETTLED, ..Command::default() });
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
