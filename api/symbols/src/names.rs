//! Exports name lookups (getaddrinfo(3) and similar functions). The machine's own host name
//! resolves to the stack's addresses. Names that the user configured resolve to the configured
//! addresses.
//!
//! To build a result, these functions call libc's functions with numeric addresses. Therefore libc
//! allocates the results, and parses services and hints.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{addrinfo, c_char, c_int, c_void, hostent, sockaddr, socklen_t, utsname};
use towpath_posix::given::Hostname;
use towpath_posix::{given, names};

use crate::{POSIX, nss, ordering, real};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    to: *mut *mut addrinfo,
) -> c_int {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let narrowed = match narrowed(hints.as_ref()) {
            Ok(narrowed) => narrowed,
            Err(error) => return error,
        };
        let hints = narrowed.as_ref().map_or(hints, |narrowed| &raw const *narrowed);
        let (flags, family) =
            hints.as_ref().map_or((0, libc::AF_UNSPEC), |hints| (hints.ai_flags, hints.ai_family));
        let own = if flags & libc::AI_NUMERICHOST == 0 { own_addresses(node) } else { None };
        let Some(all) = own else {
            let result = real::getaddrinfo(node, service, hints, to);
            if result == 0 {
                ordering::order(to);
            }
            return result;
        };
        let of = |wanted: c_int| {
            all.iter().filter(move |ip| wanted == libc::AF_UNSPEC || family_of(ip) == wanted)
        };
        let mut wanted: Vec<_> = of(family).collect();
        if wanted.is_empty() && family == libc::AF_INET6 && flags & libc::AI_V4MAPPED != 0 {
            wanted = of(libc::AF_INET).collect();
        }
        // As with /etc/hosts, ask DNS if the run has no address of the wanted family for the name.
        if wanted.is_empty() && !names::is_own(&POSIX, CStr::from_ptr(node)) {
            return real::getaddrinfo(node, service, hints, to);
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
            // In a getaddrinfo list, only the first entry has the canonical name, so free the name
            // of this entry.
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

/// getaddrinfo_a(3). glibc looks up the names in its own threads, by internal calls that this
/// library cannot replace. Therefore `prepare` makes glibc use the NSS service of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo_a(
    mode: c_int,
    list: *mut *mut c_void,
    count: c_int,
    event: *mut libc::sigevent,
) -> c_int {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe { real::getaddrinfo_a(mode, list, count, event) }
}

/// Restricts hints with AI_ADDRCONFIG to address families that the stack has, because glibc would
/// use the kernel's addresses. Returns `None` if glibc can use the hints unchanged.
fn narrowed(hints: Option<&addrinfo>) -> Result<Option<addrinfo>, c_int> {
    // SAFETY: zeroed memory is a valid addrinfo. Without hints of the program, the flags are
    // glibc's AI_DEFAULT.
    let none = || addrinfo {
        ai_flags: libc::AI_V4MAPPED | libc::AI_ADDRCONFIG,
        ..unsafe { std::mem::zeroed() }
    };
    let mut hints = hints.copied().unwrap_or_else(none);
    if hints.ai_flags & libc::AI_ADDRCONFIG == 0 {
        return Ok(None);
    }
    let Some((v4, v6)) = names::families(&POSIX) else { return Ok(None) };
    hints.ai_flags &= !libc::AI_ADDRCONFIG;
    match hints.ai_family {
        libc::AF_UNSPEC if v4 && !v6 => hints.ai_family = libc::AF_INET,
        libc::AF_UNSPEC if v6 && !v4 => hints.ai_family = libc::AF_INET6,
        libc::AF_INET if !v4 => return Err(libc::EAI_NONAME),
        libc::AF_INET6 if !v6 => return Err(libc::EAI_NONAME),
        _ => {}
    }
    Ok(Some(hints))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname(name: *const c_char) -> *mut hostent {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match own_number(name, libc::AF_INET) {
            Some(number) => renamed(real::gethostbyname(number.as_ptr()), CStr::from_ptr(name)),
            None => real::gethostbyname(name),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match own_number(name, family) {
            Some(number) => {
                renamed(real::gethostbyname2(number.as_ptr(), family), CStr::from_ptr(name))
            }
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
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
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
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
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
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        let asks = !host.is_null() && host_len > 0 && flags & libc::NI_NUMERICHOST == 0;
        let ip = if asks { ip_in(addr, len) } else { None };
        let own = ip.and_then(|ip| names::of_address(&POSIX, ip));
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyaddr(
    addr: *const c_void,
    len: socklen_t,
    family: c_int,
) -> *mut hostent {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match own_name(addr, len, family) {
            Some((number, name)) => renamed(real::gethostbyname2(number.as_ptr(), family), &name),
            None => real::gethostbyaddr(addr, len, family),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyaddr_r(
    addr: *const c_void,
    addr_len: socklen_t,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    result: *mut *mut hostent,
    error: *mut c_int,
) -> c_int {
    nss::prepare();
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match own_name(addr, addr_len, family) {
            Some((number, name)) => within(name.as_ptr(), (to, buffer, len), |len| {
                real::gethostbyname2_r(number.as_ptr(), family, to, buffer, len, result, error)
            }),
            None => real::gethostbyaddr_r(addr, addr_len, family, to, buffer, len, result, error),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostname(to: *mut c_char, len: usize) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match given::hostname(&POSIX) {
            Some(name) => put_hostname(&name, to, len),
            None => real::gethostname(to, len),
        }
    }
}

/// Entry point of gethostname(2) for programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __gethostname_chk(to: *mut c_char, len: usize, room: usize) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe {
        match given::hostname(&POSIX).filter(|_| len <= room) {
            Some(name) => put_hostname(&name, to, len),
            None => real::__gethostname_chk(to, len, room),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn uname(to: *mut utsname) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { named(real::uname(to), to) }
}

/// Replaces `nodename` in the result of a successful uname(2) by the host name of this run, if one
/// is configured. Returns `result`.
pub(crate) unsafe fn named(result: c_int, to: *mut utsname) -> c_int {
    let Some(name) = given::hostname(&POSIX).filter(|_| result == 0) else { return result };
    // SAFETY: the call succeeded, so the kernel has filled in the structure.
    let place = unsafe { &mut (*to).nodename };
    place.fill(0);
    // The last byte stays NUL, because a host name is shorter than the field.
    for (to, from) in place.iter_mut().zip(name.bytes()) {
        *to = *from as c_char;
    }
    result
}

/// Copies the host name to the program's buffer as glibc does: truncates it, and fails with
/// ENAMETOOLONG if the NUL does not fit.
unsafe fn put_hostname(name: &Hostname, to: *mut c_char, len: usize) -> c_int {
    let name = name.bytes();
    let copied = name.len().min(len);
    // SAFETY: `to` has `len` writable bytes, by the contract of gethostname.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), copied);
        if copied == len {
            crate::answer::set_errno(libc::ENAMETOOLONG);
            return -1;
        }
        *to.add(copied) = 0;
    }
    0
}

/// Returns an address as text, and its host name, if the user has configured one or the address is
/// the stack's. Otherwise returns `None`.
unsafe fn own_name(
    addr: *const c_void,
    len: socklen_t,
    family: c_int,
) -> Option<(CString, CString)> {
    // SAFETY: `addr` is null or points to `len` bytes, by the contract of gethostbyaddr.
    let ip: IpAddr = unsafe {
        match (family, len) {
            _ if addr.is_null() => return None,
            (libc::AF_INET, 4) => addr.cast::<[u8; 4]>().read_unaligned().into(),
            (libc::AF_INET6, 16) => addr.cast::<[u8; 16]>().read_unaligned().into(),
            _ => return None,
        }
    };
    let name = names::of_address(&POSIX, ip)?;
    Some((number(&ip), CString::new(name).ok()?))
}

/// Returns the addresses of a host name. None: the run does not define this name.
unsafe fn own_addresses(name: *const c_char) -> Option<Vec<IpAddr>> {
    // SAFETY: `name` is null or NUL-terminated, by the contract of the C functions.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    names::of_name(&POSIX, name)
}

/// Returns, as text, the first address of a family that the run defines for a host name.
unsafe fn own_number(name: *const c_char, family: c_int) -> Option<CString> {
    // SAFETY: `name` is null or NUL-terminated, by the contract of the C functions.
    let all = unsafe { own_addresses(name) }?;
    all.iter().find(|ip| family_of(ip) == family).map(number)
}

fn family_of(ip: &IpAddr) -> c_int {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn number(ip: &IpAddr) -> CString {
    CString::new(ip.to_string()).expect("an address has no NUL")
}

/// Replaces the canonical name in a getaddrinfo(3) result by the requested name. The result is from
/// a lookup of a numeric address.
unsafe fn rename(first: *mut addrinfo, name: *const c_char) {
    // SAFETY: `first` is from libc, which allocated its canonical name by malloc. `name` is
    // NUL-terminated.
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

/// Replaces the name in a `hostent` that is in libc's static memory.
///
/// The name is valid until the next call of this function, as is usual for results in static
/// memory.
unsafe fn renamed(host: *mut hostent, name: &CStr) -> *mut hostent {
    static NAME: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: `host` is null or libc's structure. The previous name was
    // allocated by this function.
    unsafe {
        if let Some(host) = host.as_mut() {
            host.h_name = name.to_owned().into_raw();
            let before = NAME.swap(host.h_name, Ordering::AcqRel);
            if !before.is_null() {
                drop(CString::from_raw(before));
            }
        }
    }
    host
}

/// Copies `name` to the end of the program's buffer of `len` bytes, and calls `ask` to build a
/// result in the rest of the buffer. `ask` gets the length of that rest. Returns ERANGE if the
/// buffer is too small.
unsafe fn within(
    name: *const c_char,
    (to, buffer, len): (*mut hostent, *mut c_char, usize),
    ask: impl FnOnce(usize) -> c_int,
) -> c_int {
    // SAFETY: `name` is NUL-terminated, and `buffer` has `len` writable bytes, by the contract of
    // the C functions.
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

/// Returns the IP address in a sockaddr of `len` bytes. Returns `None` for other address families.
pub(crate) unsafe fn ip_in(addr: *const sockaddr, len: socklen_t) -> Option<IpAddr> {
    let len = len as usize;
    if addr.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: `len` bytes are readable; the length is checked before each structure is read.
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
