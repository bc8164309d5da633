//! Implements sendmsg(2) and recvmsg(2), with control messages.

use std::sync::atomic::Ordering::Relaxed;

use crate::control::{self, ControlWriter, SendControl};
use crate::errno::fail;
use crate::handle::OpenSocket;
use crate::socket::bind_any;
use crate::transfer::{self, Arrival};
use crate::{Posix, Result, address};

/// Implements sendmsg(2).
///
/// # Safety
/// `message` must point to a valid msghdr.
pub unsafe fn sendmsg(
    posix: &'static Posix,
    fd: i32,
    message: *const libc::msghdr,
    flags: i32,
) -> Result<usize> {
    // SAFETY: `message` is null or points to a valid msghdr, which outlives the call.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return fail(libc::EFAULT);
    };
    let buffers =
        // SAFETY: in a valid msghdr, `msg_iov` points to `msg_iovlen` iovecs.
        unsafe { transfer::buffers(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) }?;
    let to = if message.msg_namelen == 0 {
        None
    } else {
        // SAFETY: in a valid msghdr, `msg_name` points to `msg_namelen` bytes.
        unsafe {
            transfer::destination(posix, fd, message.msg_name.cast(), message.msg_namelen, flags)
        }?
    };
    let handle = OpenSocket::new(posix, fd)?;
    // Bind an unbound socket before the control messages are checked, as Linux does even if they
    // are invalid.
    bind_any(&handle)?;
    let said = if message.msg_control.is_null() {
        SendControl::default()
    } else {
        // SAFETY: in a valid msghdr, `msg_control` points to `msg_controllen` bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(message.msg_control.cast::<u8>(), message.msg_controllen)
        };
        SendControl::parse(bytes, &handle)?
    };
    // SAFETY: the iovecs of a valid msghdr point to readable buffers.
    unsafe { transfer::send(posix, fd, buffers, flags, to, &said) }
}

/// Implements recvmsg(2).
///
/// # Safety
/// `message` must point to a valid msghdr.
pub unsafe fn recvmsg(
    posix: &'static Posix,
    fd: i32,
    message: *mut libc::msghdr,
    flags: i32,
) -> Result<usize> {
    // SAFETY: `message` is null or points to a valid msghdr, which outlives the call.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return fail(libc::EFAULT);
    };
    let buffers =
        // SAFETY: in a valid msghdr, `msg_iov` points to `msg_iovlen` iovecs.
        unsafe { transfer::buffers(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) }?;
    // SAFETY: the iovecs of a valid msghdr point to writable buffers.
    let arrival = unsafe { transfer::recv(posix, fd, buffers, flags) }?;
    let handle = OpenSocket::new(posix, fd)?;
    message.msg_flags = arrival.flags;
    // SAFETY: in a valid msghdr, `msg_name` is null or points to `msg_namelen` writable bytes.
    unsafe {
        tell_sender(&handle, &arrival, message.msg_name.cast(), &raw mut message.msg_namelen)
    }?;
    let room = if message.msg_control.is_null() {
        &mut []
    } else {
        // SAFETY: in a valid msghdr, `msg_control` points to `msg_controllen` writable bytes.
        unsafe {
            std::slice::from_raw_parts_mut(message.msg_control.cast::<u8>(), message.msg_controllen)
        }
    };
    let mut writer = ControlWriter::new(room);
    match (&arrival.report, &arrival.header) {
        (Some(report), _) => {
            if let Some(time_ns) = report.sent_ns {
                writer.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &control::in_software(time_ns));
            }
            let (level, kind, data) = report.control(&handle);
            writer.put(level, kind, &data);
        }
        (None, Some(header)) => control::write_about_datagram(&handle, header, &mut writer),
        (None, None) => control::write_about_stream(&handle, arrival.len, &mut writer),
    }
    message.msg_controllen = writer.used as _;
    if writer.truncated {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    Ok(arrival.len)
}

/// Writes the address of a received datagram's sender to `name`, as recvfrom(2) does. For a stream
/// socket, sets the length to 0.
///
/// # Safety
/// `name` must point to `*len` writable bytes; both may be null.
pub unsafe fn tell_sender(
    handle: &OpenSocket,
    arrival: &Arrival,
    name: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    if name.is_null() || len.is_null() {
        return Ok(());
    }
    match arrival.header {
        // SAFETY: `name` points to `*len` writable bytes, and neither pointer is null.
        Some(header) => unsafe {
            address::write(
                &address::shown(header.remote, handle.slot.family.load(Relaxed)),
                name,
                len,
            )
        },
        None => {
            // SAFETY: `len` is not null, and valid for writes.
            unsafe { *len = 0 };
            Ok(())
        }
    }
}

/// Implements sendmmsg(2). Returns the number of messages sent, at most 1024 (UIO_MAXIOV).
///
/// # Errors
/// As [`sendmsg`], if no message was sent before.
///
/// # Safety
/// `messages` must point to `count` valid entries.
pub unsafe fn sendmmsg(
    posix: &'static Posix,
    fd: i32,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: i32,
) -> Result<i32> {
    let mut done = 0;
    for n in 0..count.min(transfer::BUFFERS_MAX as u32) as usize {
        // SAFETY: `n` is below `count`, and `messages` points to `count` valid entries.
        let entry = unsafe { &mut *messages.add(n) };
        // SAFETY: `entry` is a valid `mmsghdr`, so its `msg_hdr` is valid for sendmsg.
        match unsafe { sendmsg(posix, fd, &raw const entry.msg_hdr, flags) } {
            Ok(len) => entry.msg_len = len as u32,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        done += 1;
    }
    Ok(done)
}

/// Implements recvmmsg(2). Checks the time limit after each message, as Linux does. Returns the
/// number of messages received, at most 1024 (UIO_MAXIOV).
///
/// # Errors
/// As [`recvmsg`], if no message was received before; EINVAL for an invalid time limit.
///
/// # Safety
/// `messages` must point to `count` valid entries, `timeout` to a timespec or be null.
pub unsafe fn recvmmsg(
    posix: &'static Posix,
    fd: i32,
    messages: *mut libc::mmsghdr,
    count: u32,
    mut flags: i32,
    timeout: *mut libc::timespec,
) -> Result<i32> {
    use towpath_client::Deadline;
    // SAFETY: `timeout` is null or points to a timespec.
    let deadline = match unsafe { timeout.as_ref() } {
        Some(limit) => Some(Deadline::after(crate::poll::duration(limit)?)),
        None => None,
    };
    let mut done = 0;
    for n in 0..count.min(transfer::BUFFERS_MAX as u32) as usize {
        // SAFETY: `n` is below `count`, and `messages` points to `count` valid entries.
        let entry = unsafe { &mut *messages.add(n) };
        // SAFETY: `entry` is a valid `mmsghdr`, so its `msg_hdr` is valid for recvmsg.
        match unsafe { recvmsg(posix, fd, &raw mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE) } {
            Ok(len) => entry.msg_len = len as u32,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
            break;
        }
    }
    Ok(done)
}
