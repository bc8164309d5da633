//! Conversion of socket addresses between IPv4 and IPv6, by the address family of a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use towpath_shm::layout::{RawAddr, Slot, option_bit};

use super::handle::{INET, INET6, fail};

/// Returns the address family that a socket needs to bind or connect to this address.
pub(crate) fn family_of(addr: &SocketAddr) -> u32 {
    if addr.is_ipv4() { INET } else { INET6 }
}

/// Converts an address to the form that a socket of `family` reports. IPv6 sockets report an IPv4
/// address as `::ffff:a.b.c.d`.
pub(crate) fn shown(raw: RawAddr, family: u32) -> SocketAddr {
    let any = if family == INET6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { UNSPECIFIED };
    match raw.to_socket_addr() {
        None => SocketAddr::new(any, raw.port),
        Some(SocketAddr::V4(addr)) if family == INET6 => {
            let ip = match addr.ip().is_unspecified() {
                true => Ipv6Addr::UNSPECIFIED,
                false => addr.ip().to_ipv6_mapped(),
            };
            SocketAddr::new(ip.into(), addr.port())
        }
        Some(SocketAddr::V6(addr)) if family == INET => {
            SocketAddr::new(addr.ip().to_ipv4_mapped().map_or(any, IpAddr::V4), addr.port())
        }
        Some(addr) => addr,
    }
}

const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Returns the unspecified address of the family of `addr`, with port 0.
#[cfg(feature = "tokio")]
pub(crate) fn unspecified(addr: &SocketAddr) -> SocketAddr {
    let v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    SocketAddr::new(if addr.is_ipv4() { UNSPECIFIED } else { v6 }, 0)
}

/// Returns whether this is the address of an IPv6 host: neither an IPv4-mapped address nor `::`.
pub(crate) fn is_v6_host(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(addr)
        if !addr.ip().is_unspecified() && addr.ip().to_ipv4_mapped().is_none())
}

/// Converts the destination of a datagram to the address that the engine uses, for a socket of
/// `family`.
///
/// # Errors
/// The same as on Linux:
/// - EAFNOSUPPORT for a peer of a family that the socket does not support;
/// - ENETUNREACH for an IPv4 peer of an IPv6-only socket (IPV6_V6ONLY).
pub(crate) fn reached(slot: &Slot, family: u32, addr: SocketAddr) -> io::Result<RawAddr> {
    if family == INET {
        return if addr.is_ipv4() { Ok(RawAddr::new(addr)) } else { fail(Errno::AFNOSUPPORT) };
    }
    let from_v4 = is_mapped(&shown(slot.local.load(), family));
    let is_v4 = addr.is_ipv4() || is_mapped(&addr);
    if is_v4 && slot.option_bits.load(Relaxed) & option_bit::V6ONLY != 0 {
        fail(Errno::NETUNREACH)
    } else if from_v4 && is_v6_host(&addr) {
        fail(Errno::AFNOSUPPORT)
    } else if from_v4 && !is_v4 {
        // As on Linux, the destination `::` means this host, in the IP version to which the socket
        // is bound.
        let loopback = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        Ok(RawAddr::new(SocketAddr::new(loopback.into(), addr.port())))
    } else {
        Ok(RawAddr::new(match addr {
            SocketAddr::V4(v4) => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            v6 => v6,
        }))
    }
}

fn is_mapped(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(addr) if addr.ip().to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawAddr {
        RawAddr::new(text.parse().unwrap())
    }

    fn text(raw: RawAddr, family: u32) -> String {
        shown(raw, family).to_string()
    }

    #[test]
    fn ipv4_on_an_ipv6_socket_is_mapped() {
        assert_eq!(text(raw("10.1.2.3:80"), INET6), "[::ffff:10.1.2.3]:80");
        assert_eq!(text(raw("[::ffff:10.1.2.3]:80"), INET), "10.1.2.3:80");
        assert_eq!(text(raw("0.0.0.0:80"), INET6), "[::]:80");
        assert_eq!(text(raw("[fe80::1%7]:443"), INET6), "[fe80::1%7]:443");
    }

    #[test]
    fn an_address_that_is_not_set_is_the_any_address() {
        assert_eq!(text(RawAddr::default(), INET), "0.0.0.0:0");
        assert_eq!(text(RawAddr::default(), INET6), "[::]:0");
    }

    #[test]
    fn datagrams_reach_peers_of_the_families_that_the_socket_speaks() {
        let slot = Slot::default();
        let reach = |slot: &Slot, family, to: &str| {
            let reached = reached(slot, family, to.parse().unwrap());
            reached
                .map(|raw| raw.to_socket_addr().unwrap().to_string())
                .map_err(|error| error.kind())
        };
        let errno = |errno: Errno| Err(io::Error::from(errno).kind());
        assert_eq!(reach(&slot, INET, "10.1.2.3:9"), Ok("10.1.2.3:9".into()));
        assert_eq!(reach(&slot, INET, "[::1]:9"), errno(Errno::AFNOSUPPORT));
        assert_eq!(reach(&slot, INET6, "10.1.2.3:9"), Ok("[::ffff:10.1.2.3]:9".into()));
        slot.option_bits.store(option_bit::V6ONLY, Relaxed);
        assert_eq!(reach(&slot, INET6, "10.1.2.3:9"), errno(Errno::NETUNREACH));
        assert_eq!(reach(&slot, INET6, "[::1]:9"), Ok("[::1]:9".into()));
        slot.option_bits.store(0, Relaxed);
        slot.local.store(&raw("[::ffff:127.0.0.1]:1"));
        assert_eq!(reach(&slot, INET6, "[::1]:9"), errno(Errno::AFNOSUPPORT));
        assert_eq!(reach(&slot, INET6, "[::]:9"), Ok("[::ffff:127.0.0.1]:9".into()));
    }
}
