//! The service `towpath` of glibc's name service switch: resolves hostnames by DNS over the stack.
//!
//! glibc loads a service as `libnss_NAME.so.2`, unless a library with this soname is already
//! loaded. The soname of this library is that of the service `towpath`, as set in `build.rs` of
//! `api/preload` and `api/inline`. The functions are declared in nss.h, and allocate results in the
//! caller's buffer.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int, c_void, hostent, socklen_t};
use towpath_posix::dns::{self, Family, FoundAddresses, ResolveError};

use crate::POSIX;

// Return values of service functions: enum nss_status in nss.h.
const TRYAGAIN: c_int = -2;
const UNAVAIL: c_int = -1;
const NOTFOUND: c_int = 0;
const SUCCESS: c_int = 1;
// Values of h_errno in netdb.h.
const NETDB_INTERNAL: c_int = -1;
const HOST_NOT_FOUND: c_int = 1;
const TRY_AGAIN: c_int = 2;
const NO_DATA: c_int = 4;

static IS_PREPARED: AtomicBool = AtomicBool::new(false);

/// An entry in a list of addresses: struct gaih_addrtuple of nss.h.
#[repr(C)]
pub struct AddrTuple {
    next: *mut Self,
    name: *mut c_char,
    family: c_int,
    addr: [u32; 4],
    scope: u32,
}

/// Configures glibc to resolve hosts using this library, if the stack has a nameserver. Must be
/// called before each name lookup.
///
/// Does not use a lock, because a child forked while it is held could not take it. Concurrent calls
/// make the same change.
pub fn prepare() {
    if IS_PREPARED.load(Ordering::Acquire) {
        return;
    }
    if let Some(services) = dns::services(&POSIX) {
        configure(&services);
    }
    IS_PREPARED.store(true, Ordering::Release);
}

fn configure(services: &CStr) {
    type Configure = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
    // SAFETY: the name is NUL-terminated. musl lacks this function; its resolver uses our sockets.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nss_configure_lookup".as_ptr()) };
    if at.is_null() {
        return;
    }
    // SAFETY: glibc's function has had this type since 2.2.5, and copies both strings.
    unsafe {
        let configure: Configure = std::mem::transmute(at);
        configure(c"hosts".as_ptr(), services.as_ptr());
    }
}

/// Pointers to which a service function writes errno and h_errno.
struct NssErrors {
    errno: *mut c_int,
    h_errno: *mut c_int,
}

impl NssErrors {
    fn tell(&self, status: c_int, errno: c_int, h_errno: c_int) -> c_int {
        // SAFETY: nss.h requires both pointers to be valid.
        unsafe {
            *self.errno = errno;
            *self.h_errno = h_errno;
        }
        status
    }

    fn failed(&self, failure: ResolveError) -> c_int {
        match failure {
            ResolveError::NotFound => self.tell(NOTFOUND, libc::ENOENT, HOST_NOT_FOUND),
            ResolveError::NoData => self.tell(NOTFOUND, libc::ENOENT, NO_DATA),
            ResolveError::TryAgain => self.tell(TRYAGAIN, libc::EAGAIN, TRY_AGAIN),
            ResolveError::Unavailable => self.tell(UNAVAIL, libc::ENOENT, NETDB_INTERNAL),
        }
    }

    /// Returns the outcome of a lookup to glibc. `put` writes the result to the caller's buffer.
    /// `put` returns `None` if the buffer is too small; glibc then retries with a larger buffer.
    unsafe fn ended(
        &self,
        found: Result<FoundAddresses, ResolveError>,
        ttl: *mut i32,
        put: impl FnOnce(FoundAddresses) -> Option<()>,
    ) -> c_int {
        let found = match found {
            Ok(found) => found,
            Err(failure) => return self.failed(failure),
        };
        if !ttl.is_null() {
            // SAFETY: a `ttl` that is not null is valid, by the contract of nss.h.
            unsafe { *ttl = found.ttl.min(i32::MAX as u32) as i32 };
        }
        match put(found) {
            Some(()) => self.tell(SUCCESS, 0, 0),
            None => self.tell(TRYAGAIN, libc::ERANGE, NETDB_INTERNAL),
        }
    }
}

/// The unused part of the caller's buffer, from which memory for a result is allocated.
struct Arena {
    at: *mut u8,
    left: usize,
}

impl Arena {
    fn new(at: *mut c_char, left: usize) -> Self {
        Self { at: at.cast(), left }
    }

    /// Allocates aligned space for `count` values of `T` from the caller's buffer. Returns `None`
    /// if the buffer is too small.
    fn take<T>(&mut self, count: usize) -> Option<*mut T> {
        let gap = self.at.align_offset(align_of::<T>());
        let len = gap.checked_add(size_of::<T>().checked_mul(count)?)?;
        self.left = self.left.checked_sub(len)?;
        let taken = self.at.wrapping_add(gap);
        self.at = self.at.wrapping_add(len);
        Some(taken.cast())
    }

    fn put(&mut self, bytes: &[u8]) -> Option<*mut u8> {
        let to = self.take(bytes.len())?;
        // SAFETY: `take` has allocated `bytes.len()` bytes of the caller's buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(to)
    }

    fn put_text(&mut self, text: &str) -> Option<*mut c_char> {
        let text = CString::new(text).ok()?;
        self.put(text.as_bytes_with_nul()).map(|at| at.cast())
    }

