//! Protocol numbers of IPv4's protocol field and IPv6's next header field.

use core::fmt;

/// An IP protocol number, as assigned by IANA ("Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// Header with IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// Internet Group Management Protocol (RFC 2236, RFC 3376).
    pub const IGMP: Self = Self(2);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: Self = Self(44);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// No header and no payload follow (RFC 8200 §4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// Header with IPv6 destination options (RFC 8200 §4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);

    /// Returns whether this is the number of an IPv6 extension header that [`crate::ipv6_ext`]
    /// parses.
    #[inline]
    #[must_use]
    pub const fn is_ipv6_extension(self) -> bool {
        matches!(
            self,
            Self::HOP_BY_HOP | Self::ROUTING | Self::FRAGMENT | Self::DESTINATION_OPTIONS
        )
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HOP_BY_HOP => f.write_str("hop-by-hop"),
            Self::ICMP => f.write_str("icmp"),
            Self::IGMP => f.write_str("igmp"),
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self::ROUTING => f.write_str("ipv6-route"),
            Self::FRAGMENT => f.write_str("ipv6-frag"),
            Self::ICMPV6 => f.write_str("icmpv6"),
            Self::NO_NEXT_HEADER => f.write_str("ipv6-nonxt"),
            Self::DESTINATION_OPTIONS => f.write_str("ipv6-opts"),
            Self(other) => write!(f, "{other}"),
        }
    }
}
