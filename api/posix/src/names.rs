//! Resolves the machine's own host name to the stack's addresses.
//!
//! Programs bind to the name that gethostname(2) returns, and publish it as their address (Java
//! RMI, Erlang, MPI, Hadoop). On the host, the name resolves to an address that the stack does not
//! have. Therefore this module resolves it to the stack's addresses, as in a container.
//!
//! Names configured by the user ([`crate::given`]) take precedence.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_client::syscall::syscall;
use towpath_shm::layout::RawAddr;

use crate::{Posix, given, interface};

/// Returns the addresses of a host name, if it is configured by the user or is the machine's own.
/// IPv4 addresses come first. `None` means that the name is resolved as on the host.
pub fn of_name(posix: &'static Posix, name: &CStr) -> Option<Vec<IpAddr>> {
    let given = given::addresses(posix, name);
    if given.is_empty() { of_own(posix, name) } else { Some(given) }
}

/// Returns the host name of an address, if the name is configured by the user or the address is the
/// stack's. `None` means that the address is looked up as on the host.
pub fn of_address(posix: &'static Posix, ip: IpAddr) -> Option<String> {
    let own = || is_own_address(posix, ip).then(|| own(posix)).flatten();
    given::name_of(posix, ip).or_else(own)
}

/// Returns the stack's addresses that other hosts can reach, IPv4 first, if `name` is the machine's
/// own host name. Returns `None` for other names, and if the stack has no such address.
fn of_own(posix: &'static Posix, name: &CStr) -> Option<Vec<IpAddr>> {
    if !posix.is_active() || !is_own(posix, name) {
        return None;
    }
    let mut all = addresses(posix);
    all.sort_by_key(|ip| !ip.is_ipv4());
    (!all.is_empty()).then_some(all)
}

fn is_own_address(posix: &'static Posix, ip: IpAddr) -> bool {
    posix.is_active() && addresses(posix).contains(&ip)
}

/// Returns the machine's host name, as gethostname(2) does.
pub(crate) fn own(posix: &'static Posix) -> Option<String> {
    if let Some(given) = given::hostname(posix) {
        return String::from_utf8(given.bytes().to_vec()).ok();
    }
    // SAFETY: a utsname consists of byte arrays, so zeros are valid.
    let mut known: libc::utsname = unsafe { std::mem::zeroed() };
    let args = [&raw mut known as usize, 0, 0, 0, 0, 0];
    // SAFETY: the kernel fills in `known`, which outlives the call. (libc's uname is not called,
    // because it may be this library's.)
    unsafe { syscall(libc::SYS_uname as usize, args) }.ok()?;
    // SAFETY: uname(2) writes NUL-terminated strings.
    let name = unsafe { CStr::from_ptr(known.nodename.as_ptr()) };
    name.to_str().ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Returns whether `name` is the machine's own host name.
pub fn is_own(posix: &'static Posix, name: &CStr) -> bool {
    // Compare the name without regard to case, as for all DNS names (RFC 4343).
    own(posix).is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(name.to_bytes()))
}

/// Returns whether the stack has IPv4 addresses, and whether it has IPv6 addresses, except loopback
/// addresses. getaddrinfo(3) needs this for AI_ADDRCONFIG. `None` means that the kernel's addresses
/// count.
pub fn families(posix: &'static Posix) -> Option<(bool, bool)> {
    let entries = posix.is_active().then(|| interface::list(posix).ok()).flatten()?;
    let ips = entries.iter().filter_map(|entry| ip(&entry.addr)).filter(|ip| !ip.is_loopback());
    Some(ips.fold((false, false), |(v4, v6), ip| (v4 || ip.is_ipv4(), v6 || ip.is_ipv6())))
}

fn addresses(posix: &'static Posix) -> Vec<IpAddr> {
    let entries = interface::list(posix).unwrap_or_default();
    let reached =
        |entry: &&towpath_shm::control::Interface| entry.flags & libc::IFF_LOOPBACK as u32 == 0;
    let ips = entries.iter().filter(reached).filter_map(|entry| ip(&entry.addr));
    ips.filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())).collect()
}

pub(crate) fn ip(addr: &RawAddr) -> Option<IpAddr> {
    match i32::from(addr.family) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = addr.ip;
            Some(Ipv4Addr::new(a, b, c, d).into())
        }
        libc::AF_INET6 => Some(Ipv6Addr::from(addr.ip).into()),
        _ => None,
    }
}
