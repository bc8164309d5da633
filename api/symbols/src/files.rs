//! Exports stat and readlink functions, which return properties of the stack's sockets.

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint, size_t, ssize_t};
use towpath_posix::identity::{self, Identity, Named};
use towpath_posix::{descriptor, others};

use crate::{POSIX, answer, real};

/// The file to which a successful stat or readlink call refers.
#[derive(Clone, Copy)]
enum CallSubject {
    /// The descriptor that was passed to the call.
    Itself(c_int),
    /// A descriptor of this process: the call followed the path /proc/self/fd/N.
    Linked(c_int),
    /// A descriptor of another process: the call followed the path /proc/PID/fd/N. Contains PID and
    /// N.
    Others(u32, c_int),
    /// A file that the call does not reach through a descriptor.
    Other,
}

impl CallSubject {
    /// Parses a path such as /proc/self/fd/N, and returns the descriptor that it names. The path is
    /// readable, because the kernel has read it: otherwise the call would have failed with EFAULT.
    unsafe fn path(path: *const c_char) -> Self {
        // SAFETY: the kernel has read `path` as a NUL-terminated string.
        match identity::descriptor(unsafe { CStr::from_ptr(path) }) {
            Some(Named::Own(fd)) => Self::Linked(fd),
            Some(Named::Other(pid, fd)) if POSIX.is_active() => Self::Others(pid, fd),
            _ => Self::Other,
        }
    }

    /// Returns the file to which an fstatat(2) call refers.
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

    /// Returns the device and inode number that the program should see. `None` if the file is not a
    /// socket of the stack. Fails with EBADF or ENOENT for internal descriptors of this library.
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

/// Corrects the result of stat(2) and its variants for sockets of the stack. Programs use the
/// result to detect sockets and to compare descriptors. `about` returns the file; it is called only
/// if stat succeeded.
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
            // Replace atime and mtime by ctime. The timestamps of the kernel descriptor may contain
            // the name of a socket (`towpath_shm::token`), which is not a time.
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

/// Implements fstat(2). `real` calls libc's function.
pub unsafe fn fstat_by(fd: c_int, to: *mut libc::stat, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { correct(|| CallSubject::Itself(fd), to, real()) }
}

/// fstat64: same as [`fstat`], because struct stat64 equals struct stat on the supported 64-bit
/// machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstat(fd, to) }
}

/// Entry point of fstat for programs built with an old glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fstat_by(fd, to, || real::__fxstat(version, fd, to)) }
}

/// Entry point of fstat64 for programs built with an old glibc.
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

/// Implements stat(2) and lstat(2). `real` calls libc's function.
pub unsafe fn stat_by(
    path: *const c_char,
    to: *mut libc::stat,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { correct(|| CallSubject::path(path), to, real()) }
}

/// Same as the function without `64`, because struct stat64 equals struct stat on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { stat(path, to) }
}

/// Entry point of stat for programs built with an old glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(
    version: c_int,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { stat_by(path, to, || real::__xstat(version, path, to)) }
}

/// Entry point of stat64 for programs built with an old glibc.
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

/// Implements fstatat(2). `real` calls libc's function.
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

/// fstatat64: same as [`fstatat`], because struct stat64 equals struct stat on 64-bit machines.
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

/// Entry point of fstatat for programs built with an old glibc.
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

/// Entry point of fstatat64 for programs built with an old glibc.
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

/// Implements statx(2). `real` calls libc's function.
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
                // Replace atime and mtime by ctime. The timestamps of the kernel descriptor may
                // contain the name of a socket, which is not a time.
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

/// Implements readlink(2) and its variants. `real` calls libc's function. If the link is in
/// /proc/PID/fd and refers to a socket of the stack, returns the socket's name, such as
/// `socket:[N]`.
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
