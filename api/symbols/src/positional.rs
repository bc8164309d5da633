//! Exports reads and writes at a file position. Sockets have no position, so these functions fail
//! for sockets of the stack.

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use towpath_posix::{Errno, Result, descriptor, proc_net, transfer};

use crate::cancel::point;
use crate::{POSIX, answer, real};

/// Returns the error of preadv2 and pwritev2 for a socket if the position is not -1: EINVAL for
/// other negative positions, otherwise ESPIPE.
fn no_position<T>(offset: off_t) -> Result<T> {
    Err(Errno(if offset < 0 { libc::EINVAL } else { libc::ESPIPE }))
}

/// Converts RWF_* flags of preadv2 and pwritev2 to MSG_* flags. Flags that only concern files have
/// no effect on sockets.
fn message_flags(flags: c_int) -> Result<c_int> {
    const FOR_FILES: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    match flags & !FOR_FILES {
        0 => Ok(0),
        libc::RWF_NOWAIT => Ok(libc::MSG_DONTWAIT),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Regenerates a file that replaces one of /proc/net, because the program reads it from the
/// beginning again.
#[inline]
fn reread(fd: c_int) -> Result<()> {
    if proc_net::is_shown(&POSIX, fd) { proc_net::reread(&POSIX, fd) } else { Ok(()) }
}

unsafe fn read_vector(
    fd: c_int,
    to: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Result<usize> {
    if offset != -1 {
        return no_position(offset);
    }
    let flags = message_flags(flags)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the program upholds the contract of preadv2.
    unsafe {
        let to = transfer::buffers(to, count, libc::EINVAL)?;
        transfer::read(&POSIX, fd, to, flags)
    }
}

unsafe fn write_vector(
    fd: c_int,
    from: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Result<usize> {
    if offset != -1 {
        return no_position(offset);
    }
    let flags = message_flags(flags)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the program upholds the contract of pwritev2.
    unsafe {
        let from = transfer::buffers(from, count, libc::EINVAL)?;
        transfer::write_vector(&POSIX, fd, from, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    if descriptor::is_socket(&POSIX, fd) {
        answer::set_errno(libc::ESPIPE);
        return -1;
    }
    if (offset, whence) == (0, libc::SEEK_SET)
        && let Err(errno) = reread(fd)
    {
        return answer::zero(Err(errno)).into();
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::lseek(fd, offset, whence) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    if descriptor::is_socket(&POSIX, fd) {
        return answer::size(no_position(offset));
    }
    if offset == 0
        && let Err(errno) = reread(fd)
    {
        return answer::size(Err(errno));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::pread(fd, to, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    offset: off_t,
) -> ssize_t {
    if descriptor::is_socket(&POSIX, fd) {
        return answer::size(no_position(offset));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::pwrite(fd, from, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv(
    fd: c_int,
    to: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    if descriptor::is_socket(&POSIX, fd) {
        return answer::size(no_position(offset));
    }
    if offset == 0
        && let Err(errno) = reread(fd)
    {
        return answer::size(Err(errno));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::preadv(fd, to, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev(
    fd: c_int,
    from: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    if descriptor::is_socket(&POSIX, fd) {
        return answer::size(no_position(offset));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::pwritev(fd, from, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    to: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return point(|| answer::size(read_vector(fd, to, count, offset, flags)));
        }
        real::preadv2(fd, to, count, offset, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    from: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return point(|| answer::size(write_vector(fd, from, count, offset, flags)));
        }
        real::pwritev2(fd, from, count, offset, flags)
    }
}

// off64_t and off_t are the same type on 64-bit machines, so lseek64 calls lseek.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { lseek(fd, offset, whence) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { pread(fd, to, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { pwrite(fd, from, len, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64(
    fd: c_int,
    to: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { preadv(fd, to, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64(
    fd: c_int,
    from: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { pwritev(fd, from, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64v2(
    fd: c_int,
    to: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { preadv2(fd, to, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    from: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { pwritev2(fd, from, count, offset, flags) }
}

/// Entry point of pread for programs built with _FORTIFY_SOURCE. libc aborts the program if `len`
/// is above `room`, the size of the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if len > room {
            return real::__pread_chk(fd, to, len, offset, room);
        }
        pread(fd, to, len, offset)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { __pread_chk(fd, to, len, offset, room) }
}
