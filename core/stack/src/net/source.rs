//! Selection of source addresses (RFC 6724).

use core::net::{IpAddr, Ipv6Addr};

use towpath_wire::addr;

use super::iface::{Address, AddressState};

/// Selects the source address for packets to `dst`, among the outgoing interface's `own` and the
/// `others` of this host. IPv6 follows the ranking of RFC 6724. IPv4 prefers, as Linux does, an
/// address of the next hop's subnet. The router might filter another subnet's address, which it
/// expects elsewhere.
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
        // Another link's link-local address means nothing here.
        .filter(|(a, foreign)| !foreign || !addr::is_link_local(a.addr()))
        .map(|(a, foreign)| {
            let deprecated = a.state == AddressState::Deprecated;
            let near = a.prefix.contains(next_hop);
            (source_rank(a.addr(), dst, deprecated, foreign, near), a.addr())
        })
        // The first of equals, in the order of the operator.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, addr)| addr)
}

/// Rank of `src` as a source for `dst`; the greater, the better. The rules of RFC 6724 §5 apply in
/// their order, those without an operator's policy. `near`: the next hop is in the subnet of `src`.
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
        // IPv4's addresses say nothing about where networks are: their common bits are chance.
        src.is_ipv4() && near,
        common_prefix_len(src, dst),
        near,
    )
}

/// Scope as in the multicast address's field: 2 link, 5 site, 14 global.
fn scope(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_link_local() => 2,
        IpAddr::V4(_) => 14,
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0x0f,
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 14,
    }
}

/// Labels of the default policy table (RFC 6724 §2.1), as far as they tell sources apart.
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

/// Rule 8, for IPv6; beyond the 64 bits of a link's prefix equal bits mean nothing.
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
