//! Calls that open, connect, configure and close sockets.

use std::ffi::{c_int, c_ulong, c_void};

use libc::{sockaddr, socklen_t};
use towpath_posix::{Errno, Result, descriptor, ioctl, option, socket};

use crate::answer::{int, on, with, zero};
use crate::stack::{OBJECTS, OwnedDescriptor, find};

/// ioctl(2) request that returns whether the receive position is at the urgent mark. Not defined by
/// libc.
const SIOCATMARK: c_ulong = 0x8905;

#[unsafe(no_mangle)]
pub extern "C" fn towpath_socket(
    stack: c_int,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    let open = || {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let object = find(stack)?;
        let stack = object.stack()?;
        let kind = kind | libc::SOCK_CLOEXEC;
        OwnedDescriptor::open(stack, socket::socket(stack.posix(), domain, kind, protocol)?)
    };
    int(open())
}

/// # Safety
/// `addr` must point to `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { socket::bind(posix, fd, addr, len) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_listen(fd: c_int, backlog: c_int) -> c_int {
    zero(on(fd, |posix, fd| socket::listen(posix, fd, backlog)))
}

/// # Safety
/// `addr` must point to `*len` writable bytes; both may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    unsafe { towpath_accept4(fd, addr, len, 0) }
}

/// # Safety
/// As for [`towpath_accept`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_accept4(
    listener: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let accepted = with(listener, |listener| {
        let (posix, fd) = (listener.stack.posix(), listener.inner);
        // SAFETY: as the caller of this function ensures.
        let inner = unsafe { socket::accept4(posix, fd, addr, len, flags | libc::SOCK_CLOEXEC) }?;
        OwnedDescriptor::open(&listener.stack, inner)
    });
    int(accepted)
}

/// # Safety
/// `addr` must point to `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_connect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { socket::connect(posix, fd, addr, len) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_shutdown(fd: c_int, how: c_int) -> c_int {
    zero(on(fd, |posix, fd| socket::shutdown(posix, fd, how)))
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_close(fd: c_int) -> c_int {
    let close = || -> Result<()> {
        find(fd)?.descriptor()?.stack.check_process()?;
        OBJECTS.close(fd).map(drop).ok_or(Errno(libc::EBADF))
    };
    zero(close())
}

/// # Safety
/// `addr` must point to `*len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { socket::getsockname(posix, fd, addr, len) }))
}

/// # Safety
/// As for [`towpath_getsockname`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { socket::getpeername(posix, fd, addr, len) }))
}

/// # Safety
/// `value` must point to `*len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { option::getsockopt(posix, fd, level, name, value, len) }))
}

/// # Safety
/// `value` must point to `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: as the caller of this function ensures.
    zero(on(fd, |posix, fd| unsafe { option::setsockopt(posix, fd, level, name, value, len) }))
}

/// # Safety
/// `value` must be null or point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_ioctl(fd: c_int, request: c_ulong, value: *mut c_int) -> c_int {
    let request = request & 0xffff_ffff;
    zero(on(fd, |posix, fd| match request {
        _ if !descriptor::is_socket(posix, fd) => Err(Errno(libc::ENOTTY)),
        libc::FIONREAD | libc::FIONBIO | libc::TIOCOUTQ | SIOCATMARK if value.is_null() => {
            Err(Errno(libc::EFAULT))
        }
        libc::FIONREAD | libc::FIONBIO | libc::TIOCOUTQ | SIOCATMARK => {
            // SAFETY: these requests take the address of an int, which `value` is, by the contract
            // of this function.
            unsafe { ioctl::ioctl(posix, fd, request, value.expose_provenance()) }.map(drop)
        }
        _ => Err(Errno(libc::ENOTTY)),
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn towpath_fcntl(fd: c_int, command: c_int, arg: c_int) -> c_int {
    int(on(fd, |posix, fd| match command {
        libc::F_GETFL | libc::F_SETFL if descriptor::is_socket(posix, fd) => {
            // SAFETY: these commands take no pointer.
            unsafe { descriptor::fcntl(posix, fd, command, arg as usize) }
        }
        _ => Err(Errno(libc::EINVAL)),
    }))
}
