//! Listings of /proc/self/fd, without the library's own descriptors. The program has not opened
//! these, and close(2), fcntl(2) and fstat(2) say that they are not open.
//!
//! An entry is looked at twice only if its name is the number of such a descriptor. Then the kernel
//! is asked which folder it is in, so that it does not matter how the program came to the folder.

use std::ffi::CStr;

use libc::{DIR, c_int, c_void, dirent, dirent64, size_t, ssize_t};
use towpath_posix::identity;

use crate::{POSIX, real};

/// `struct linux_dirent64`: where the length of an entry stands, and its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(folder: *mut DIR) -> *mut dirent {
    // SAFETY: as called, here and in every function of this file: an entry that libc gives has a
    // name.
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
    // SAFETY: see `readdir`.
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
    // SAFETY: see `readdir`.
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
    // SAFETY: see `readdir`.
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
    // SAFETY: see `readdir`.
    unsafe { getdents64_by(fd, to, || real::getdents64(fd, to, len)) }
}

/// getdents64(2), done by `real`.
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
        // SAFETY: the call has just written as much.
        let entries = unsafe { std::slice::from_raw_parts_mut(to.cast(), len as usize) };
        match without_hidden(entries, || identity::lists_descriptors(fd)) {
            // No entry at all would be the end of the folder.
            0 => {}
            left => return left as ssize_t,
        }
    }
}

unsafe fn is_hidden(folder: *mut DIR, name: &[libc::c_char]) -> bool {
    // SAFETY: libc ends names with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    // SAFETY: a folder that libc has just read from.
    identity::is_hidden(&POSIX, name.to_bytes())
        && identity::lists_descriptors(unsafe { libc::dirfd(folder) })
}

/// Takes entries out that are hidden, and gives the length of the others. `in_list` says whether
/// they are of a list of descriptors.
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
