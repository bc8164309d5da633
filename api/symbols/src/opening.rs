//! Exports the functions that open files. A few files, such as /etc/resolv.conf, are replaced by
//! generated ones: see [`towpath_posix::resolver`], [`towpath_posix::proc_net`] and
//! [`towpath_posix::given`].

use std::ffi::CStr;

use libc::{FILE, c_char, c_int, mode_t};
use towpath_posix::{given, proc_net, resolver};

use crate::{POSIX, answer, real};

/// Replaces a file that the program has just opened as `fd`, if this library generates a file for
/// this path. Returns the descriptor for the program. `dir` is the directory of a relative path.
///
/// `path` is readable, because the kernel has read it: otherwise the call would have failed with
/// EFAULT.
pub(crate) unsafe fn opened(fd: c_int, dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: the file was opened, so the kernel has read `path` as a NUL-terminated string.
    let path = unsafe { CStr::from_ptr(path) };
    if resolver::is_wanted(&POSIX, path, flags) {
        return answer::int(resolver::put_in_place(&POSIX, fd).map(|()| fd));
    }
    if let Some(file) = given::wanted(&POSIX, path, flags) {
        return answer::int(given::put_in_place(&POSIX, fd, file).map(|()| fd));
    }
    match proc_net::wanted(&POSIX, dir, path, flags) {
        None => fd,
        Some(file) => answer::int(proc_net::put_in_place(&POSIX, fd, file).map(|()| fd)),
    }
}

/// open(2). Programs pass `mode` only if the flags require it. Otherwise `mode` is undefined, and
/// the kernel ignores it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::open(path, flags, mode), libc::AT_FDCWD, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::open64(path, flags, mode), libc::AT_FDCWD, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::openat(dir, path, flags, mode), dir, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::openat64(dir, path, flags, mode), dir, path, flags) }
}

/// Entry point of open for programs built with _FORTIFY_SOURCE, without a mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::__open_2(path, flags), libc::AT_FDCWD, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::__open64_2(path, flags), libc::AT_FDCWD, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::__openat_2(dir, path, flags), dir, path, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { opened(real::__openat64_2(dir, path, flags), dir, path, flags) }
}

/// Replaces the file of a stream that the program has just opened by fopen(3), if this library
/// generates a file for this path. Nothing has been read from `stream` yet.
unsafe fn streamed(stream: *mut FILE, path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: `path` and `mode` are NUL-terminated, by the contract of fopen. fopen succeeded if
    // `stream` is not null.
    unsafe {
        if stream.is_null() {
            return stream;
        }
        let reads = *mode == b'r' as c_char && !CStr::from_ptr(mode).to_bytes().contains(&b'+');
        let flags = if reads { libc::O_RDONLY } else { libc::O_RDWR };
        if opened(libc::fileno(stream), libc::AT_FDCWD, path, flags) < 0 {
            libc::fclose(stream);
            return std::ptr::null_mut();
        }
        stream
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { streamed(real::fopen(path, mode), path, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { streamed(real::fopen64(path, mode), path, mode) }
}
