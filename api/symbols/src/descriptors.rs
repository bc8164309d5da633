//! Exports close, dup, fcntl, ioctl and similar functions.

use libc::{c_int, c_uint, c_ulong};
use towpath_posix::{descriptor, ioctl as posix_ioctl};

use crate::{POSIX, answer, real};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, fd) {
        return answer::zero(descriptor::close(&POSIX, fd));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if POSIX.is_active() {
        return answer::zero(descriptor::close_range(&POSIX, first, last, flags as u32));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    if POSIX.is_active() {
        // closefrom returns no error. A negative number closes all descriptors.
        let _ = descriptor::close_range(&POSIX, first.max(0) as u32, u32::MAX, 0);
        return;
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::closefrom(first) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, fd) {
        return answer::int(descriptor::dup(&POSIX, fd, libc::F_DUPFD, 0));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::dup(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, old) || descriptor::is_ours(&POSIX, new) {
        return answer::int(descriptor::dup2(&POSIX, old, new, None));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::dup2(old, new) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, old) || descriptor::is_ours(&POSIX, new) {
        return answer::int(descriptor::dup2(&POSIX, old, new, Some(flags)));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::dup3(old, new, flags) }
}

/// fcntl(2), declared with a fixed third argument: C's variadic argument is passed in the same
/// register on x86_64 and aarch64 Linux.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::int(descriptor::fcntl(&POSIX, fd, command, arg));
        }
        real::fcntl(fd, command, arg)
    }
}

/// fcntl64, which is the same function as [`fcntl`] on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { fcntl(fd, command, arg) }
}

/// ioctl(2), declared with a fixed third argument for the same reason as [`fcntl`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return answer::int(posix_ioctl::ioctl(&POSIX, fd, request, arg));
        }
        real::ioctl(fd, request, arg)
    }
}
