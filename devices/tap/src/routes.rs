//! Adds routes through a device to this host, and checks whether packets take these routes.

use std::io;
use std::net::IpAddr;

use crate::host::{HostError, Message, Netlink, attributes, u32_at};

/// IP network: address and prefix length.
pub type Network = (IpAddr, u8);

/// Properties of a packet, besides its destination, that determine its route.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks<'a> {
    /// Mark of the socket that sends the packet (SO_MARK).
    pub mark: Option<u32>,
    /// Interface to which the sending socket is bound.
    pub interface: Option<&'a str>,
}

/// Lengths of `struct nlmsghdr` and `struct rtmsg` in bytes.
const NLMSG_LEN: usize = 16;
const RTMSG_LEN: usize = 12;
/// Offset of `rtm_scope` in `struct rtmsg`.
const RTMSG_SCOPE: usize = 6;

/// Adds routes to `networks` through interface `name`. An existing route through this interface is
/// not an error, because a persistent device may have routes of an earlier program. The kernel
/// removes routes together with the interface.
///
/// # Errors
/// Returns the first error of the kernel. Routes that were already added remain.
pub fn add_routes(name: &str, networks: &[Network]) -> Result<(), HostError> {
    let step = |step: String| move |source| HostError::Io { name: name.into(), step, source };
    let mut netlink = Netlink::open().map_err(step("open a netlink socket".into()))?;
    let link = netlink.link(name).map_err(step("look at the link".into()))?;
    for &(ip, len) in networks {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut message = Message::new(libc::RTM_NEWROUTE, flags);
        message.put(&rtmsg(ip, len));
        message.attribute(libc::RTA_DST, &octets(ip));
        message.attribute(libc::RTA_OIF, &link.index.to_ne_bytes());
        let Err(source) = netlink.exchange(message) else { continue };
        let is_there = source.raw_os_error() == Some(libc::EEXIST);
        if is_there && leads_through(name, ip, Marks::default()).unwrap_or(false) {
            continue;
        }
        return Err(match source.raw_os_error() {
            Some(libc::EEXIST) => HostError::RouteTaken { name: name.into(), ip, len },
            Some(libc::EPERM) => HostError::NotPermitted {
                name: name.into(),
                commands: format!("sudo ip route add {ip}/{len} dev {name}"),
            },
            _ => step(format!("add a route to {ip}/{len}"))(source),
        });
    }
    Ok(())
}

/// Adds a default route through interface `name` with the gateway `router`.
///
/// # Errors
/// Returns an error if the kernel rejects the route.
pub fn add_default_route(name: &str, router: IpAddr) -> Result<(), HostError> {
    let step = |step: String| move |source| HostError::Io { name: name.into(), step, source };
    let mut netlink = Netlink::open().map_err(step("open a netlink socket".into()))?;
    let link = netlink.link(name).map_err(step("look at the link".into()))?;
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = Message::new(libc::RTM_NEWROUTE, flags);
    let mut head = rtmsg(router, 0);
    head[RTMSG_SCOPE] = libc::RT_SCOPE_UNIVERSE;
    message.put(&head);
    message.attribute(libc::RTA_GATEWAY, &octets(router));
    message.attribute(libc::RTA_OIF, &link.index.to_ne_bytes());
    let added = netlink.exchange(message);
    added.map(drop).map_err(step(format!("add a route through {router}")))
}

/// Returns whether this host sends packets to address `to` on interface `name`. `marks` are further
/// properties of the packets.
///
/// # Errors
/// Returns an error if the kernel has no route to `to` (ENETUNREACH), or if there is no such
/// interface.
pub fn leads_through(name: &str, to: IpAddr, marks: Marks<'_>) -> io::Result<bool> {
    let mut netlink = Netlink::open()?;
    let through = netlink.link(name)?.index;
    let bound = marks.interface.map(|interface| netlink.link(interface)).transpose()?;
    let mut message = Message::new(libc::RTM_GETROUTE, 0);
    message.put(&rtmsg(to, if to.is_ipv4() { 32 } else { 128 }));
    message.attribute(libc::RTA_DST, &octets(to));
    if let Some(mark) = marks.mark {
        message.attribute(libc::RTA_MARK, &mark.to_ne_bytes());
    }
    if let Some(link) = bound {
        message.attribute(libc::RTA_OIF, &link.index.to_ne_bytes());
    }
    let reply = netlink.exchange(message)?;
    let list = reply.get(NLMSG_LEN + RTMSG_LEN..).unwrap_or_default();
    let out = attributes(list).find(|(kind, _)| *kind == libc::RTA_OIF);
    let out = out.and_then(|(_, value)| u32_at(value, 0));
    Ok(out.ok_or(io::ErrorKind::InvalidData)? == through)
}

/// Builds a `struct rtmsg`: family, lengths of both prefixes, class, table, protocol, scope, type,
/// flags.
fn rtmsg(ip: IpAddr, len: u8) -> [u8; RTMSG_LEN] {
    let (family, scope) = match ip {
        IpAddr::V4(_) => (libc::AF_INET, libc::RT_SCOPE_LINK),
        IpAddr::V6(_) => (libc::AF_INET6, libc::RT_SCOPE_UNIVERSE),
    };
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_UNICAST);
    let mut out = [0; RTMSG_LEN];
    let head = [family as u8, len, 0, 0, table, protocol, scope, kind];
    out[..head.len()].copy_from_slice(&head);
    out
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
