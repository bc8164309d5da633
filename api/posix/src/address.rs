//! Converts socket addresses between `struct sockaddr` and their form in shared memory.

use towpath_shm::layout::{RawAddr, Slot};

use crate::Result;
use crate::errno::fail;
use std::sync::atomic::Ordering::Relaxed;

/// The address family AF_INET as a `u32`, as in [`Slot::family`].
pub const INET: u32 = libc::AF_INET as u32;
/// The address family AF_INET6 as a `u32`, as in [`Slot::family`].
pub const INET6: u32 = libc::AF_INET6 as u32;
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Minimum length in bytes of an IPv6 socket address: a `sockaddr_in6` without `sin6_scope_id`,
/// which RFC 2133 did not define. Linux accepts this length as well.
const INET6_LEN_MIN: usize = 24;

/// Reads a `sockaddr` that a program passed to a socket call. For AF_UNSPEC, the result has family
/// 0.
///
/// # Errors
/// EINVAL if the address is too short or too long, EFAULT if `at` is null. EAFNOSUPPORT if its
/// family is neither IPv4, IPv6 nor AF_UNSPEC.
///
/// # Safety
/// `at` must point to `len` readable bytes (or be null).
pub unsafe fn read(at: *const libc::sockaddr, len: libc::socklen_t) -> Result<RawAddr> {
    let len = len as usize;
    if len > size_of::<libc::sockaddr_storage>() {
        return fail(libc::EINVAL);
    }
    if at.is_null() {
        return fail(libc::EFAULT);
    }
    if len < size_of::<libc::sa_family_t>() {
        return fail(libc::EINVAL);
    }
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let n = len.min(bytes.len());
    // SAFETY: `at` points to `len` readable bytes, and `n` is at most `len` and the size of
    // `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), bytes.as_mut_ptr(), n) };
    let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let mut addr = RawAddr { family, port, scope: 0, ip: [0; 16] };
    match i32::from(family) {
        libc::AF_UNSPEC => return Ok(RawAddr::default()),
        libc::AF_INET if len < size_of::<libc::sockaddr_in>() => return fail(libc::EINVAL),
        libc::AF_INET => addr.ip[..4].copy_from_slice(&bytes[4..8]),
        libc::AF_INET6 if len < INET6_LEN_MIN => return fail(libc::EINVAL),
        libc::AF_INET6 => {
            addr.ip.copy_from_slice(&bytes[8..24]);
            addr.scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        }
        _ => return fail(libc::EAFNOSUPPORT),
    }
    Ok(addr)
}

/// Returns whether a `sockaddr` has a valid length: at least that of its family field, and at most
/// that of `sockaddr_storage`. connect(2) and sendto(2) check only this before they bind the
/// socket.
pub fn has_family(at: *const libc::sockaddr, len: libc::socklen_t) -> bool {
    let lens = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    !at.is_null() && lens.contains(&(len as usize))
}

/// Returns whether a `sockaddr` of `len` bytes is long enough for an address of `family`. bind(2)
/// and connect(2) check this before they read the address.
pub fn is_long_enough(len: libc::socklen_t, family: u32) -> bool {
    let least = if family == INET6 { INET6_LEN_MIN } else { size_of::<libc::sockaddr_in>() };
    len as usize >= least
}

/// Returns whether `addr` is an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`).
pub fn is_mapped(addr: &RawAddr) -> bool {
    u32::from(addr.family) == INET6 && addr.ip[..12] == V4_MAPPED
}

/// Returns whether `addr` is an IPv6 address that is neither IPv4-mapped nor unspecified (`::`).
pub fn is_v6_host(addr: &RawAddr) -> bool {
    u32::from(addr.family) == INET6 && !is_mapped(addr) && addr.ip != [0; 16]
}

/// Writes an address to the program's buffer, truncated to `*len` bytes, and sets `*len` to the
/// full length. Writes nothing if `at` or `len` is null.
///
/// # Errors
/// EINVAL if `*len`, read as an int, is negative.
///
/// # Safety
/// `at` must point to `*len` writable bytes; both may be null.
pub unsafe fn write(
    addr: &RawAddr,
    at: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    if at.is_null() || len.is_null() {
        return Ok(());
    }
    let (bytes, true_len) = encode(addr);
    // SAFETY: `len` is not null, and the caller passes a valid pointer.
    let room = unsafe { *len };
    if room as i32 <= -1 {
        return fail(libc::EINVAL);
    }
    let n = true_len.min(room as usize);
    // SAFETY: `at` points to `room` writable bytes, and `n` is at most `room`. `len` is not null,
    // and the caller passes a valid pointer.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), n);
        *len = true_len as libc::socklen_t;
    }
    Ok(())
}

