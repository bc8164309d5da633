//! Exports functions that create, bind and connect sockets, and get or set their options.

use libc::{c_int, c_void, sockaddr, socklen_t};
use towpath_posix::{descriptor, netlink, option, socket as posix};

use crate::cancel::point;
use crate::{POSIX, answer, real};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if posix::is_ours(&POSIX, domain) {
        return answer::int(posix::socket(&POSIX, domain, kind, protocol));
    }
    if netlink::is_wanted(&POSIX, domain, protocol)
        && let Some(made) = netlink::socket(&POSIX, kind, protocol).transpose()
    {
        return answer::int(made);
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::socket(domain, kind, protocol) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::zero(posix::bind(&POSIX, fd, addr, len));
        }
        if netlink::is_ours(&POSIX, fd) {
            return answer::zero(netlink::bind(&POSIX, fd, addr, len));
        }
        real::bind(fd, addr, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, fd) {
        return answer::zero(posix::listen(&POSIX, fd, backlog));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::listen(fd, backlog) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::int(posix::accept4(&POSIX, fd, addr, len, 0)));
        }
        real::accept(fd, addr, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::int(posix::accept4(&POSIX, fd, addr, len, flags)));
        }
        real::accept4(fd, addr, len, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return point(|| answer::zero(posix::connect(&POSIX, fd, addr, len)));
        }
        if netlink::is_ours(&POSIX, fd) {
            return answer::zero(netlink::connect(fd, addr, len));
        }
        real::connect(fd, addr, len)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if descriptor::is_ours(&POSIX, fd) {
        return answer::zero(posix::shutdown(&POSIX, fd, how));
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::shutdown(fd, how) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::zero(posix::getsockname(&POSIX, fd, addr, len));
        }
        let result = real::getsockname(fd, addr, len);
        if result == 0 && netlink::is_ours(&POSIX, fd) {
            netlink::show_groups(&POSIX, fd, addr.cast(), *len as usize);
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::zero(posix::getpeername(&POSIX, fd, addr, len));
        }
        let result = real::getpeername(fd, addr, len);
        if result == 0 && netlink::is_ours(&POSIX, fd) {
            netlink::show_kernel(addr.cast(), *len as usize);
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::zero(option::getsockopt(&POSIX, fd, level, name, value, len));
        }
        if netlink::is_ours(&POSIX, fd)
            && let Some(done) = netlink::get_option(&POSIX, fd, (level, name), value, len)
        {
            return answer::zero(done);
        }
        let result = real::getsockopt(fd, level, name, value, len);
        let protocol = (level, name) == (libc::SOL_SOCKET, libc::SO_PROTOCOL);
        if protocol
            && result == 0
            && *len as usize == size_of::<c_int>()
            && netlink::is_ours(&POSIX, fd)
        {
            value.cast::<c_int>().write_unaligned(netlink::protocol(&POSIX, fd));
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        if descriptor::is_ours(&POSIX, fd) {
            return answer::zero(option::setsockopt(&POSIX, fd, level, name, value, len));
        }
        if netlink::is_ours(&POSIX, fd)
            && let Some(done) = netlink::set_option(&POSIX, fd, (level, name), value, len)
        {
            return answer::zero(done);
        }
        real::setsockopt(fd, level, name, value, len)
    }
}
