//! Reports changes of network interfaces, by means of rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use towpath_shm::Fd;

/// Netlink socket that receives a message whenever an interface of the network namespace changes.
#[derive(Debug)]
pub struct LinkWatch {
    socket: Fd,
}

/// Message with the MTU and the link of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkReport {
    /// Index of the interface.
    pub index: u32,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Whether the interface is up and has a link.
    pub has_carrier: bool,
}

/// Bit of the multicast group in <linux/rtnetlink.h> that receives messages about interfaces.
const RTMGRP_LINK: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// Lengths of `struct nlmsghdr`, `struct ifinfomsg` and `struct rtattr` in bytes.
const NLMSG_LEN: usize = 16;
const IFINFOMSG_LEN: usize = 16;
const RTATTR_LEN: usize = 4;
/// Offset of `ifi_index` in `struct ifinfomsg`.
const INDEX_AT: usize = 4;
/// Offset of `ifi_flags` in `struct ifinfomsg`.
const FLAGS_AT: usize = 8;
const IFF_RUNNING: u32 = 0x40;
const IFLA_MTU: u16 = 4;
/// Maximum length of a netlink message in bytes. The message about an interface with many virtual
/// functions has about 10 KiB.
const REPORT_LEN: usize = 32 << 10;

impl LinkWatch {
    /// Opens the netlink socket in nonblocking mode.
    ///
    /// # Errors
    /// Returns errors of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Protocol 0 of a netlink socket is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
        Ok(Self { socket: socket.into() })
    }

    /// Requests a message about an interface's current MTU.
    ///
    /// # Errors
    /// Returns errors of send(2).
    pub fn request(&self, index: u32) -> io::Result<()> {
        let len = NLMSG_LEN + IFINFOMSG_LEN;
        let mut packet = [0; NLMSG_LEN + IFINFOMSG_LEN];
        packet[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        packet[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
        packet[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        packet[NLMSG_LEN + INDEX_AT..][..4].copy_from_slice(&index.to_ne_bytes());
        send(&self.socket, &packet, SendFlags::empty())?;
        Ok(())
    }

    /// Calls `to` for each message that arrived since the last call.
    ///
    /// # Errors
    /// Returns ENOBUFS if messages were lost; call [`Self::request`] to get current values.
    pub fn read(&self, mut to: impl FnMut(LinkReport)) -> io::Result<()> {
        let mut packet = vec![0; REPORT_LEN];
        loop {
            match recv(&self.socket, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => reports(&packet[..len.min(REPORT_LEN)], &mut to),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Calls `to` for each interface message in a netlink packet.
fn reports(mut packet: &[u8], to: &mut impl FnMut(LinkReport)) {
    while let Some((len, kind)) = u32_at(packet, 0).zip(u16_at(packet, 4)) {
        let len = len as usize;
        // Parse a truncated message too, because the MTU is among the first attributes.
        let Some(body) = packet.get(NLMSG_LEN..len.min(packet.len())) else { return };
        if kind == RTM_NEWLINK
            && let Some(report) = report_in(body)
        {
            to(report);
        }
        packet = packet.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Parses the MTU and the link from a `struct ifinfomsg` and the attributes that follow it.
fn report_in(body: &[u8]) -> Option<LinkReport> {
    let index = u32_at(body, INDEX_AT)?;
    let has_carrier = u32_at(body, FLAGS_AT)? & IFF_RUNNING != 0;
    let mut rest = body.get(IFINFOMSG_LEN..)?;
    while let Some((len, kind)) = u16_at(rest, 0).zip(u16_at(rest, 2)) {
        let value = rest.get(RTATTR_LEN..len.into())?;
        if kind == IFLA_MTU {
            return Some(LinkReport { index, mtu: u32_at(value, 0)?, has_carrier });
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    None
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

    fn message(kind: u16, index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; NLMSG_LEN + IFINFOMSG_LEN];
        body[NLMSG_LEN + INDEX_AT..][..4].copy_from_slice(&index.to_ne_bytes());
        for (kind, value) in attributes {
            body.extend(((RTATTR_LEN + value.len()) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let len = body.len() as u32;
        body[..4].copy_from_slice(&len.to_ne_bytes());
        body[4..6].copy_from_slice(&kind.to_ne_bytes());
        body
    }

    fn all(packet: &[u8]) -> Vec<LinkReport> {
        let mut all = Vec::new();
        reports(packet, &mut |report| all.push(report));
        all
    }

    #[test]
    fn reports_are_read_and_cut_ones_do_no_harm() {
        let mtu = 1500u32.to_ne_bytes();
        let name: (u16, &[u8]) = (3, b"veth0\0");
        let report = message(RTM_NEWLINK, 7, &[name, (IFLA_MTU, &mtu), name]);
        let packet = [report.clone(), message(17, 8, &[(IFLA_MTU, &mtu)]), report].concat();
        let wanted = LinkReport { index: 7, mtu: 1500, has_carrier: false };
        assert_eq!(all(&packet), [wanted; 2]);
        for len in 0..packet.len() {
            assert!(all(&packet[..len]).iter().all(|report| *report == wanted));
        }
        assert!(all(&message(RTM_NEWLINK, 7, &[(IFLA_MTU, &mtu[..2])])).is_empty());
        assert!(all(&[0; 64]).len() <= 1);
    }

    #[test]
    fn the_kernel_reports_the_loopback() {
        let watch = LinkWatch::open().expect("a netlink socket");
        watch.request(1).expect("sent");
        let mut found = None;
        watch.read(|report| found = found.or(Some(report))).expect("read");
        // The kernel answers before send(2) returns.
        assert!(found.is_some_and(|report| report.index == 1 && report.mtu >= 1280), "{found:?}");
    }
}