/// Encodes an address as a `sockaddr_in` or `sockaddr_in6`. Returns the bytes and how many of them
/// are used.
pub fn encode(addr: &RawAddr) -> ([u8; 28], usize) {
    let mut out = [0; 28];
    out[..2].copy_from_slice(&addr.family.to_ne_bytes());
    out[2..4].copy_from_slice(&addr.port.to_be_bytes());
    if u32::from(addr.family) == INET6 {
        out[8..24].copy_from_slice(&addr.ip);
        out[24..28].copy_from_slice(&addr.scope.to_ne_bytes());
        (out, size_of::<libc::sockaddr_in6>())
    } else {
        out[4..8].copy_from_slice(&addr.ip[..4]);
        (out, size_of::<libc::sockaddr_in>())
    }
}

/// Converts an address to the form in which a socket of `family` reports it. IPv6 sockets report
/// IPv4 addresses as ::ffff:a.b.c.d, and a socket without an address reports the unspecified
/// address (0.0.0.0 or `::`).
pub fn shown(addr: RawAddr, family: u32) -> RawAddr {
    let is_v4 = u32::from(addr.family) == INET;
    match family {
        INET6 if is_v4 => {
            let mut ip = [0; 16];
            if addr.ip[..4] != [0; 4] {
                ip[..12].copy_from_slice(&V4_MAPPED);
                ip[12..].copy_from_slice(&addr.ip[..4]);
            }
            RawAddr { family: INET6 as u16, scope: 0, ip, ..addr }
        }
        INET if is_mapped(&addr) => {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&addr.ip[12..]);
            RawAddr { family: INET as u16, scope: 0, ip, ..addr }
        }
        _ if addr.family == 0 => RawAddr { family: family as u16, ..RawAddr::default() },
        _ => addr,
    }
}

/// Converts a datagram's destination address for a socket of `family`, for example to an
/// IPv4-mapped IPv6 address. Unlike [`shown`], it does not convert 0.0.0.0 to `::`. As a
/// destination, 0.0.0.0 means 127.0.0.1, but `::` means `::1`.
pub fn sent_to(addr: RawAddr, family: u32) -> RawAddr {
    let any_v4 = u32::from(addr.family) == INET && addr.ip[..4] == [0; 4];
    let shown = shown(addr, family);
    if family == INET6 && any_v4 {
        let mut ip = [0; 16];
        ip[..12].copy_from_slice(&V4_MAPPED);
        return RawAddr { ip, ..shown };
    }
    shown
}

/// Returns a socket's local address, as getsockname(2) reports it.
pub fn local(slot: &Slot) -> RawAddr {
    shown(slot.local.load(), slot.family.load(Relaxed))
}

/// Returns the address of a socket's peer, as getpeername(2) reports it.
pub fn remote(slot: &Slot) -> RawAddr {
    shown(slot.remote.load(), slot.family.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_truncation() {
        for text in ["10.1.2.3:80", "[fe80::1%7]:443"] {
            let addr = RawAddr::new(text.parse().unwrap());
            let (bytes, len) = encode(&addr);
            // SAFETY: `bytes` is at least `len` bytes long.
            let back = unsafe { read(bytes.as_ptr().cast(), len as u32) }.unwrap();
            assert_eq!(back, addr);
            let mut out = [0xaau8; 8];
            let mut room = 4;
            // SAFETY: `out` has more than the four bytes that `room` allows to be written.
            unsafe { write(&addr, out.as_mut_ptr().cast(), &raw mut room) }.unwrap();
            assert_eq!(room as usize, len);
            assert_eq!((&out[..4], &out[4..]), (&bytes[..4], &[0xaa; 4][..]));
        }
        let short = [2u8, 0, 0, 80];
        // SAFETY: `short` is 4 bytes long.
        assert_eq!(unsafe { read(short.as_ptr().cast(), 4) }, fail(libc::EINVAL));
        let unix = [1u8; 16];
        // SAFETY: `unix` is 16 bytes long.
        assert_eq!(unsafe { read(unix.as_ptr().cast(), 16) }, fail(libc::EAFNOSUPPORT));
    }

    #[test]
    fn v4_on_a_v6_socket_is_mapped() {
        let v4 = RawAddr::new("10.1.2.3:80".parse().unwrap());
        let mapped = shown(v4, INET6);
        assert_eq!(mapped, RawAddr::new("[::ffff:10.1.2.3]:80".parse().unwrap()));
        assert_eq!(shown(mapped, INET), v4);
        let any = RawAddr::new("0.0.0.0:80".parse().unwrap());
        assert_eq!(shown(any, INET6), RawAddr::new("[::]:80".parse().unwrap()));
        assert_eq!(sent_to(any, INET6), RawAddr::new("[::ffff:0.0.0.0]:80".parse().unwrap()));
        assert_eq!((sent_to(any, INET), sent_to(v4, INET6)), (any, mapped));
        let any = shown(RawAddr::default(), INET6);
        assert_eq!(any, RawAddr::new("[::]:0".parse().unwrap()));
    }
}
