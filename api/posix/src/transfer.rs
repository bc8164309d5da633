//! Implements read, write, recv, send and their variants with several buffers.

mod arrival;
mod datagrams;
mod opening;
mod peek;
mod streams;
mod urgent;

use std::sync::atomic::Ordering::Relaxed;

use towpath_client::Buffer;
use towpath_shm::layout::{Kind, RawAddr};

use crate::control::SendControl;
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::report::{note_stamped, note_zero_copy};
use crate::socket::bind_any;
use crate::{Errno, Posix, Result, address};

pub use arrival::Arrival;
pub(crate) use datagrams::uncork;
use datagrams::{is_corked, recv_datagram, send_datagram, send_part};
use opening::peer_to_open;
use streams::{open_and_send, recv_stream, send_stream};
use urgent::{recv_urgent, takes_urgent};

/// Maximum number of buffers of one readv(2) or writev(2) call (UIO_MAXIOV).
pub const BUFFERS_MAX: usize = 1024;

/// Returns an iovec array as a slice of buffers.
///
/// # Errors
/// `too_many` if there are more than [`BUFFERS_MAX`] buffers: EMSGSIZE for sendmsg(2), EINVAL for
/// readv(2). EINVAL if their total length exceeds `isize::MAX`.
///
/// # Safety
/// `at` must point to `count` iovecs, which outlive the result.
pub unsafe fn buffers<'a>(
    at: *const libc::iovec,
    count: usize,
    too_many: i32,
) -> Result<&'a [Buffer]> {
    if count > BUFFERS_MAX {
        return fail(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: `at` points to `count` iovecs, and Buffer has the layout of iovec.
    let buffers = unsafe { std::slice::from_raw_parts(at.cast::<Buffer>(), count) };
    if buffers.iter().any(|buffer| buffer.len > isize::MAX as usize)
        || Buffer::total(buffers) > isize::MAX as usize
    {
        return fail(libc::EINVAL);
    }
    Ok(buffers)
}

/// Fails with EFAULT if a buffer is in the first page, which programs never map. Other invalid
/// addresses are not detected, because this would take system calls.
fn check_pointers(buffers: &[Buffer]) -> Result<()> {
    const PAGE: usize = 4096;
    if buffers.iter().any(|buffer| buffer.len > 0 && buffer.at.addr() < PAGE) {
        return fail(libc::EFAULT);
    }
    Ok(())
}

/// Implements recv(2) and its variants.
///
/// # Safety
/// The buffers must be valid for writes.
pub unsafe fn recv(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
) -> Result<Arrival> {
    let handle = OpenSocket::new(posix, fd)?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        return unsafe { crate::report::recv(&handle, buffers) };
    }
    // Do not check the buffers for MSG_TRUNC on a stream, which discards the bytes without using
    // the buffers.
    if flags & libc::MSG_TRUNC == 0 || !handle.is_tcp() {
        check_pointers(buffers)?;
    }
    let limit = handle.recv_limit(flags & libc::MSG_DONTWAIT != 0);
    match handle.kind() {
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        Kind::Stream if flags & libc::MSG_OOB != 0 => unsafe {
            recv_urgent(&handle, buffers, flags)
        },
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        Kind::Stream => unsafe { recv_stream(&handle, buffers, flags, limit) },
        Kind::Listener => fail(libc::ENOTCONN),
        Kind::Free => fail(libc::ENETDOWN),
        Kind::Echo if flags & libc::MSG_OOB != 0 => fail(libc::EOPNOTSUPP),
        // SAFETY: the buffers are valid for writes, by the contract of this function.
        _ => unsafe { recv_datagram(&handle, buffers, flags, limit) },
    }
}

/// Implements read(2) and readv(2). With an empty buffer, returns 0 without receiving a datagram,
/// as `sock_read_iter` of Linux.
///
/// # Safety
/// As for [`recv`].
pub unsafe fn read(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
) -> Result<usize> {
    if Buffer::total(buffers) == 0 {
        return Ok(0);
    }
    // SAFETY: the buffers are valid for writes, by the contract of this function.
    unsafe { recv(posix, fd, buffers, flags) }.map(|arrival| arrival.len)
}

/// Implements writev(2). Like Linux's `vfs_writev`, but unlike write(2), it sends no empty
/// datagram.
///
/// # Safety
/// As for [`send`].
pub unsafe fn write_vector(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
) -> Result<usize> {
    if Buffer::total(buffers) == 0 {
        return Ok(0);
    }
    // SAFETY: the buffers are valid for reads, by the contract of this function.
    unsafe { send(posix, fd, buffers, flags, None, &SendControl::default()) }
}

