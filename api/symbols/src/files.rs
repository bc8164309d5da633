//! Properties of descriptors in the file system: stat and readlink.

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint, size_t, ssize_t};
use towpath_posix::identity::{self, Identity, Named};
use towpath_posix::{descriptor, others};

use crate::{POSIX, answer, real};

/// Descriptor that a successful call refers to.
#[derive(Clone, Copy)]
enum CallSubject {
    /// Descriptor passed to the call.
    Itself(c_int),
    /// Descriptor of this process, from a path /proc/self/fd/N that the call follows.
    Linked(c_int),
    /// Process id and descriptor of another process, from a path /proc/PID/fd/N.
    Others(u32, c_int),
    /// File that the call does not reach through a descriptor.
    Other,
}

impl CallSubject {
    /// Finds the descriptor that a path of /proc names. The kernel has read the path already: an
    /// invalid address would have failed the call with EFAULT.
    unsafe fn path(path: *const c_char) -> Self {
        // SAFETY: the kernel has read `path` as a NUL-terminated string.
        match identity::descriptor(unsafe { CStr::from_ptr(path) }) {
            Some(Named::Own(fd)) => Self::Linked(fd),
            Some(Named::Other(pid, fd)) if POSIX.is_active() => Self::Others(pid, fd),
            _ => Self::Other,
        }
    }

    /// Finds the descriptor that an fstatat(2) call refers to.
    unsafe fn at(dir: c_int, path: *const c_char, flags: c_int) -> Self {
        // SAFETY: `path` is not null here, and the kernel has read it as a NUL-terminated string,
        // so it has at least one byte.
        if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0) {
            Self::Itself(dir)
        } else if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
            Self::Other
        } else {
            // SAFETY: the call succeeded, so the kernel has read `path` as a NUL-terminated string.
            // A null or empty path needs AT_EMPTY_PATH, which is handled above.
            unsafe { Self::path(path) }
        }
    }

    /// Returns the identity that the program should see. Fails with EBADF or ENOENT for the
    /// library's hidden descriptors.
    fn identity(self) -> Result<Option<Identity>, c_int> {
        match self {
            Self::Itself(fd) if descriptor::is_hidden(&POSIX, fd) => Err(libc::EBADF),
            Self::Linked(fd) if descriptor::is_hidden(&POSIX, fd) => Err(libc::ENOENT),
            Self::Itself(fd) | Self::Linked(fd) => Ok(identity::of(&POSIX, fd)),
            Self::Others(pid, fd) => Ok(others::of(&POSIX, pid, fd)),
            Self::Other => Ok(None),
        }
    }
}

/// Corrects the result of stat(2) and its variants, because programs use it to detect sockets and
/// to compare descriptors. `about` finds the descriptor; it is called only if stat succeeded.
unsafe fn correct(
    about: impl FnOnce() -> CallSubject,
    to: *mut libc::stat,
    result: c_int,
) -> c_int {
    if result != 0 {
        return result;
    }
    match about().identity() {
        Ok(None) => {}
        Ok(Some(identity)) => {
            // SAFETY: the call succeeded, so the kernel has filled in the structure.
            let to = unsafe { &mut *to };
            to.st_mode = libc::S_IFSOCK | 0o777;
            to.st_dev = identity.device;
            to.st_ino = identity.inode;
            // All timestamps but ctime may be used to store a token (`towpath_shm::token`), so show
            // ctime.
            (to.st_atime, to.st_atime_nsec) = (to.st_ctime, to.st_ctime_nsec);
            (to.st_mtime, to.st_mtime_nsec) = (to.st_ctime, to.st_ctime_nsec);
        }
        Err(errno) => {
            answer::set_errno(errno);
            return -1;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstat_by(fd, to, || real::fstat(fd, to)) }
}

/// Performs fstat(2) using `real`.
pub unsafe fn fstat_by(fd: c_int, to: *mut libc::stat, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { correct(|| CallSubject::Itself(fd), to, real()) }
}

/// Same as [`fstat`]: struct stat64 equals struct stat on the supported 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstat(fd, to) }
}

