//! Address to which a socket is bound, and the options that permit several sockets to share the
//! address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Local address to which a socket is bound. In the derived order, the addresses that overlap a
/// given address form at most three [ranges](BindAddr::stretches).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BindAddr {
    /// The IPv4 wildcard address 0.0.0.0.
    AnyV4,
    /// The IPv6 wildcard address `::`, with IPV6_V6ONLY.
    AnyV6,
    /// The IPv6 wildcard address `::` without IPV6_V6ONLY, so that the socket also receives IPv4.
    AnyDual,
    /// A single address, which is never IPv4-mapped.
    Ip(IpAddr),
}

impl BindAddr {
    /// Returns whether a packet can match both addresses, so that binds to them can conflict.
    pub fn overlaps(self, other: BindAddr) -> bool {
        use BindAddr::{AnyDual, AnyV4, AnyV6, Ip};
        match (self, other) {
            (AnyDual, _) | (_, AnyDual) => true,
            (AnyV4, AnyV6) | (AnyV6, AnyV4) => false,
            (AnyV4, AnyV4) | (AnyV6, AnyV6) => true,
            (AnyV4, Ip(ip)) | (Ip(ip), AnyV4) => ip.is_ipv4(),
            (AnyV6, Ip(ip)) | (Ip(ip), AnyV6) => ip.is_ipv6(),
            (Ip(a), Ip(b)) => a == b,
        }
    }

    /// Returns the ranges of addresses that overlap this address.
    pub fn stretches(self) -> [Option<(BindAddr, BindAddr)>; 3] {
        use BindAddr::{AnyDual, AnyV4, AnyV6, Ip};
        const V4_LAST: BindAddr = Ip(IpAddr::V4(Ipv4Addr::BROADCAST));
        const V6_FIRST: BindAddr = Ip(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        const V6_LAST: BindAddr = Ip(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));
        match self {
            AnyDual => [Some((AnyV4, V6_LAST)), None, None],
            AnyV4 => [Some((AnyV4, AnyV4)), Some((AnyDual, V4_LAST)), None],
            AnyV6 => [Some((AnyV6, AnyDual)), Some((V6_FIRST, V6_LAST)), None],
            Ip(ip) => {
                let any = if ip.is_ipv4() { AnyV4 } else { AnyV6 };
                [Some((any, any)), Some((AnyDual, AnyDual)), Some((self, self))]
            }
        }
    }

    /// Returns whether the address `self` includes `other`. As in Linux's `sk_reuseport_match`, any
    /// wildcard address includes the dual-stack address `::`.
    pub fn covers(self, other: BindAddr) -> bool {
        self == other || !matches!(self, BindAddr::Ip(_)) && self.overlaps(other)
    }
}

/// Options of a socket that permit it to share its port with other sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sharing {
    pub reuse_addr: bool,
    pub reuse_port: bool,
}

impl Sharing {
    /// Returns whether both sockets have set SO_REUSEADDR.
    pub fn both_reuse_addr(self, other: Self) -> bool {
        self.reuse_addr && other.reuse_addr
    }

    /// Returns whether both sockets have set SO_REUSEPORT.
    pub fn both_reuse_port(self, other: Self) -> bool {
        self.reuse_port && other.reuse_port
    }
}

/// Protocol of a table of ports. Linux's rules for conflicts of binds depend on the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PortProtocol {
    Tcp,
    Udp,
    Echo,
}
