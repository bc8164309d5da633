//! Finds ports on which programs receive through the kernel's own stack, using the tables in
//! /proc/net.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_bpf::{PortRange, Transport};

/// Socket states from <net/tcp_states.h>: that of a TCP listener, and that of a bound UDP socket.
const LISTEN: u8 = 0x0a;
const CLOSE: u8 = 0x07;

/// Returns the ports in `ranges` on which kernel sockets receive packets to one of `addresses`, in
/// ascending order. A table that cannot be read is skipped.
pub(crate) fn in_use(addresses: &[IpAddr], ranges: &[PortRange]) -> Vec<(Transport, u16)> {
    let tables = [
        (Transport::Tcp, "/proc/net/tcp", LISTEN),
        (Transport::Tcp, "/proc/net/tcp6", LISTEN),
        (Transport::Udp, "/proc/net/udp", CLOSE),
        (Transport::Udp, "/proc/net/udp6", CLOSE),
    ];
    let mut found = Vec::new();
    for (transport, path, state) in tables {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for (at, port) in receivers(&text, state) {
            let has = |range: &PortRange| {
                range.transport == transport && (range.first..=range.last).contains(&port)
            };
            if ranges.iter().any(has) && addresses.iter().any(|own| takes(at, *own)) {
                found.push((transport, port));
            }
        }
    }
    found.sort_by_key(|(transport, port)| (*transport as u8, *port));
    found.dedup();
    found
}

/// Returns whether a socket bound to `at` receives packets to `own`. A socket bound to `::` also
/// receives IPv4, unless IPV6_V6ONLY is set. The tables do not show this option.
fn takes(at: IpAddr, own: IpAddr) -> bool {
    let is_any = at.is_unspecified() && (at.is_ipv6() || own.is_ipv4());
    is_any || at.to_canonical() == own
}

/// Iterates over the local addresses of those sockets in a table that are in `state`.
fn receivers(table: &str, state: u8) -> impl Iterator<Item = (IpAddr, u16)> {
    table.lines().skip(1).filter_map(move |line| {
        // Fields of a line of the table: sl local_address rem_address st ...
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, is) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, port) = local.split_once(':')?;
        (u8::from_str_radix(is, 16).ok()? == state).then_some(())?;
        Some((parse_address(address)?, u16::from_str_radix(port, 16).ok()?))
    })
}

/// Parses an address of one or four 32-bit words in hexadecimal, each in the host's byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |n: usize| u32::from_str_radix(text.get(n * 8..n * 8 + 8)?, 16).ok();
    let bytes = |n| word(n).map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(bytes(0)?).into()),
        32 => {
            let all = [bytes(0)?, bytes(1)?, bytes(2)?, bytes(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(all).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_the_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 0900010A:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0\n   \
             1: 0900010A:0051 0100010A:9999 01 00000000:00000000 00:00000000 00000000  0\n   \
             2: 000000FD000000000000000009000000:0052 00000000:0000 0A 0:0 00:0 0 0\n   \
             3: 0000000000000000FFFF00000900010A:0053 00000000:0000 0A 0:0 00:0 0 0\n   \
             4: 00000000000000000000000000000000:0054 00000000:0000 0A 0:0 00:0 0 0\n   \
             5: cut\n";
        let all: Vec<_> = receivers(table, LISTEN).collect();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let wanted = [("10.1.0.9", 80), ("fd00::9", 82), ("::ffff:10.1.0.9", 83), ("::", 84)];
        assert_eq!(all, wanted.map(|(address, port)| (ip(address), port)));
        let v4 = all.iter().filter(|(at, _)| takes(*at, ip("10.1.0.9"))).map(|(_, port)| *port);
        assert_eq!(v4.collect::<Vec<_>>(), [80, 83, 84]);
        assert!(takes(ip("0.0.0.0"), ip("10.1.0.9")) && !takes(ip("0.0.0.0"), ip("fd00::9")));
    }
}