/// Entry point of fstat for programs built against an old glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstat_by(fd, to, || real::__fxstat(version, fd, to)) }
}

/// Same as [`__fxstat`] for `stat64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { __fxstat(version, fd, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { stat_by(path, to, || real::stat(path, to)) }
}

/// Performs stat(2) using `real`.
pub unsafe fn stat_by(
    path: *const c_char,
    to: *mut libc::stat,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { correct(|| CallSubject::path(path), to, real()) }
}

/// Same as the function without `64`: struct stat64 equals struct stat on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { stat(path, to) }
}

/// Entry point for programs built against an old glibc, as [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(
    version: c_int,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { stat_by(path, to, || real::__xstat(version, path, to)) }
}

/// Entry point for programs built against an old glibc, as [`__fxstat64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat64(
    version: c_int,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { __xstat(version, path, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstatat_by(dir, path, to, flags, || real::fstatat(dir, path, to, flags)) }
}

/// Performs fstatat(2) using `real`.
pub unsafe fn fstatat_by(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { correct(|| CallSubject::at(dir, path, flags), to, real()) }
}

/// Same as the function without `64`: struct stat64 equals struct stat on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat64(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstatat(dir, path, to, flags) }
}

/// Entry point for programs built against an old glibc, as [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstatat(
    version: c_int,
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstatat_by(dir, path, to, flags, || real::__fxstatat(version, dir, path, to, flags)) }
}

/// Entry point for programs built against an old glibc, as [`__fxstat64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstatat64(
    version: c_int,
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { __fxstatat(version, dir, path, to, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { statx_by(dir, path, flags, to, || real::statx(dir, path, flags, mask, to)) }
}

/// Performs statx(2) using `real`.
pub unsafe fn statx_by(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    to: *mut libc::statx,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let result = real();
    if result != 0 {
        return result;
    }
    // SAFETY: the caller upholds the C function's contract. The call succeeded, so the kernel has
    // filled in the structure.
    unsafe {
        match CallSubject::at(dir, path, flags).identity() {
            Ok(None) => {}
            Ok(Some(identity)) => {
                (*to).stx_mode = (libc::S_IFSOCK | 0o777) as u16;
                (*to).stx_dev_major = libc::major(identity.device);
                (*to).stx_dev_minor = libc::minor(identity.device);
                (*to).stx_ino = identity.inode;
                // Show ctime in all timestamps, because the others may store a token.
                (*to).stx_atime = (*to).stx_ctime;
                (*to).stx_mtime = (*to).stx_ctime;
            }
            Err(errno) => {
                answer::set_errno(errno);
                return -1;
            }
        }
    }
    0
}

/// Performs readlink(2) or a variant by calling `real`. For a link of /proc/PID/fd that leads to a
/// socket, replaces the result by the name of that socket.
pub unsafe fn readlink_by(
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let result = real();
    if result < 0 {
        return result;
    }
    // SAFETY: the caller upholds the C function's contract: `path` is a NUL-terminated string, and
    // `to` has `len` writable bytes.
    unsafe {
        match CallSubject::path(path).identity() {
            Ok(None) => result,
            Ok(Some(identity)) => {
                let room = std::slice::from_raw_parts_mut(to.cast::<u8>(), len);
                identity.link(room).map_or(result, |n| n as ssize_t)
            }
            Err(errno) => {
                answer::set_errno(errno);
                -1
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { readlink_by(path, to, len, || real::readlink(path, to, len)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(
    dir: c_int,
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { readlink_by(path, to, len, || real::readlinkat(dir, path, to, len)) }
}

/// Entry point of readlink for programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract. libc aborts the program if `len` is
    // above `room`, the size of the buffer.
    unsafe { readlink_by(path, to, len, || real::__readlink_chk(path, to, len, room)) }
}

/// Entry point of readlinkat for programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlinkat_chk(
    dir: c_int,
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract. libc aborts the program if `len` is
    // above `room`, the size of the buffer.
    unsafe { readlink_by(path, to, len, || real::__readlinkat_chk(dir, path, to, len, room)) }
}
