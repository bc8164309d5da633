//! Writes the tables of interfaces, routes and neighbours in /proc/net.

use std::fmt;

use towpath_shm::control::{ControlReply, Interface, NeighborRecord, Route, Traffic};
use towpath_shm::layout::RawAddr;

use super::file::Text;
use crate::{Posix, Result, interface, listing};

/// Width in bytes of lines in /proc/net/route (fib_route_seq_show of Linux).
const ROUTE_WIDTH: usize = 127;
/// Route flags RTF_UP, RTF_GATEWAY and RTF_HOST (linux/route.h).
const UP: u32 = 0x1;
const GATEWAY: u32 = 0x2;
const HOST: u32 = 0x4;
/// Flags ATF_COM and ATF_PERM of ARP entries (linux/if_arp.h): the address is resolved, and the
/// entry is permanent.
const COMPLETE: u32 = 0x2;
const PERMANENT: u32 = 0x4;
const NUD_PERMANENT: u32 = 0x80;
/// Address flag IFA_F_PERMANENT (linux/if_addr.h).
const IFA_PERMANENT: u32 = 0x80;

pub(super) fn dev(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let header = "Inter-|   Receive                                                |  Transmit";
    to.line(format_args!("{header}"), 0)?;
    let header = " face |bytes    packets errs drop fifo frame compressed multicast|bytes    \
                  packets errs drop fifo colls carrier compressed";
    to.line(format_args!("{header}"), 0)?;
    let counted = listing::counted(posix)?;
    let mut last = 0;
    for link in interface::entries(&interface::ask(posix)?) {
        // The list has an entry for each address, and those of an interface are adjacent. Write one
        // line per interface.
        if link.index != last {
            last = link.index;
            to.line(format_args!("{}", LinkRow(&link, counted.of(link.index))), 0)?;
        }
    }
    Ok(())
}

struct LinkRow<'a>(&'a Interface, Traffic);

impl fmt::Display for LinkRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(link, traffic) = self;
        let Traffic { rx_packets, rx_bytes, rx_dropped, tx_packets, tx_bytes, tx_dropped } =
            traffic;
        let zero = 0;
        write!(
            f,
            "{:>6}: {rx_bytes:7} {rx_packets:7} {zero:4} {rx_dropped:4} {zero:4} ",
            name(link)
        )?;
        write!(f, "{zero:5} {zero:10} {zero:9} {tx_bytes:8} {tx_packets:7} {zero:4} ")?;
        write!(f, "{tx_dropped:4} {zero:4} {zero:5} {zero:7} {zero:10}")
    }
}

pub(super) fn route(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let header =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
    to.line(format_args!("{header}"), ROUTE_WIDTH)?;
    let links = interface::ask(posix)?;
    listing::routes(posix, |route| match named(&links, route) {
        Some(link) if i32::from(route.dst.family) == libc::AF_INET => {
            let mask = u32::MAX.checked_shl(32 - route.prefix_len.min(32)).unwrap_or(0);
            let (dst, gateway) = (word(&route.dst, 0), word(&route.gateway, 0));
            let (flags, metric, mask) = (flags(route, 32), route.metric, mask.to_be());
            let name = name(&link);
            let what = format_args!(
                "{name}\t{dst:08X}\t{gateway:08X}\t{flags:04X}\t0\t0\t{metric}\t{mask:08X}\t0\t0\t0"
            );
            to.line(what, ROUTE_WIDTH)
        }
        _ => Ok(()),
    })
}

pub(super) fn ipv6_route(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let links = interface::ask(posix)?;
    listing::routes(posix, |route| match named(&links, route) {
        Some(link) if i32::from(route.dst.family) == libc::AF_INET6 => {
            let (dst, bits) = (Octets(&route.dst), route.prefix_len);
            let (gateway, any) = (Octets(&route.gateway), Octets(&ANY));
            let (flags, metric, name) = (flags(route, 128), route.metric, name(&link));
            let what = format_args!(
                "{dst} {bits:02x} {any} 00 {gateway} {metric:08x} 00000001 00000000 {flags:08x} \
                 {name:>8}"
            );
            to.line(what, 0)
        }
        _ => Ok(()),
    })
}

/// Returns the interface of a route. Returns `None` for the loopback interface, because Linux does
/// not list its routes in /proc/net/route.
fn named(links: &ControlReply, route: &Route) -> Option<Interface> {
    let loopback = |link: &Interface| link.flags & libc::IFF_LOOPBACK as u32 != 0;
    interface::entries(links).find(|link| link.index == route.index).filter(|it| !loopback(it))
}

fn flags(route: &Route, bits: u32) -> u32 {
    let gateway = if route.gateway.family != 0 { GATEWAY } else { 0 };
    UP | gateway | if route.prefix_len == bits { HOST } else { 0 }
}