    /// Stores a null-terminated array of pointers in the caller's buffer. Returns `None` if the
    /// buffer is too small.
    fn put_list(&mut self, all: &[*mut c_char]) -> Option<*mut *mut c_char> {
        let to: *mut *mut c_char = self.take(all.len() + 1)?;
        // SAFETY: `take` has allocated aligned space for these pointers and the null.
        unsafe {
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, all.len());
            *to.add(all.len()) = std::ptr::null_mut();
        }
        Some(to)
    }

    fn put_host(&mut self, found: &FoundAddresses, family: c_int, to: &mut hostent) -> Option<()> {
        let name = self.put_text(&found.name)?;
        let aliases: Option<Vec<_>> =
            found.aliases.iter().map(|alias| self.put_text(alias)).collect();
        let aliases = self.put_list(&aliases?)?;
        let mut addresses = Vec::new();
        for ip in &found.addresses {
            // Align addresses as integers, because programs read them as integers.
            let at: *mut u32 = self.take(if ip.is_ipv4() { 1 } else { 4 })?;
            write_address(ip, at);
            addresses.push(at.cast());
        }
        let list = self.put_list(&addresses)?;
        *to = hostent {
            h_name: name,
            h_aliases: aliases,
            h_addrtype: family,
            h_length: if family == libc::AF_INET { 4 } else { 16 },
            h_addr_list: list,
        };
        Some(())
    }

    /// Stores the found addresses as a list of tuples. If `to` points to a tuple of the caller, it
    /// becomes the first of the list. If the buffer is too small, `to` stays unchanged: glibc
    /// before 2.36 frees the buffer and retries with the same `to`.
    fn put_tuples(&mut self, found: &FoundAddresses, to: &mut *mut AddrTuple) -> Option<()> {
        let before = *to;
        let put = self.chain_tuples(found, to);
        if put.is_none() {
            *to = before;
        }
        put
    }

    fn chain_tuples(&mut self, found: &FoundAddresses, to: &mut *mut AddrTuple) -> Option<()> {
        let name = self.put_text(&found.name)?;
        let mut place: *mut *mut AddrTuple = to;
        for ip in &found.addresses {
            // SAFETY: `place` is the caller's pointer, or the field `next` of the last tuple
            // written.
            unsafe {
                if (*place).is_null() {
                    *place = self.take(1)?;
                }
                let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
                let next = std::ptr::null_mut();
                **place = AddrTuple { next, name, family, addr: [0; 4], scope: 0 };
                write_address(ip, (&raw mut (**place).addr).cast());
                place = &raw mut (**place).next;
            }
        }
        Some(())
    }
}

/// Writes an IP address in network byte order, as one or four 32-bit integers.
fn write_address(ip: &IpAddr, to: *mut u32) {
    // SAFETY: each caller has allocated space for an address of this family.
    unsafe {
        match ip {
            IpAddr::V4(ip) => to.cast::<[u8; 4]>().write(ip.octets()),
            IpAddr::V6(ip) => to.cast::<[u8; 16]>().write(ip.octets()),
        }
    }
}

unsafe fn found(name: *const c_char, family: Family) -> Result<FoundAddresses, ResolveError> {
    // SAFETY: `name` is NUL-terminated, by the contract of nss.h.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| ResolveError::NotFound)?;
    dns::addresses(&POSIX, name, family)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyname4_r(
    name: *const c_char,
    to: *mut *mut AddrTuple,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
    ttl: *mut i32,
) -> c_int {
    let errors = NssErrors { errno, h_errno };
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe {
        let put = |found: FoundAddresses| Arena::new(buffer, len).put_tuples(&found, &mut *to);
        errors.ended(found(name, Family::Both), ttl, put)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyname3_r(
    name: *const c_char,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
    ttl: *mut i32,
    canonical: *mut *mut c_char,
) -> c_int {
    let errors = NssErrors { errno, h_errno };
    let wanted = match family {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return errors.tell(UNAVAIL, libc::EAFNOSUPPORT, NO_DATA),
    };
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe {
        errors.ended(found(name, wanted), ttl, |found| {
            Arena::new(buffer, len).put_host(&found, family, &mut *to)?;
            if !canonical.is_null() {
                *canonical = (*to).h_name;
            }
            Some(())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyname2_r(
    name: *const c_char,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
) -> c_int {
    let (ttl, canonical) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe {
        _nss_towpath_gethostbyname3_r(name, family, to, buffer, len, errno, h_errno, ttl, canonical)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyname_r(
    name: *const c_char,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
) -> c_int {
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe { _nss_towpath_gethostbyname2_r(name, libc::AF_INET, to, buffer, len, errno, h_errno) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyaddr2_r(
    addr: *const c_void,
    addr_len: socklen_t,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
    ttl: *mut i32,
) -> c_int {
    let errors = NssErrors { errno, h_errno };
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe {
        let ip: IpAddr = match (family, addr_len) {
            (libc::AF_INET, 4) => Ipv4Addr::from(addr.cast::<[u8; 4]>().read()).into(),
            (libc::AF_INET6, 16) => Ipv6Addr::from(addr.cast::<[u8; 16]>().read()).into(),
            _ => return errors.tell(UNAVAIL, libc::EAFNOSUPPORT, NETDB_INTERNAL),
        };
        errors.ended(dns::hosts(&POSIX, ip.to_canonical()), ttl, |found| {
            let found = FoundAddresses { addresses: vec![ip], ..found };
            Arena::new(buffer, len).put_host(&found, family, &mut *to)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _nss_towpath_gethostbyaddr_r(
    addr: *const c_void,
    addr_len: socklen_t,
    family: c_int,
    to: *mut hostent,
    buffer: *mut c_char,
    len: usize,
    errno: *mut c_int,
    h_errno: *mut c_int,
) -> c_int {
    let ttl = std::ptr::null_mut();
    // SAFETY: glibc upholds the contract of nss.h.
    unsafe {
        _nss_towpath_gethostbyaddr2_r(addr, addr_len, family, to, buffer, len, errno, h_errno, ttl)
    }
}
