//! MAC addresses, classification of IP addresses, and conversions between the two.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::{ParseError, Prefix};

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast MAC address, ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The all-zero MAC address, which belongs to no station.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Returns whether this is a multicast address. The broadcast address is one as well.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether this is the broadcast address.
    #[inline]
    #[must_use]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Returns whether the address belongs to a single station: it is neither a multicast address
    /// nor all-zero.
    #[inline]
    #[must_use]
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::UNSPECIFIED
    }

    /// Returns whether the address is locally administered, and not assigned by a vendor.
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// Returns the Ethernet address of an IPv4 multicast group (RFC 1112 §6.4).
    #[must_use]
    pub const fn from_multicast_v4(group: Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// Returns the Ethernet address of an IPv6 multicast group (RFC 2464 §7).
    #[must_use]
    pub const fn from_multicast_v6(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Returns the modified EUI-64 interface identifier that is derived from this address (RFC 4291
    /// appendix A).
    #[must_use]
    pub const fn eui64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = ParseError;

    /// Parses a MAC address such as `02:00:5e:10:00:01`. Hyphens are also accepted as separators.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let mut bytes = [0; 6];
        let mut parts = s.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or(ParseError::Truncated)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(ParseError::BadField);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseError::BadField)?;
        }
        if parts.next().is_some() {
            return Err(ParseError::BadLength);
        }
        Ok(Self(bytes))
    }
}

/// Multicast group of all IPv6 nodes on the link, `ff02::1`.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Multicast group of all IPv6 routers on the link, `ff02::2`.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Multicast group of all MLDv2-capable routers on the link, `ff02::16` (RFC 3810 §5.2.14).
pub const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Multicast group of all IPv4 hosts on the link, 224.0.0.1.
pub const ALL_HOSTS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// Multicast group of all IPv4 routers on the link, 224.0.0.2.
pub const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Multicast group of all IGMPv3-capable routers on the link, 224.0.0.22 (RFC 3376 §4.2.14).
pub const ALL_IGMPV3_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// Returns the solicited-node multicast group of `addr` (RFC 4291 §2.7.1).
#[must_use]
pub const fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., b, c, d] = addr.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | b as u16, u16::from_be_bytes([c, d]))
}

/// Returns whether `addr` is a solicited-node multicast group, in `ff02::1:ff00:0/104`.
#[must_use]
pub const fn is_solicited_node(addr: Ipv6Addr) -> bool {
    addr.to_bits() >> 24 == 0x00ff_0200_0000_0000_0000_0000_01ff
}

/// Returns whether `addr` may be the source of a packet from a link.
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
//# An incoming SYN with an invalid source address MUST be ignored either by TCP or by the IP layer
//# (MUST-63)
//= https://www.rfc-editor.org/rfc/rfc1122#section-3.2.1.3
//# A host MUST silently discard an incoming datagram containing
//# an IP source address that is invalid by the rules of this
//# section.
///
/// 0.0.0.0 is valid, because DHCP clients use it (RFC 2131 §4.1). Loopback, multicast and limited
/// broadcast addresses are invalid, and so are all further addresses in 0/8. A subnet's broadcast
/// address is only recognized by [`Prefix::is_broadcast`].
#[inline]
#[must_use]
pub const fn is_valid_source_v4(addr: Ipv4Addr) -> bool {
    match addr.octets()[0] {
        0 => addr.is_unspecified(),
        127 | 224..=255 => false,
        _ => true,
    }
}

/// Returns whether `addr` may be the source of a packet from a link. The address must not be a
/// multicast or loopback (RFC 4291 §2.5.3) or IPv4-mapped (RFC 4942 §2.2) address. `::` is
/// permitted, because duplicate address detection uses it.
#[inline]
#[must_use]
pub const fn is_valid_source_v6(addr: Ipv6Addr) -> bool {
    !addr.is_multicast() && !addr.is_loopback() && addr.to_ipv4_mapped().is_none()
}

/// Returns whether `addr` must never be the destination of a packet on a link. Returns true for
/// loopback and IPv4-mapped addresses, `::`, 0.0.0.0/8, and class E except for 255.255.255.255.
#[inline]
#[must_use]
pub const fn is_martian_destination(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => match v4.octets()[0] {
            0 | 127 => true,
            240..=255 => !v4.is_broadcast(),
            _ => false,
        },
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_loopback() || v6.to_ipv4_mapped().is_some(),
    }
}

/// Returns whether `addr` can belong to a single interface: it is neither unspecified nor multicast
/// nor 255.255.255.255.
#[inline]
#[must_use]
pub const fn is_unicast(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => !(v4.is_unspecified() || v4.octets()[0] >= 224),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()),
    }
}

/// Returns whether `addr` is link-local: in `fe80::/10` or 169.254.0.0/16.
#[inline]
#[must_use]
pub const fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the scope of an IPv6 multicast address (RFC 4291 §2.7): 1 interface-local, 2 link-local,
/// 5 site-local, 14 global. Returns `None` for other addresses.
#[must_use]
pub const fn multicast_scope(addr: Ipv6Addr) -> Option<u8> {
    if addr.is_multicast() { Some(addr.octets()[1] & 0x0f) } else { None }
}

/// Returns whether packets to the group `addr` may be sent on a link: scope 1 is limited to one
/// host, and scope 0 is reserved. True for an address that is not multicast.
//= https://www.rfc-editor.org/rfc/rfc4291#section-2.7
//# Interface-Local scope spans only a single interface on a node
//# and is useful only for loopback transmission of multicast.
#[inline]
#[must_use]
pub const fn may_be_on_link(addr: Ipv6Addr) -> bool {
    !matches!(multicast_scope(addr), Some(0 | 1))
}

/// Returns the link-local address in `fe80::/64` with the interface identifier `iid`.
#[must_use]
pub const fn link_local(iid: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits((0xfe80 << 112) | iid as u128)
}

/// Combines the first 64 bits of `prefix` with the interface identifier `iid`. Returns `None`
/// unless the prefix is an IPv6 prefix of 64 bits (RFC 4862 §5.5.3 d).
#[must_use]
pub fn autoconfigured(prefix: &Prefix, iid: u64) -> Option<Ipv6Addr> {
    let IpAddr::V6(network) = prefix.network() else { return None };
    (prefix.len() == 64).then(|| Ipv6Addr::from_bits(network.to_bits() | u128::from(iid)))
}

/// Derives a semantically opaque interface identifier from `hash`. Returns `None` if the result is
/// a reserved identifier; the caller should then hash again with the next DAD counter.
///
/// `hash` is the output of a keyed pseudo-random function, as in RFC 7217 §5. Its inputs are the
/// prefix, the interface, the network and the DAD counter; the caller keeps the key. RFC 7217 §5
/// requires a check for the reserved identifiers of RFC 5453.
#[must_use]
pub const fn stable_iid(hash: u64) -> Option<u64> {
    const SUBNET_ROUTER_ANYCAST: u64 = 0;
    const IANA_FIRST: u64 = 0x0200_5eff_fe00_0000;
    const IANA_LAST: u64 = 0x0200_5eff_feff_ffff;
    const SUBNET_ANYCAST_FIRST: u64 = 0xfdff_ffff_ffff_ff80;
    const SUBNET_ANYCAST_LAST: u64 = 0xfdff_ffff_ffff_ffff;
    match hash {
        SUBNET_ROUTER_ANYCAST
        | IANA_FIRST..=IANA_LAST
        | SUBNET_ANYCAST_FIRST..=SUBNET_ANYCAST_LAST => None,
        iid => Some(iid),
    }
}
