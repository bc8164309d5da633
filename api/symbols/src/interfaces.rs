//! Exports the functions that list network interfaces. The result contains the interfaces of the
//! stack instead of the kernel's.

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint, ifaddrs};
use towpath_posix::interface;

use crate::{POSIX, answer, real};

/// Returns a list that is one block of malloc, as in glibc. Therefore it can be freed by the
/// freeifaddrs of glibc and of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(to: *mut *mut ifaddrs) -> c_int {
    if !POSIX.is_active() {
        // SAFETY: the caller upholds the C function's contract.
        return unsafe { real::getifaddrs(to) };
    }
    // SAFETY: `to` is writable, by the contract of getifaddrs.
    answer::zero(interface::getifaddrs(&POSIX).map(|first| unsafe { *to = first }))
}

/// Frees a list of glibc or of this library. Both are one block of malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn if_nametoindex(name: *const c_char) -> c_uint {
    // SAFETY: the caller upholds the C function's contract.
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
    // SAFETY: the caller upholds the C function's contract.
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

/// Returns an array that if_freenameindex(3) of libc can free.
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
