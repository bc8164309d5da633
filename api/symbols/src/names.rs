//! Look-ups of names, of which the machine's own leads to the stack.
//!
//! libc makes the answers: its own functions are asked for the stack's addresses as numbers.
//! Memory, services and hints are then as in all other answers.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use libc::{addrinfo, c_char, c_int, hostent, sockaddr, socklen_t};
use towpath_posix::names;

use crate::{POSIX, real};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    to: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: as called, here and in every function of this file.
    unsafe {
        let (flags, family) =
            hints.as_ref().map_or((0, libc::AF_UNSPEC), |hints| (hints.ai_flags, hints.ai_family));
        let own = if flags & libc::AI_NUMERICHOST == 0 { own_addresses(node) } else { None };
        let Some(all) = own else { return real::getaddrinfo(node, service, hints, to) };
        let of = |wanted: c_int| {
            all.iter().filter(move |ip| wanted == libc::AF_UNSPEC || family_of(ip) == wanted)
        };
        let mut wanted: Vec<_> = of(family).collect();
        if wanted.is_empty() && family == libc::AF_INET6 && flags & libc::AI_V4MAPPED != 0 {
            wanted = of(libc::AF_INET).collect();
        }
        let mut list: *mut addrinfo = std::ptr::null_mut();
        let mut result = libc::EAI_NONAME;
        for ip in wanted.into_iter().rev() {
            let (number, mut part) = (number(ip), std::ptr::null_mut());
            let got = real::getaddrinfo(number.as_ptr(), service, hints, &raw mut part);
            if got != 0 {
                if list.is_null() {
                    result = got;
                }
                continue;
            }
            result = 0;
            rename(part, node);
            let mut last: *mut addrinfo = part;
            while !(*last).ai_next.is_null() {
                last = (*last).ai_next;
            }
            // Only the first entry of a list has the canonical name.
            if !list.is_null() {
                libc::free((*list).ai_canonname.cast());
                (*list).ai_canonname = std::ptr::null_mut();
            }
            (*last).ai_next = list;
            list = part;
        }
        if result == 0 {
            *to = list;
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname(name: *const c_char) -> *mut hostent {
    // SAFETY: see `getaddrinfo`.
    unsafe {
        match own_number(name, libc::AF_INET) {
            Some(number) => renamed(real::gethostbyname(number.as_ptr())),
            None => real::gethostbyname(name),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent {
    // SAFETY: see `getaddrinfo`.
    unsafe {
        match own_number(name, family) {
            Some(number) => renamed(real::gethostbyname2(number.as_ptr(), family)),
            None => real::gethostbyname2(name, family),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname_r(
    name: *const c_char,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> c_int {
    // SAFETY: see `getaddrinfo`.
    unsafe {
        match own_number(name, libc::AF_INET) {
            Some(number) => within(name, (to, buffer, len), |len| {
                real::gethostbyname_r(number.as_ptr(), to, buffer, len, result, error)
            }),
            None => real::gethostbyname_r(name, to, buffer, len, result, error),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname2_r(
    name: *const c_char,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> c_int {
    // SAFETY: see `getaddrinfo`.
    unsafe {
        match own_number(name, family) {
            Some(number) => within(name, (to, buffer, len), |len| {
                real::gethostbyname2_r(number.as_ptr(), family, to, buffer, len, result, error)
            }),
            None => real::gethostbyname2_r(name, family, to, buffer, len, result, error),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getnameinfo(
    addr: *const sockaddr,
    len: socklen_t,
    host: *mut c_char,
    host_len: socklen_t,
    service: *mut c_char,
    service_len: socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: see `getaddrinfo`.
    unsafe {
        let asks = !host.is_null() && host_len > 0 && flags & libc::NI_NUMERICHOST == 0;
        let ip = if asks { ip_in(addr, len) } else { None };
        let own = ip.filter(|ip| names::is_own_address(&POSIX, *ip)).and_then(|_| names::own());
        let Some(own) = own else {
            return real::getnameinfo(addr, len, host, host_len, service, service_len, flags);
        };
        if own.len() >= host_len as usize {
            return libc::EAI_OVERFLOW;
        }
        std::ptr::copy_nonoverlapping(own.as_ptr(), host.cast(), own.len());
        *host.add(own.len()) = 0;
        let nobody = std::ptr::null_mut();
        if service.is_null() || service_len == 0 {
            return 0;
        }
        real::getnameinfo(addr, len, nobody, 0, service, service_len, flags)
    }
}

/// Addresses of the stack, if `name` is the machine's own.
unsafe fn own_addresses(name: *const c_char) -> Option<Vec<IpAddr>> {
    // SAFETY: the caller has a NUL-terminated text or a null pointer.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    names::of_own(&POSIX, name)
}

/// The first of them in a family, as a text.
unsafe fn own_number(name: *const c_char, family: c_int) -> Option<CString> {
    // SAFETY: the caller's promise.
    let all = unsafe { own_addresses(name) }?;
    all.iter().find(|ip| family_of(ip) == family).map(number)
}

fn family_of(ip: &IpAddr) -> c_int {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn number(ip: &IpAddr) -> CString {
    CString::new(ip.to_string()).expect("an address has no NUL")
}

/// Gives an answer about a number the name that was asked for.
unsafe fn rename(first: *mut addrinfo, name: *const c_char) {
    // SAFETY: a list of libc's, whose canonical name is from malloc, and a text.
    unsafe {
        if !(*first).ai_canonname.is_null() {
            let copy = libc::strdup(name);
            if !copy.is_null() {
                libc::free((*first).ai_canonname.cast());
                (*first).ai_canonname = copy;
            }
        }
    }
}

/// The same for an answer in libc's own memory.
unsafe fn renamed(host: *mut hostent) -> *mut hostent {
    static NAME: OnceLock<Option<CString>> = OnceLock::new();
    let name = NAME.get_or_init(|| CString::new(names::own()?).ok());
    // SAFETY: libc's structure, or a null pointer; programs do not write to the name.
    if let (Some(host), Some(name)) = (unsafe { host.as_mut() }, name) {
        host.h_name = name.as_ptr().cast_mut();
    }
    host
}

/// The same for an answer in memory of the program's, whose end holds the name.
unsafe fn within(
    name: *const c_char,
    (to, buffer, len): (*mut hostent, *mut c_char, usize),
    ask: impl FnOnce(usize) -> c_int,
) -> c_int {
    // SAFETY: a text, and `len` writable bytes.
    unsafe {
        let name = CStr::from_ptr(name).to_bytes_with_nul();
        let Some(rest) = len.checked_sub(name.len()) else { return libc::ERANGE };
        let result = ask(rest);
        if result == 0 {
            let place = buffer.add(rest);
            std::ptr::copy_nonoverlapping(name.as_ptr(), place.cast(), name.len());
            (*to).h_name = place;
        }
        result
    }
}

/// The address of a sockaddr.
unsafe fn ip_in(addr: *const sockaddr, len: socklen_t) -> Option<IpAddr> {
    let len = len as usize;
    if addr.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: `len` bytes are there, which is looked at before each structure is read.
    unsafe {
        match i32::from((&raw const (*addr).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
                let v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}
