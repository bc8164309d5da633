//! Opening files: of interest for one of them, see [`towpath_posix::resolver`].

use std::ffi::CStr;

use libc::{FILE, c_char, c_int, mode_t};
use towpath_posix::resolver;

use crate::{answer, real};

/// What the program gets in place of the file; None: the file.
pub(crate) unsafe fn instead(path: *const c_char, flags: c_int) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a path, as the caller of a libc function passes it.
    resolver::open(unsafe { CStr::from_ptr(path) }, flags).map(answer::int)
}

/// The mode is there when the flags ask for it; it is in a register or on the stack where a third parameter
/// would be, and the kernel does not look at it otherwise. In every function of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as called, here and in every function of this file.
    unsafe { instead(path, flags).unwrap_or_else(|| real::open(path, flags, mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::open64(path, flags, mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::openat(dir, path, flags, mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::openat64(dir, path, flags, mode)) }
}

/// What _FORTIFY_SOURCE makes of open without a mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::__open_2(path, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::__open64_2(path, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::__openat_2(dir, path, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: see `open`.
    unsafe { instead(path, flags).unwrap_or_else(|| real::__openat64_2(dir, path, flags)) }
}

/// The stream that `fopen` makes of the file in memory; None: of the file.
unsafe fn stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    // SAFETY: as the program called fopen.
    unsafe {
        let reads = !mode.is_null() && *mode == b'r' as c_char;
        if !reads || CStr::from_ptr(mode).to_bytes().contains(&b'+') {
            return None;
        }
        let cloexec = CStr::from_ptr(mode).to_bytes().contains(&b'e');
        let fd = instead(path, if cloexec { libc::O_CLOEXEC } else { 0 })?;
        Some(if fd < 0 { std::ptr::null_mut() } else { real::fdopen(fd, mode) })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: see `open`.
    unsafe { stream(path, mode).unwrap_or_else(|| real::fopen(path, mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: see `open`.
    unsafe { stream(path, mode).unwrap_or_else(|| real::fopen64(path, mode)) }
}
