//! Exports directory reads that hide this library's internal descriptors in /proc/self/fd. The
//! program did not open these descriptors, and close(2), fcntl(2) and fstat(2) report them as
//! closed.
//!
//! If an entry has the number of an internal descriptor, the directory's path is read by
//! readlink(2). Therefore every path to /proc/self/fd is recognized.

use std::ffi::CStr;

use libc::{DIR, c_int, c_void, dirent, dirent64, size_t, ssize_t};
use towpath_posix::identity;

use crate::{POSIX, real};

/// Byte offsets of the entry's length and, below, of its name in `struct linux_dirent64`.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(folder: *mut DIR) -> *mut dirent {
    // SAFETY: the caller upholds the C function's contract. An entry of libc has a valid name.
    unsafe {
        loop {
            let entry = real::readdir(folder);
            if entry.is_null() || !is_hidden(folder, &(*entry).d_name) {
                return entry;
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(folder: *mut DIR) -> *mut dirent64 {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        loop {
            let entry = real::readdir64(folder);
            if entry.is_null() || !is_hidden(folder, &(*entry).d_name) {
                return entry;
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir_r(
    folder: *mut DIR,
    entry: *mut dirent,
    result: *mut *mut dirent,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        loop {
            let failed = real::readdir_r(folder, entry, result);
            if failed != 0 || (*result).is_null() || !is_hidden(folder, &(**result).d_name) {
                return failed;
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64_r(
    folder: *mut DIR,
    entry: *mut dirent64,
    result: *mut *mut dirent64,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        loop {
            let failed = real::readdir64_r(folder, entry, result);
            if failed != 0 || (*result).is_null() || !is_hidden(folder, &(**result).d_name) {
                return failed;
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getdents64(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { getdents64_by(fd, to, || real::getdents64(fd, to, len)) }
}

/// Implements getdents64(2). `real` calls libc's function.
pub unsafe fn getdents64_by(
    fd: c_int,
    to: *mut c_void,
    mut real: impl FnMut() -> ssize_t,
) -> ssize_t {
    loop {
        let len = real();
        if len <= 0 {
            return len;
        }
        // SAFETY: the call has just written `len` bytes to `to`.
        let entries = unsafe { std::slice::from_raw_parts_mut(to.cast(), len as usize) };
        match without_hidden(entries, || identity::lists_descriptors(fd)) {
            // A result of 0 would mean the end of the directory, so read further entries if all
            // were hidden.
            0 => {}
            left => return left as ssize_t,
        }
    }
}

unsafe fn is_hidden(folder: *mut DIR, name: &[libc::c_char]) -> bool {
    // SAFETY: `name` is NUL-terminated, because libc returned it.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    // SAFETY: libc has just read from this directory stream.
    identity::is_hidden(&POSIX, name.to_bytes())
        && identity::lists_descriptors(unsafe { libc::dirfd(folder) })
}

/// Removes the entries of internal descriptors from a directory listing, and returns its remaining
/// length in bytes. `in_list` returns whether the directory is /proc/PID/fd. `in_list` is called
/// only for an entry that may be hidden.
fn without_hidden(entries: &mut [u8], mut in_list: impl FnMut() -> bool) -> usize {
    let (mut at, mut left) = (0, 0);
    while let Some(entry) = entries.get(at..).filter(|rest| rest.len() > NAME_AT) {
        let len = usize::from(u16::from_ne_bytes([entry[LENGTH_AT], entry[LENGTH_AT + 1]]));
        let Some(name) = entry.get(NAME_AT..len) else { break };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if !(identity::is_hidden(&POSIX, name) && in_list()) {
            entries.copy_within(at..at + len, left);
            left += len;
        }
        at += len;
    }
    left
}
