//! What the file system says about descriptors: stat and readlink.

use std::ffi::CStr;

use libc::{c_char, c_int, c_uint, size_t, ssize_t};
use towpath_posix::identity::{self, Identity};

use crate::real;

/// Programs ask whether a descriptor is a socket, and whether two are the same one.
unsafe fn correct(who: Option<Identity>, to: *mut libc::stat, result: c_int) -> c_int {
    if let Some(identity) = who.filter(|_| result == 0) {
        // SAFETY: the call succeeded, so there is a struct.
        let to = unsafe { &mut *to };
        to.st_mode = libc::S_IFSOCK | 0o777;
        to.st_dev = identity.device;
        to.st_ino = identity.inode;
        // The kernel's may be a name (`towpath_shm::token`), all but that of the change.
        (to.st_atime, to.st_atime_nsec) = (to.st_ctime, to.st_ctime_nsec);
        (to.st_mtime, to.st_mtime_nsec) = (to.st_ctime, to.st_ctime_nsec);
    }
    result
}

/// The socket that a path of /proc/self/fd leads to.
unsafe fn at_path(path: *const c_char) -> Option<Identity> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a path, as the caller of a libc function passes it.
    identity::of(identity::descriptor(unsafe { CStr::from_ptr(path) })?)
}

/// The socket that a descriptor and a path name together.
unsafe fn at(dir: c_int, path: *const c_char, flags: c_int) -> Option<Identity> {
    // SAFETY: as in `at_path`; a path has one byte at least.
    if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0) {
        identity::of(dir)
    } else if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        None
    } else {
        // SAFETY: as above.
        unsafe { at_path(path) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: as called, here and in every function of this file.
    unsafe { correct(identity::of(fd), to, real::fstat(fd, to)) }
}

/// struct stat64 is struct stat on the machines we have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { fstat(fd, to) }
}

/// fstat of programs built against an old glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { correct(identity::of(fd), to, real::__fxstat(version, fd, to)) }
}

/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { __fxstat(version, fd, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { correct(at_path(path), to, real::stat(path, to)) }
}

/// As [`fstat64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { stat(path, to) }
}

/// As [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(
    version: c_int,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { correct(at_path(path), to, real::__xstat(version, path, to)) }
}

/// As [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat64(
    version: c_int,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { __xstat(version, path, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { correct(at(dir, path, flags), to, real::fstatat(dir, path, to, flags)) }
}

/// As [`fstat64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat64(
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { fstatat(dir, path, to, flags) }
}

/// As [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstatat(
    version: c_int,
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: see `fstat`.
    unsafe { correct(at(dir, path, flags), to, real::__fxstatat(version, dir, path, to, flags)) }
}

/// As [`__fxstat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstatat64(
    version: c_int,
    dir: c_int,
    path: *const c_char,
    to: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: see `fstat`.
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
    // SAFETY: see `fstat`; what is there is filled in.
    unsafe {
        let result = real::statx(dir, path, flags, mask, to);
        if let Some(identity) = at(dir, path, flags).filter(|_| result == 0) {
            (*to).stx_mode = (libc::S_IFSOCK | 0o777) as u16;
            (*to).stx_dev_major = libc::major(identity.device);
            (*to).stx_dev_minor = libc::minor(identity.device);
            (*to).stx_ino = identity.inode;
            // As in `correct`.
            (*to).stx_atime = (*to).stx_ctime;
            (*to).stx_mtime = (*to).stx_ctime;
        }
        result
    }
}

/// Puts the name of the socket that a path of /proc/self/fd leads to in the place of what the kernel said. If
/// the kernel found nothing there is nothing: /proc is not mounted in a chroot.
unsafe fn corrected(result: ssize_t, path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
    if result < 0 || path.is_null() {
        return result;
    }
    // SAFETY: see `fstat`; the call succeeded, so the room is as long as the caller says.
    unsafe {
        let room = std::slice::from_raw_parts_mut(to.cast::<u8>(), len);
        let link =
            identity::descriptor(CStr::from_ptr(path)).and_then(|fd| identity::link(fd, room));
        link.map_or(result, |n| n as ssize_t)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: see `fstat`.
    unsafe { corrected(real::readlink(path, to, len), path, to, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(
    dir: c_int,
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: see `fstat`.
    unsafe { corrected(real::readlinkat(dir, path, to, len), path, to, len) }
}

/// What _FORTIFY_SOURCE makes of readlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: see `fstat`; libc ends the program when the room is too small.
    unsafe { corrected(real::__readlink_chk(path, to, len, room), path, to, len) }
}

/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlinkat_chk(
    dir: c_int,
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { corrected(real::__readlinkat_chk(dir, path, to, len, room), path, to, len) }
}
