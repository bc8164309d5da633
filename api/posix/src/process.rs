//! The process's one attachment.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use towpath_client::{Client, Region, descriptors};

use crate::errno::fail;
use crate::{Errno, Result, exec, hub, rights};

static CLIENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
static FAILED: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The attachment.
///
/// # Errors
/// ENETDOWN when there was to be one and it did not come about: nothing falls back to the kernel
/// in silence.
#[inline]
pub fn client() -> Result<&'static Client> {
    // SAFETY: set once from a leaked box (again in a forked child), never freed.
    match unsafe { CLIENT.load(Ordering::Acquire).as_ref() } {
        Some(client) => Ok(client),
        None => fail(libc::ENETDOWN),
    }
}

/// Whether internet sockets are ours here (or were to be).
#[inline]
pub fn is_active() -> bool {
    !CLIENT.load(Ordering::Relaxed).is_null() || FAILED.load(Ordering::Relaxed)
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
    match control {
        Some(control) => {
            if attach(control).is_err() {
                FAILED.store(true, Ordering::Relaxed);
            }
        }
        None => FAILED.store(true, Ordering::Relaxed),
    }
}

/// Attaches over a control socket, with the sockets that this process image was born with.
pub fn attach(control: OwnedFd) -> Result<()> {
    let claims = rights::inherited();
    let mut born_with = Vec::new();
    let held = |region: &Region| {
        born_with.extend(claims.iter().filter_map(|claim| Some((claim.fd(), claim.resolve(region)?))));
        born_with.iter().map(|&(_, socket)| socket).collect()
    };
    let client = Client::attach(control, (!claims.is_empty()).then_some(held))?;
    for (fd, socket) in born_with {
        descriptors::set_socket(fd, socket);
    }
    install(client);
    Ok(())
}

fn install(client: Client) {
    CLIENT.store(Box::into_raw(Box::new(client)), Ordering::Release);
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
    // A dead engine cannot clone; the child finds out for itself.
    let cloned = client.clone_channel().ok();
    let exec_lock = exec::lock();
    let mut hub = hub::lock_all();
    let locks = client.lock_all();
    let pid = real();
    if pid == 0 {
        FORKS.fetch_add(1, Ordering::Relaxed);
        towpath_client::forked();
        match cloned.map(|cloned| client.forked(cloned)) {
            Some(Ok(own)) => install(own),
            _ => {
                CLIENT.store(std::ptr::null_mut(), Ordering::Release);
                FAILED.store(true, Ordering::Relaxed);
            }
        }
        client.abandon();
        hub.forked();
    } else if let Some(cloned) = cloned {
        cloned.close();
    }
    drop((locks, hub, exec_lock));
    pid
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
