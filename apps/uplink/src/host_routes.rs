//! Reads the routes of this host's main table from /proc/net/route and /proc/net/ipv6_route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_wire::Prefix;

/// A route in the main routing table of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// Name of the outgoing interface.
    pub interface: String,
    /// Destination prefix.
    pub prefix: Prefix,
    /// Address of the next router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// Returns all routes of this host for IPv4 and IPv6. A table that cannot be read is skipped,
/// because there may be no /proc or no IPv6.
pub fn all() -> Vec<HostRoute> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (v4, v6) = (read("/proc/net/route"), read("/proc/net/ipv6_route"));
    let v4 = v4.lines().skip(1).filter_map(parse_v4);
    v4.chain(v6.lines().filter_map(parse_v6)).collect()
}

/// Flags RTF_UP and RTF_REJECT of linux/route.h. Routes with RTF_REJECT are skipped.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

fn is_used(flags: u32) -> bool {
    flags & UP != 0 && flags & REJECT == 0
}

/// Parses a line of /proc/net/route, such as `eth0 00000000 0102A8C0 0003 0 0 100 00000000 ...`.
/// The hexadecimal addresses are in the host's byte order.
fn parse_v4(line: &str) -> Option<HostRoute> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [interface, dst, gateway, flags, _, _, _, mask, ..] = words[..] else { return None };
    let number = |text| u32::from_str_radix(text, 16).ok();
    let ip = |text| number(text).map(|bits| Ipv4Addr::from(bits.to_ne_bytes()));
    let (dst, gateway, mask) = (ip(dst)?, ip(gateway)?, ip(mask)?);
    is_used(number(flags)?).then(|| {
        let prefix = Prefix::new(dst.into(), mask.to_bits().leading_ones() as u8)?;
        let gateway = (!gateway.is_unspecified()).then_some(gateway.into());
        Some(HostRoute { interface: interface.into(), prefix, gateway })
    })?
}

/// Parses a line of /proc/net/ipv6_route, such as `fd00...00 40 00...00 00 00...00 00000100
/// 00000001 00000000 00000001 eth0`. Its fields: destination and its prefix length, source and its
/// prefix length, router, metric, references, uses, flags, interface.
fn parse_v6(line: &str) -> Option<HostRoute> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [dst, len, _, _, gateway, _, _, _, flags, interface] = words[..] else { return None };
    let ip = |text| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from);
    let (dst, gateway) = (ip(dst)?, ip(gateway)?);
    let len = u8::from_str_radix(len, 16).ok()?;
    is_used(u32::from_str_radix(flags, 16).ok()?).then(|| {
        let prefix = Prefix::new(dst.into(), len)?;
        let gateway = (!gateway.is_unspecified()).then_some(gateway.into());
        Some(HostRoute { interface: interface.into(), prefix, gateway })
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let v4 = |line| parse_v4(line).map(|route| (route.prefix.to_string(), route.gateway));
        if cfg!(target_endian = "little") {
            let router = Some(IpAddr::from([192, 168, 2, 1]));
            let line = "eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0";
            assert_eq!(v4(line), Some(("0.0.0.0/0".into(), router)));
            let line = "eth0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0";
            assert_eq!(v4(line), Some(("192.168.2.0/24".into(), None)));
        }
        let unreachable = "*\t0002A8C0\t00000000\t0200\t0\t0\t100\t00FFFFFF\t0\t0\t0";
        assert_eq!((v4(unreachable), v4("")), (None, None));
        let zero = "0".repeat(32);
        let line =
            format!("fd000077{} 40 {zero} 00 {zero} 00000100 1 0 00000001 eth0", "0".repeat(24));
        let route = parse_v6(&line).unwrap();
        assert_eq!((route.prefix.to_string(), route.gateway), ("fd00:77::/64".into(), None));
    }
}
