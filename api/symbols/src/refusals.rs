//! Exports functions that the kernel supports for files but not for sockets.
//!
//! The kernel descriptor of the stack's sockets is opened with O_PATH (`towpath_shm::token`), so
//! the kernel would return EBADF. The functions of this module return the errors of kernel sockets
//! instead.

use libc::{c_int, c_uint, off_t, size_t, ssize_t, termios};
use towpath_posix::{Errno, descriptor};

use crate::{POSIX, answer, real};

/// Defines functions that fail with -1 and an errno if the descriptor is a socket of the stack.
macro_rules! refused {
    ($($name:ident($fd:ident: c_int $(, $arg:ident: $kind:ty)*) -> $errno:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($fd: c_int $(, $arg: $kind)*) -> c_int {
            if descriptor::is_socket(&POSIX, $fd) {
                return answer::int(Err(Errno(libc::$errno)));
            }
            // SAFETY: the caller upholds the C function's contract.
            unsafe { real::$name($fd $(, $arg)*) }
        }
    )*};
}

// off64_t equals off_t on the supported 64-bit machines, so the types below fit the functions with
// `64`, too.
refused! {
    tcgetattr(fd: c_int, to: *mut termios) -> ENOTTY;
    fsync(fd: c_int) -> EINVAL;
    fdatasync(fd: c_int) -> EINVAL;
    ftruncate(fd: c_int, len: off_t) -> EINVAL;
    ftruncate64(fd: c_int, len: off_t) -> EINVAL;
    fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> ENODEV;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> ENODEV;
    sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> ESPIPE;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isatty(fd: c_int) -> c_int {
    if descriptor::is_socket(&POSIX, fd) {
        answer::set_errno(libc::ENOTTY);
        return 0;
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::isatty(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    if descriptor::is_socket(&POSIX, fd) {
        return if offset < 0 || len <= 0 { libc::EINVAL } else { libc::ENODEV };
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::posix_fallocate(fd, offset, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { posix_fallocate(fd, offset, len) }
}

/// posix_fadvise(3). For a socket, validates the arguments and ignores the advice, as the kernel
/// does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fadvise(fd: c_int, from: off_t, len: off_t, advice: c_int) -> c_int {
    if descriptor::is_socket(&POSIX, fd) {
        let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
        return if known && len >= 0 { 0 } else { libc::EINVAL };
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::posix_fadvise(fd, from, len, advice) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fadvise64(
    fd: c_int,
    from: off_t,
    len: off_t,
    advice: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { posix_fadvise(fd, from, len, advice) }
}

/// tee(2). Fails for sockets of the stack, because tee supports only pipes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    if descriptor::is_socket(&POSIX, from) || descriptor::is_socket(&POSIX, to) {
        return answer::size(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::tee(from, to, len, flags) }
}

/// copy_file_range(2). Fails for sockets of the stack, because it supports only files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if descriptor::is_socket(&POSIX, from) || descriptor::is_socket(&POSIX, to) {
        return answer::size(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::copy_file_range(from, from_offset, to, to_offset, len, flags) }
}
