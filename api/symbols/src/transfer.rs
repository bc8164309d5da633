//! Exports functions that transfer bytes, datagrams and messages.

use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use towpath_client::Buffer;
use towpath_posix::control::SendControl;
use towpath_posix::handle::OpenSocket;
use towpath_posix::message;
use towpath_posix::{Posix, Result, copy, descriptor, netlink, rights, transfer};

use crate::cancel::{point, restarted};
use crate::{POSIX, answer, real};

fn buffer(at: *const c_void, len: size_t) -> [Buffer; 1] {
    [Buffer { at: at.cast_mut().cast(), len: len.min(isize::MAX as usize) }]
}

unsafe fn send_plain(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    point(|| {
        // SAFETY: the program upholds the contract of send.
        answer::size(unsafe {
            transfer::send(&POSIX, fd, &buffer(from, len), flags, None, &SendControl::default())
        })
    })
}

unsafe fn recv_plain(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    point(|| {
        // SAFETY: the program upholds the contract of recv.
        let arrival = unsafe { transfer::recv(&POSIX, fd, &buffer(to, len), flags) };
        answer::size(arrival.map(|arrival| arrival.len))
    })
}

/// Implements sendto(2) for a netlink socket that this library emulates: sends a request to it.
unsafe fn send_netlink(
    fd: c_int,
    from: &[Buffer],
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the program upholds the contract of sendto.
    answer::size(unsafe { netlink::send(&POSIX, fd, from, to, to_len) })
}

/// Implements sendmsg(2) for a netlink socket that this library emulates: sends a request to it.
unsafe fn send_netlink_message(fd: c_int, message: *const msghdr) -> ssize_t {
    // SAFETY: the program upholds the contract of sendmsg.
    unsafe {
        let message = &*message;
        let sent = transfer::buffers(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE).and_then(
            |from| netlink::send(&POSIX, fd, from, message.msg_name.cast(), message.msg_namelen),
        );
        answer::size(sent)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return point(|| answer::size(transfer::read(&POSIX, fd, &buffer(to, len), 0)));
        }
        real::read(fd, to, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            return send_plain(fd, from, len, 0);
        }
        if netlink::is_ours(&POSIX, fd) {
            return send_netlink(fd, &buffer(from, len), std::ptr::null(), 0);
        }
        real::write(fd, from, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return recv_plain(fd, to, len, flags);
        }
        real::recv(fd, to, len, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return send_plain(fd, from, len, flags);
        }
        if netlink::is_ours(&POSIX, fd) {
            return send_netlink(fd, &buffer(from, len), std::ptr::null(), 0);
        }
        real::send(fd, from, len, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let read = |to| transfer::read(&POSIX, fd, to, 0);
            return point(|| {
                answer::size(transfer::buffers(to, count, libc::EINVAL).and_then(read))
            });
        }
        real::readv(fd, to, count)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_socket(&POSIX, fd) {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let write = |from| transfer::write_vector(&POSIX, fd, from, 0);
            return point(|| {
                answer::size(transfer::buffers(from, count, libc::EINVAL).and_then(write))
            });
        }
        if netlink::is_ours(&POSIX, fd) {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let result = transfer::buffers(from, count, libc::EINVAL)
                .and_then(|from| netlink::send(&POSIX, fd, from, std::ptr::null(), 0));
            return answer::size(result);
        }
        real::writev(fd, from, count)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::size(recv_from(fd, &buffer(to, len), flags, addr, addr_len)));
        }
        let result = real::recvfrom(fd, to, len, flags, addr, addr_len);
        if result >= 0 && !addr.is_null() && netlink::is_ours(&POSIX, fd) {
            netlink::show_kernel(addr.cast(), *addr_len as usize);
        }
        result
    }
}

unsafe fn recv_from(
    fd: c_int,
    to: &[Buffer],
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Result<usize> {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let arrival = transfer::recv(&POSIX, fd, to, flags)?;
        if !addr.is_null() {
            message::tell_sender(&OpenSocket::new(&POSIX, fd)?, &arrival, addr, addr_len)?;
        }
        Ok(arrival.len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            let to = transfer::destination(&POSIX, fd, addr, addr_len, flags);
            let send = |to| {
                transfer::send(&POSIX, fd, &buffer(from, len), flags, to, &SendControl::default())
            };
            return point(|| answer::size(to.and_then(send)));
        }
        if netlink::is_ours(&POSIX, fd) {
            return send_netlink(fd, &buffer(from, len), addr, addr_len);
        }
        real::sendto(fd, from, len, flags, addr, addr_len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::size(message::recvmsg(&POSIX, fd, message, flags)));
        }
        let result = real::recvmsg(fd, message, flags);
        if result >= 0 && POSIX.is_active() {
            if netlink::is_ours(&POSIX, fd) {
                netlink::show_kernel((*message).msg_name, (*message).msg_namelen as usize);
                netlink::show_kernel_in(message);
            }
            each_right(message, rights::received);
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::size(message::sendmsg(&POSIX, fd, message, flags)));
        }
        if message.is_null() || !POSIX.is_active() {
            return real::sendmsg(fd, message, flags);
        }
        if netlink::is_ours(&POSIX, fd) {
            return send_netlink_message(fd, message);
        }
        each_right(message, rights::sent);
        let result = real::sendmsg(fd, message, flags);
        if result < 0 {
            each_right(message, rights::not_sent);
        }
        result
    }
}