/// Parses the destination address that a program passed to sendto(2) or sendmsg(2). Streams ignore
/// the address, except with MSG_FASTOPEN.
///
/// # Errors
/// EINVAL if the address is too short or too long for the socket, EAFNOSUPPORT if its family
/// differs from the socket's.
///
/// # Safety
/// `at` must point to `len` readable bytes, or be null if there is no address.
pub unsafe fn destination(
    posix: &'static Posix,
    fd: i32,
    at: *const libc::sockaddr,
    len: libc::socklen_t,
    flags: i32,
) -> Result<Option<RawAddr>> {
    if at.is_null() {
        return Ok(None);
    }
    let handle = OpenSocket::new(posix, fd)?;
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return fail(libc::EINVAL);
    }
    if handle.is_tcp() {
        let opens = flags & libc::MSG_FASTOPEN != 0;
        // SAFETY: `at` is not null, and points to `len` readable bytes.
        return if opens { unsafe { peer_to_open(&handle, at, len) } } else { Ok(None) };
    }
    bind_any(&handle)?;
    let family = handle.slot.family.load(Relaxed);
    // Check the length only for an AF_INET socket. An AF_INET6 socket checks the family first,
    // because an IPv4 address is shorter.
    if family == address::INET && !address::is_long_enough(len, family) {
        return fail(libc::EINVAL);
    }
    // SAFETY: `at` is not null, and points to `len` readable bytes.
    match unsafe { address::read(at, len) } {
        // For unknown address families, Linux's `udpv6_sendmsg` returns EINVAL.
        Err(Errno(libc::EAFNOSUPPORT))
            if family == address::INET6 && handle.kind() == Kind::Datagram =>
        {
            fail(libc::EINVAL)
        }
        to => to.map(Some),
    }
}

/// Implements send(2) and its variants. `to` is the destination, or `None` if the program passed no
/// address.
///
/// # Safety
/// The buffers must be valid for reads.
pub unsafe fn send(
    posix: &'static Posix,
    fd: i32,
    buffers: &[Buffer],
    flags: i32,
    to: Option<RawAddr>,
    control: &SendControl,
) -> Result<usize> {
    let handle = OpenSocket::new(posix, fd)?;
    bind_any(&handle)?;
    check_pointers(buffers)?;
    let limit = handle.send_limit(flags & libc::MSG_DONTWAIT != 0);
    if flags & libc::MSG_OOB != 0 && !takes_urgent(&handle, to) {
        return fail(libc::EOPNOTSUPP);
    }
    let more = flags & libc::MSG_MORE != 0 || is_corked(&handle);
    let result = match handle.kind() {
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        Kind::Stream if flags & libc::MSG_FASTOPEN != 0 => unsafe {
            open_and_send(&handle, buffers, flags, to, limit)
        },
        Kind::Stream => {
            // SAFETY: the buffers are valid for reads, by the contract of this function.
            let sent = unsafe { send_stream(&handle, buffers, flags, limit) };
            note_stamped(&handle, sent);
            sent
        }
        Kind::Listener if flags & libc::MSG_FASTOPEN != 0 => fail(libc::EISCONN),
        Kind::Listener => fail(libc::EPIPE),
        Kind::Free => fail(libc::ENETDOWN),
        Kind::Echo if flags & libc::MSG_MORE != 0 => fail(libc::EOPNOTSUPP),
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        _ if more || handle.posix.cork.is_begun(handle.socket) => unsafe {
            send_part(&handle, buffers, more, to, control, limit)
        },
        // SAFETY: the buffers are valid for reads, by the contract of this function.
        _ => unsafe { send_datagram(&handle, buffers, to, control, limit) },
    };
    if flags & libc::MSG_ZEROCOPY != 0 {
        note_zero_copy(&handle, result);
    }
    if result == Err(Errno(libc::EPIPE)) && flags & libc::MSG_NOSIGNAL == 0 && handle.is_tcp() {
        raise_sigpipe();
    }
    result
}

fn raise_sigpipe() {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    let args = [std::process::id() as usize, tid, libc::SIGPIPE as usize, 0, 0, 0];
    // SAFETY: tgkill takes integers only. SIGPIPE is sent to this thread only, as the kernel does
    // for write(2).
    let _ = unsafe { towpath_client::syscall::syscall(libc::SYS_tgkill as usize, args) };
}
