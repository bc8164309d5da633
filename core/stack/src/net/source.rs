//! Selection of source addresses (RFC 6724).

use core::net::{IpAddr, Ipv6Addr};

use towpath_wire::addr;

use super::iface::{Address, AddressState};

/// Selects the source address for packets to `dst`. The candidates are the addresses of the
/// outgoing interface (`own`) and of the other interfaces (`others`). IPv6 candidates are ranked as
/// in RFC 6724. As on Linux, IPv4 prefers an address in the next hop's subnet, because a router
/// might filter other source addresses.
pub(super) fn choose<'a>(
    own: &'a [Address],
    others: impl Iterator<Item = &'a [Address]>,
    next_hop: IpAddr,
    dst: IpAddr,
) -> Option<IpAddr> {
    let own = own.iter().map(|a| (a, false));
    let foreign = others.flatten().map(|a| (a, true));
    own.chain(foreign)
        .filter(|(a, _)| a.is_usable() && a.addr().is_ipv4() == dst.is_ipv4())
        // Exclude link-local addresses of other interfaces, because they are invalid on this link.
        .filter(|(a, foreign)| !foreign || !addr::is_link_local(a.addr()))
        .map(|(a, foreign)| {
            let deprecated = a.state == AddressState::Deprecated;
            let near = a.prefix.contains(next_hop);
            (source_rank(a.addr(), dst, deprecated, foreign, near), a.addr())
        })
        // Among addresses of equal rank, select the one that the operator added first.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, addr)| addr)
}

/// Returns the rank of `src` as source address for the destination `dst`; greater is better. The
/// rules of RFC 6724 §5 are applied in order, except those that need a policy table. `near` states
/// whether the next hop is in the subnet of `src`.
pub(super) fn source_rank(
    src: IpAddr,
    dst: IpAddr,
    deprecated: bool,
    other_iface: bool,
    near: bool,
) -> impl Ord {
    let (src_scope, dst_scope) = (scope(src), scope(dst));
    //= https://www.rfc-editor.org/rfc/rfc6724#section-5
    //# Rule 2: Prefer appropriate scope.
    //# If Scope(SA) < Scope(SB): If Scope(SA) < Scope(D), then prefer SB and
    //# otherwise prefer SA.
    let reaches = src_scope >= dst_scope;
    let scope_rank = if reaches { -i16::from(src_scope) } else { i16::from(src_scope) - 256 };
    (
        src == dst,
        reaches,
        scope_rank,
        !deprecated,
        !other_iface,
        label(src) == label(dst),
        // The number of common bits of two IPv4 addresses does not indicate their distance. For
        // IPv4, prefer first an address in the next hop's subnet.
        src.is_ipv4() && near,
        common_prefix_len(src, dst),
        near,
    )
}

/// Returns the scope of an address, as the value of the scope field in a multicast address: 2
/// link-local, 5 site-local, 14 global.
fn scope(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_link_local() => 2,
        IpAddr::V4(_) => 14,
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0x0f,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 14,
    }
}

/// Returns the label of an address in the default policy table (RFC 6724 §2.1). Labels that do not
/// matter for source addresses are left out.
fn label(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 4,
        IpAddr::V6(v6) if v6.is_loopback() => 0,
        IpAddr::V6(v6) if v6.is_unique_local() => 13,
        IpAddr::V6(v6) if v6.segments()[0] == 0x2002 => 2,
        IpAddr::V6(v6) if v6.segments()[..2] == [0x2001, 0] => 5,
        IpAddr::V6(_) => 1,
    }
}

/// Returns the number of leading bits that two addresses have in common (rule 8), at most the 64
/// bits of a link's prefix. Returns 0 for IPv4.
fn common_prefix_len(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V6(a), IpAddr::V6(b)) => common_v6(a, b).min(64),
        _ => 0,
    }
}

fn common_v6(a: Ipv6Addr, b: Ipv6Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
}

#[cfg(test)]
mod tests {
    use towpath_wire::Prefix;

    use super::*;

    #[test]
    fn sources_are_ranked_by_scope_then_state_then_prefix() {
        let rank = |src: &str, dst: &str| {
            let dst = dst.parse().unwrap();
            let src: Prefix = format!("{src}/24").parse().unwrap();
            source_rank(src.addr(), dst, false, false, src.contains(dst))
        };
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fe80::1", "2001:db8::2"));
        assert!(rank("fe80::1", "fe80::2") > rank("2001:db8::1", "fe80::2"));
        assert!(rank("2001:db8::1", "2001:db8::2") > rank("fd00::1", "2001:db8::2"));
        assert!(rank("fd00::1", "fd00::2") > rank("2001:db8::1", "fd00::2"));
        assert!(rank("10.0.0.1", "10.0.0.2") > rank("192.168.0.1", "10.0.0.2"));
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let rank = |deprecated, other| source_rank(src, dst, deprecated, other, false);
        assert!(rank(false, true) > rank(true, false));
    }
}