/// Calls `visit` for each descriptor in a message of an AF_UNIX socket (SCM_RIGHTS).
unsafe fn each_right(message: *const msghdr, visit: impl Fn(&'static Posix, c_int)) {
    // SAFETY: `message` is valid, because the kernel has just filled it in or is about to read it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(at).cast::<c_int>();
                for n in 0..bytes / size_of::<c_int>() {
                    visit(&POSIX, fds.add(n).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| {
                answer::int(message::recvmmsg(&POSIX, fd, messages, count, flags, timeout))
            });
        }
        let result = real::recvmmsg(fd, messages, count, flags, timeout);
        if result > 0 && POSIX.is_active() {
            let netlink = netlink::is_ours(&POSIX, fd);
            for n in 0..result as usize {
                let message = &raw const (*messages.add(n)).msg_hdr;
                if netlink {
                    netlink::show_kernel((*message).msg_name, (*message).msg_namelen as usize);
                    netlink::show_kernel_in(message);
                }
                each_right(message, rights::received);
            }
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::int(message::sendmmsg(&POSIX, fd, messages, count, flags)));
        }
        if messages.is_null() || !POSIX.is_active() {
            return real::sendmmsg(fd, messages, count, flags);
        }
        if netlink::is_ours(&POSIX, fd) {
            return send_netlink_messages(fd, messages, count);
        }
        // The kernel processes at most 1024 messages (UIO_MAXIOV).
        let count = count.min(1024);
        for n in 0..count as usize {
            each_right(&raw const (*messages.add(n)).msg_hdr, rights::sent);
        }
        let result = real::sendmmsg(fd, messages, count, flags);
        for n in result.max(0) as usize..count as usize {
            each_right(&raw const (*messages.add(n)).msg_hdr, rights::not_sent);
        }
        result
    }
}

/// Implements sendmmsg(2) for a netlink socket that this library emulates. Returns an error only if
/// it concerns the first message.
unsafe fn send_netlink_messages(fd: c_int, messages: *mut mmsghdr, count: c_uint) -> c_int {
    for n in 0..count as usize {
        // SAFETY: the program upholds the contract of sendmmsg.
        unsafe {
            let message = messages.add(n);
            match send_netlink_message(fd, &raw const (*message).msg_hdr) {
                sent @ 0.. => (*message).msg_len = sent as c_uint,
                _ if n == 0 => return -1,
                _ => return n as c_int,
            }
        }
    }
    count as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let is_ours = descriptor::is_socket(&POSIX, to) || descriptor::is_socket(&POSIX, from);
        if is_ours || netlink::is_ours(&POSIX, to) {
            return restarted(|| {
                answer::size(copy::sendfile(&POSIX, to, from, offset.as_mut(), count))
            });
        }
        real::sendfile(to, from, offset, count)
    }
}

/// sendfile64, which is the same as sendfile: off64_t equals off_t on the supported 64-bit
/// machines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let is_ours = descriptor::is_socket(&POSIX, from) || descriptor::is_socket(&POSIX, to);
    if is_ours || netlink::is_ours(&POSIX, to) {
        let offsets = (!from_offset.is_null(), !to_offset.is_null());
        return point(|| answer::size(copy::splice(&POSIX, from, to, offsets, len, flags)));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }
}

// Entry points of read, recv and recvfrom for programs built with _FORTIFY_SOURCE. libc aborts the
// program if a length is above `room`, the size of the buffer.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { if len > room { real::__read_chk(fd, to, len, room) } else { read(fd, to, len) } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if len > room {
            real::__recv_chk(fd, to, len, room, flags)
        } else {
            recv(fd, to, len, flags)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if len > room {
            return real::__recvfrom_chk(fd, to, len, room, flags, addr, addr_len);
        }
        recvfrom(fd, to, len, flags, addr, addr_len)
    }
}
