//! The stack's interfaces instead of the kernel's.

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint, ifaddrs};
use towpath_posix::interface;

use crate::{POSIX, answer, real};

/// Returns one block from malloc, as glibc's own does, so that either freeifaddrs can free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(to: *mut *mut ifaddrs) -> c_int {
    if !POSIX.is_active() {
        // SAFETY: the caller upholds the C function's contract, here and in the whole file.
        return unsafe { real::getifaddrs(to) };
    }
    // SAFETY: as above.
    answer::zero(interface::getifaddrs(&POSIX).map(|first| unsafe { *to = first }))
}

/// Frees our own or glibc's list: both are one block from malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    // SAFETY: see `getifaddrs`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
    // SAFETY: see `getifaddrs`.
    unsafe {
        if !POSIX.is_active() {
            return real::if_nametoindex(name);
        }
        interface::index_of(&POSIX, CStr::from_ptr(name)).unwrap_or_else(|errno| {
            answer::set_errno(errno.0);
            0
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
    // SAFETY: see `getifaddrs`.
    unsafe {
        if !POSIX.is_active() {
            return real::if_indextoname(index, name);
        }
        match interface::name_of(&POSIX, index) {
            Ok(found) => {
                std::ptr::copy_nonoverlapping(found.as_ptr(), name.cast(), found.len());
                name
            }
            Err(errno) => {
                answer::set_errno(errno.0);
                std::ptr::null_mut()
            }
        }
    }
}

/// Returns an array that libc's if_freenameindex can free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nameindex() -> *mut libc::if_nameindex {
    if !POSIX.is_active() {
        // SAFETY: the caller upholds the C function's contract.
        return unsafe { real::if_nameindex() };
    }
    interface::nameindex(&POSIX).unwrap_or_else(|errno| {
        answer::set_errno(errno.0);
        std::ptr::null_mut()
    })
}
