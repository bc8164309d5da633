//! Functions that send and receive.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use towpath_client::Buffer;
use towpath_posix::control::SendControl;
use towpath_posix::handle::OpenSocket;
use towpath_posix::{Errno, Result, message, transfer};

use crate::answer::{on, size};

/// Maximum number of bytes that one call transfers, as in Linux (MAX_RW_COUNT).
const COUNT_MAX: usize = 0x7fff_f000;

/// Returns the flags of a send. Always suppresses SIGPIPE, because a library must not end its
/// program.
const fn send_flags(flags: c_int) -> c_int {
    flags | libc::MSG_NOSIGNAL
}

/// # Safety
/// `at` must point to `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_send(
    fd: c_int,
    at: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller of this function ensures.
    unsafe { towpath_sendto(fd, at, len, flags, null(), 0) }
}

/// # Safety
/// `at` must point to `len` readable bytes, and `to` to `to_len` (or be null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_sendto(
    fd: c_int,
    at: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let flags = send_flags(flags);
    size(on(fd, |posix, fd| {
        // SAFETY: `to` is null or points to `to_len` readable bytes, as the caller ensures.
        let to = unsafe { transfer::destination(posix, fd, to, to_len, flags) }?;
        let buffers = [Buffer { at: at.cast_mut().cast(), len: len.min(COUNT_MAX) }];
        // SAFETY: `at` points to `len` readable bytes, as the caller ensures.
        unsafe { transfer::send(posix, fd, &buffers, flags, to, &SendControl::default()) }
    }))
}

/// # Safety
/// `message` must be null or point to a valid msghdr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    size(on(fd, |posix, fd| {
        // SAFETY: `message` is null or points to a valid msghdr, as the caller ensures.
        unsafe {
            check(message)?;
            message::sendmsg(posix, fd, message, send_flags(flags))
        }
    }))
}

/// # Safety
/// `at` must point to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_recv(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the caller of this function ensures.
    unsafe { towpath_recvfrom(fd, at, len, flags, null_mut(), null_mut()) }
}

/// # Safety
/// `at` must point to `len` writable bytes, and `from` to `*from_len`; both may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_recvfrom(
    fd: c_int,
    at: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    size(on(fd, |posix, fd| {
        let buffers = [Buffer { at: at.cast(), len: len.min(COUNT_MAX) }];
        // SAFETY: `at` points to `len` writable bytes, as the caller ensures.
        let arrival = unsafe { transfer::recv(posix, fd, &buffers, flags) }?;
        let handle = OpenSocket::new(posix, fd)?;
        // SAFETY: `from` is null or points to `*from_len` writable bytes, as the caller ensures.
        unsafe { message::tell_sender(&handle, &arrival, from, from_len) }?;
        Ok(arrival.len)
    }))
}

/// # Safety
/// `message` must be null or point to a valid msghdr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    size(on(fd, |posix, fd| {
        // SAFETY: `message` is null or points to a valid msghdr, as the caller ensures.
        unsafe {
            check(message)?;
            message::recvmsg(posix, fd, message, flags)
        }
    }))
}

/// Validates a msghdr as the kernel does before it follows the pointers.
///
/// # Safety
/// `message` must be null or point to a msghdr.
unsafe fn check(message: *const msghdr) -> Result<()> {
    // SAFETY: `message` is null or points to a msghdr.
    let message = unsafe { message.as_ref() }.ok_or(Errno(libc::EFAULT))?;
    if message.msg_iovlen > transfer::BUFFERS_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    if message.msg_iov.is_null() && message.msg_iovlen > 0 {
        return Err(Errno(libc::EFAULT));
    }
    if message.msg_controllen > i32::MAX as usize {
        return Err(Errno(libc::ENOBUFS));
    }
    if !message.msg_iov.cast::<iovec>().is_aligned() {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}
