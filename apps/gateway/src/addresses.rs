//! Detects when an address is removed from the host, using rtnetlink(7).
//!
//! A connected IPv6 socket keeps sending from a removed address, because Linux checks the source
//! only at connect(2). The answers are lost. Over IPv4 each send(2) fails. Datagram flows have no
//! handshake to detect this, so they restart from another address. TCP connections wait for their
//! address, as on any host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, getsockname, recv, socket_with,
};
use towpath_shm::{Fd, opened};

/// Netlink socket that receives notifications of removed addresses.
#[derive(Debug)]
pub(crate) struct AddressWatch {
    socket: Fd,
}

/// Addresses that were removed from the host's interfaces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LostAddresses {
    These(Vec<IpAddr>),
    /// Notifications were lost (ENOBUFS), so any address may have been removed.
    Unknown,
}

/// Bits of rtnetlink multicast groups, from <linux/rtnetlink.h>.
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTM_DELADDR: u16 = 21;
/// Lengths of `struct nlmsghdr`, `struct ifaddrmsg` and `struct rtattr` in bytes.
const NLMSG_LEN: usize = 16;
const IFADDRMSG_LEN: usize = 8;
const RTATTR_LEN: usize = 4;
/// Netlink attribute that contains the address, or the peer's address on a point-to-point link.
const IFA_ADDRESS: u16 = 1;
/// Netlink attribute that contains the local address. Always present for IPv4.
const IFA_LOCAL: u16 = 2;
/// Length of the receive buffer for notifications in bytes; netlink(7) recommends 8192.
const NEWS_LEN: usize = 8192;

impl AddressWatch {
    /// Opens the netlink socket. Returns `None` if the host forbids it. Flows whose source address
    /// is removed then end only by their idle timeout.
    pub(crate) fn open() -> Option<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Protocol 0 of a netlink socket is NETLINK_ROUTE.
        let open = || socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        let socket = Fd::from(opened(open).ok()?);
        let groups = SocketAddrNetlink::new(0, RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR);
        bind(&socket, &groups).ok()?;
        Some(Self { socket })
    }

    pub(crate) fn fd(&self) -> &Fd {
        &self.socket
    }

    /// Returns the addresses that were removed from the host since the last call.
    pub(crate) fn lost(&self) -> LostAddresses {
        let mut lost = Vec::new();
        let mut news = [0; NEWS_LEN];
        loop {
            match recv(&self.socket, &mut news[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => lost.extend(lost_in(news.get(..len).unwrap_or_default())),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return LostAddresses::These(lost),
                Err(_) => return LostAddresses::Unknown,
            }
        }
    }
}

impl LostAddresses {
    /// Returns whether a host socket sends from a removed address.
    pub(crate) fn has_source_of(&self, host: &Fd) -> bool {
        let local = getsockname(host).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        local.is_some_and(|local| match self {
            Self::These(all) => all.contains(&local.ip()),
            Self::Unknown => !local.ip().is_loopback(),
        })
    }
}

/// Returns the removed addresses that a netlink packet reports.
fn lost_in(mut packet: &[u8]) -> Vec<IpAddr> {
    let mut all = Vec::new();
    while let Some((len, kind)) = u32_at(packet, 0).zip(u16_at(packet, 4)) {
        let Some(body) = packet.get(NLMSG_LEN..len as usize) else { break };
        if kind == RTM_DELADDR {
            all.extend(address(body));
        }
        packet = packet.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Returns the local address from a `struct ifaddrmsg` with its attributes.
fn address(body: &[u8]) -> Option<IpAddr> {
    let mut found = [None; 2];
    let mut rest = body.get(IFADDRMSG_LEN..)?;
    while let Some((len, kind)) = u16_at(rest, 0).zip(u16_at(rest, 2)) {
        let Some(value) = rest.get(RTATTR_LEN..len.into()) else { break };
        if [IFA_ADDRESS, IFA_LOCAL].contains(&kind) {
            found[usize::from(kind - IFA_ADDRESS)] = ip(value);
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    let [address, local] = found;
    local.or(address)
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|ip| Ipv4Addr::from(ip).into());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|ip| Ipv6Addr::from(ip).into())).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; IFADDRMSG_LEN];
        for (kind, value) in attributes {
            body.extend(((RTATTR_LEN + value.len()) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut all = Vec::new();
        all.extend(((NLMSG_LEN + body.len()) as u32).to_ne_bytes());
        all.extend(kind.to_ne_bytes());
        all.resize(NLMSG_LEN, 0);
        all.extend(body);
        all
    }

    #[test]
    fn own_addresses_are_read() {
        let v6: Ipv6Addr = "fd00::1".parse().unwrap();
        let (own, peer): (&[u8], &[u8]) = (&[192, 0, 2, 1], &[192, 0, 2, 2]);
        let label: &[u8] = b"eth0\0";
        let packet = [
            message(RTM_DELADDR, &[(IFA_ADDRESS, peer), (IFA_LOCAL, own), (3, label)]),
            message(RTM_DELADDR - 1, &[(IFA_LOCAL, peer)]),
            message(RTM_DELADDR, &[(IFA_ADDRESS, &v6.octets())]),
        ]
        .concat();
        let wanted: [IpAddr; 2] = [[192, 0, 2, 1].into(), v6.into()];
        assert_eq!(lost_in(&packet), wanted);
        // Parsing a truncated packet must not panic, and returns only addresses of complete
        // messages.
        for len in 0..packet.len() {
            assert!(lost_in(&packet[..len]).len() < 2, "{len}");
        }
        let mut wild = packet;
        wild[NLMSG_LEN + IFADDRMSG_LEN] = 0;
        lost_in(&wild);
    }
}