pub(super) fn if_inet6(posix: &'static Posix, to: &mut Text) -> Result<()> {
    for link in interface::entries(&interface::ask(posix)?) {
        if i32::from(link.addr.family) != libc::AF_INET6 {
            continue;
        }
        let ip = std::net::Ipv6Addr::from(link.addr.ip);
        // Scopes IPV6_ADDR_LOOPBACK and IPV6_ADDR_LINKLOCAL of Linux.
        let scope = match () {
            () if ip.is_loopback() => 0x10,
            () if ip.is_unicast_link_local() => 0x20,
            () => 0x00,
        };
        let (octets, index, bits) = (Octets(&link.addr), link.index, link.prefix_len);
        let name = name(&link);
        let what = format_args!(
            "{octets} {index:02x} {bits:02x} {scope:02x} {IFA_PERMANENT:02x} {name:>8}"
        );
        to.line(what, 0)?;
    }
    Ok(())
}

pub(super) fn arp(posix: &'static Posix, to: &mut Text) -> Result<()> {
    let header = "IP address       HW type     Flags       HW address            Mask     Device";
    to.line(format_args!("{header}"), 0)?;
    let links = interface::ask(posix)?;
    listing::neighbors(posix, |neighbor| {
        let link = interface::entries(&links).find(|link| link.index == neighbor.index);
        match link {
            Some(link) if i32::from(neighbor.addr.family) == libc::AF_INET => {
                to.line(format_args!("{}", Arp(&link, neighbor)), 0)
            }
            _ => Ok(()),
        }
    })
}

struct Arp<'a>(&'a Interface, &'a NeighborRecord);

impl fmt::Display for Arp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(link, neighbor) = self;
        let [a, b, c, d, ..] = neighbor.addr.ip;
        // Format the address into a buffer first, because padding needs a string, and nothing may
        // be allocated.
        let mut text = [0u8; 16];
        let left = {
            use std::io::Write;
            let mut rest = &mut text[..];
            write!(rest, "{a}.{b}.{c}.{d}").map_err(|_| fmt::Error)?;
            rest.len()
        };
        let ip = std::str::from_utf8(&text[..16 - left]).map_err(|_| fmt::Error)?;
        let permanent = if neighbor.state == NUD_PERMANENT { PERMANENT } else { 0 };
        let flags = if neighbor.known == 0 { 0 } else { COMPLETE | permanent };
        let kind = interface::hardware_type(link);
        let [m0, m1, m2, m3, m4, m5] = neighbor.mac;
        write!(f, "{ip:<16} 0x{kind:<10x}0x{flags:<10x}")?;
        write!(
            f,
            "{m0:02x}:{m1:02x}:{m2:02x}:{m3:02x}:{m4:02x}:{m5:02x}     *        {}",
            name(link)
        )
    }
}

/// Formats the bytes of an address as hexadecimal digits, without separators.
struct Octets<'a>(&'a RawAddr);

impl fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ip.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const ANY: RawAddr = RawAddr { family: 0, port: 0, scope: 0, ip: [0; 16] };

/// Returns the 32-bit word number `at` of an address in host byte order, as Linux prints addresses.
fn word(addr: &RawAddr, at: usize) -> u32 {
    addr.ip[4 * at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
}

fn name(link: &Interface) -> &str {
    std::str::from_utf8(interface::name(link)).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eth0() -> Interface {
        let mut name = [0; 16];
        name[..4].copy_from_slice(b"eth0");
        Interface { name, index: 2, flags: libc::IFF_BROADCAST as u32, ..Interface::default() }
    }

    /// The expected lines were read from Linux 6.18.
    #[test]
    fn lines_are_as_linux_prints_them() {
        let traffic = Traffic {
            rx_packets: 45_468_108,
            rx_bytes: 164_457_053_968,
            tx_packets: 7,
            tx_bytes: 900,
            ..Traffic::default()
        };
        assert_eq!(
            LinkRow(&eth0(), traffic).to_string(),
            "  eth0: 164457053968 45468108    0    0    0     0          0         0      \
             900       7    0    0    0     0       0          0"
        );
        let neighbor = NeighborRecord {
            addr: RawAddr::new("192.0.2.1:0".parse().unwrap()),
            state: 2,
            known: 1,
            mac: [2, 0xfc, 0, 0, 0, 5],
            ..NeighborRecord::default()
        };
        assert_eq!(
            Arp(&eth0(), &neighbor).to_string(),
            "192.0.2.1        0x1         0x2         02:fc:00:00:00:05     *        eth0"
        );
        let ip = RawAddr::new("[fd00::2]:0".parse().unwrap());
        assert_eq!(Octets(&ip).to_string(), "fd000000000000000000000000000002");
    }
}
