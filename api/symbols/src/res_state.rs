//! `struct __res_state` of resolv.h, which contains the settings of glibc's resolver. Programs may
//! change them.

use std::ffi::CStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use libc::{c_char, c_int, c_ulong, c_void, in_addr, sockaddr_in, sockaddr_in6};
use towpath_posix::dns::Substitution;
use towpath_posix::dns::raw::StubSettings;

/// Maximum number of nameservers (MAXNS of resolv.h). [`DOMAINS_MAX`] is that of search domains
/// (MAXDNSRCH).
const SERVERS_MAX: usize = 3;
const DOMAINS_MAX: usize = 6;
/// Mask of the bit field `ndots` in [`ResState`]'s `bits`.
const NDOTS_MASK: u32 = 15;

/// State of glibc's resolver (`struct __res_state`). Fields with an underscore are used by glibc
/// alone, and are named as in resolv.h.
#[repr(C)]
pub struct ResState {
    retrans: c_int,
    retry: c_int,
    pub options: c_ulong,
    nscount: c_int,
    nsaddr_list: [sockaddr_in; SERVERS_MAX],
    pub id: u16,
    dnsrch: [*const c_char; DOMAINS_MAX + 1],
    _defdname: [c_char; 256],
    pfcode: c_ulong,
    /// Bit fields of the structure: `ndots` and others.
    bits: u32,
    _sort_list: [[u32; 2]; 10],
    _hooks: [*const c_void; 2],
    pub res_h_errno: c_int,
    _vcsock: c_int,
    _flags: u32,
    ext: Extension,
}

/// The part `_u._ext` of `struct __res_state`.
#[repr(C)]
struct Extension {
    _nscount: u16,
    _nsmap: [u16; SERVERS_MAX],
    _nssocks: [c_int; SERVERS_MAX],
    _nscount6: u16,
    _nsinit: u16,
    nsaddrs: [*mut sockaddr_in6; SERVERS_MAX],
    _index: [u32; 2],
}

// Check the layout of the structure, which has been the same since glibc 2.2
// (resolv/bits/types/res_state.h).
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<ResState>() == 568
        && std::mem::offset_of!(ResState, dnsrch) == 72
        && std::mem::offset_of!(ResState, pfcode) == 384
        && std::mem::offset_of!(ResState, res_h_errno) == 496
        && std::mem::offset_of!(ResState, ext.nsaddrs) == 536
);

impl ResState {
    /// Returns the settings in this structure, with nameservers replaced by that of the stack.
    ///
    /// # Safety
    /// glibc or the program must have initialized the state as resolv.h requires.
    pub unsafe fn settings(&self, substitution: &Substitution) -> StubSettings {
        // SAFETY: the state is initialized, by the contract of this function.
        let (servers, domains) = unsafe { (self.servers(), self.domains()) };
        StubSettings {
            servers: substitution.apply(&servers),
            domains,
            flags: self.options,
            ndots: (self.bits & NDOTS_MASK) as usize,
            timeout: Duration::from_secs(u64::try_from(self.retrans).unwrap_or(0)),
            attempts: u32::try_from(self.retry).unwrap_or(0),
            takes_failures: self.pfcode != 0,
        }
    }

    /// Returns the nameservers in the order in which the structure contains them.
    unsafe fn servers(&self) -> Vec<SocketAddr> {
        let count = usize::try_from(self.nscount).unwrap_or(0).min(SERVERS_MAX);
        let mut all = Vec::with_capacity(count);
        for (v4, v6) in self.nsaddr_list.iter().zip(self.ext.nsaddrs).take(count) {
            if v4.sin_family != 0 || v6.is_null() {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                all.push(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)));
            } else {
                // SAFETY: a pointer that is not null points to an address that glibc or the program
                // has allocated.
                let v6 = unsafe { v6.read_unaligned() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                // Skip a server with a scope id, because the stack cannot reach a server on a link
                // of the host.
                if v6.sin6_scope_id == 0 {
                    all.push(SocketAddrV6::new(ip, port, 0, 0).into());
                }
            }
        }
        all
    }

    unsafe fn domains(&self) -> Vec<Vec<u8>> {
        let all = self.dnsrch.iter().take_while(|domain| !domain.is_null());
        // SAFETY: each pointer before the first null is a NUL-terminated string.
        all.map(|domain| unsafe { CStr::from_ptr(*domain) }.to_bytes().to_vec()).collect()
    }

    /// Replaces nameservers in this structure by that of the stack, for programs that read the
    /// structure.
    ///
    /// # Safety
    /// glibc must have just initialized the state.
    pub unsafe fn substitute(&mut self, substitution: &Substitution) {
        // SAFETY: the state is initialized, by the contract of this function.
        let before = unsafe { self.servers() };
        let servers = substitution.apply(&before);
        if servers == before {
            return;
        }
        let mut count = 0;
        for server in servers.iter().take(SERVERS_MAX) {
            // SAFETY: glibc has initialized the state, so its pointers are null or from malloc.
            count += usize::from(unsafe { self.put(count, *server) });
        }
        self.nscount = count as c_int;
    }

    /// Stores a nameserver at index `at`. Returns false if memory for an IPv6 address cannot be
    /// allocated.
    unsafe fn put(&mut self, at: usize, server: SocketAddr) -> bool {
        let (family, ip) = match server {
            SocketAddr::V4(v4) => (libc::AF_INET, u32::from_ne_bytes(v4.ip().octets())),
            SocketAddr::V6(_) => (0, 0),
        };
        if let SocketAddr::V6(v6) = server {
            let place = &mut self.ext.nsaddrs[at];
            // SAFETY: this memory is from malloc, because glibc frees it by free(3) in res_nclose.
            unsafe {
                if place.is_null() {
                    *place = libc::malloc(size_of::<sockaddr_in6>()).cast();
                }
                if place.is_null() {
                    return false;
                }
                place.write(sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: 0,
                });
            }
        }
        self.nsaddr_list[at] = sockaddr_in {
            sin_family: family as u16,
            sin_port: server.port().to_be(),
            sin_addr: in_addr { s_addr: ip },
            sin_zero: [0; 8],
        };
        true
    }
}
