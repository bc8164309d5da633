//! Exports the functions that read and set limits of address space and descriptors: see
//! [`towpath_posix::limit`].

use libc::{c_int, pid_t, rlimit, rlimit64};
use towpath_posix::limit::{is_translated, set_lowered, to_kernel, to_program};
use towpath_posix::{Errno, Result};

use crate::{POSIX, answer, real};

type Resource = libc::__rlimit_resource_t;

/// Implements prlimit(2) for this process. Converts between the limits that the program sees and
/// those of the kernel.
///
/// # Safety
/// `new` and `old` must each be null or point to a structure.
unsafe fn translate(resource: Resource, new: *const rlimit, old: *mut rlimit) -> Result<()> {
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` outlives the call.
    unsafe { ask(resource, 0, (&raw mut before).addr()) }?;
    // Read `new` before `old` is written, because both may point to the same structure. SAFETY:
    // `new` is null or points to a structure, by the contract of this function.
    if let Some(new) = unsafe { new.as_ref() } {
        let told = to_program(&POSIX, resource, before);
        let kernels = to_kernel(&POSIX, resource, *new, before)?;
        // SAFETY: `kernels` outlives the call.
        unsafe { ask(resource, (&raw const kernels).addr(), 0) }?;
        if resource == libc::RLIMIT_NOFILE && new.rlim_max != told.rlim_max {
            set_lowered(&POSIX, new.rlim_max);
        }
        // SAFETY: `old` is null or points to a structure, by the contract of this function.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = told;
        }
        return Ok(());
    }
    // SAFETY: `old` is null or points to a structure, by the contract of this function.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = to_program(&POSIX, resource, before);
    }
    Ok(())
}

/// Calls the kernel's prlimit(2) on this process.
///
/// # Safety
/// `new` and `old` must each be null or the address of a structure.
unsafe fn ask(resource: Resource, new: usize, old: usize) -> Result<()> {
    let args = [0, resource as usize, new, old, 0, 0];
    // SAFETY: `new` and `old` are null or addresses of structures, by this function's contract.
    let done = unsafe { towpath_client::syscall::syscall(libc::SYS_prlimit64 as usize, args) };
    done.map(drop).map_err(Errno)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: Resource, limit: *mut rlimit) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if limit.is_null() || !is_translated(&POSIX, 0, resource) {
            return real::getrlimit(resource, limit);
        }
        answer::zero(translate(resource, std::ptr::null(), limit))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: Resource, limit: *const rlimit) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if limit.is_null() || !is_translated(&POSIX, 0, resource) {
            return real::setrlimit(resource, limit);
        }
        answer::zero(translate(resource, limit, std::ptr::null_mut()))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: Resource,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if !is_translated(&POSIX, pid, resource) {
            return real::prlimit(pid, resource, new, old);
        }
        answer::zero(translate(resource, new, old))
    }
}

// On 64-bit machines, rlimit and rlimit64 are the same structure.
const _: () = assert!(size_of::<rlimit>() == size_of::<rlimit64>());

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: Resource, limit: *mut rlimit64) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { getrlimit(resource, limit.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: Resource, limit: *const rlimit64) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { setrlimit(resource, limit.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: Resource,
    new: *const rlimit64,
    old: *mut rlimit64,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { prlimit(pid, resource, new.cast(), old.cast()) }
}
