//! Fields of the IP header that the transport decides: TTL, class, flow label, and DF.

use core::net::IpAddr;

/// Default TTL and hop limit (RFC 1700, RFC 8504 §12.1).
pub(super) const DEFAULT_TTL: u8 = 64;

/// Source and destination of a packet; both of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressPair {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// Header fields that the transport sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// Number of the transport protocol (IANA), such as 6 for TCP.
    pub protocol: u8,
    /// TTL or hop limit; `None` for the interface's default. 0 restricts a multicast datagram to
    /// this host.
    pub ttl: Option<u8>,
    /// Type of Service (IPv4) or Traffic Class (IPv6): DSCP and ECN.
    pub tos: u8,
    /// Whether this host or routers may fragment the packet.
    pub fragmenting: Fragmenting,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Permission to fragment a packet that exceeds a link's MTU. Routers never fragment IPv6 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// No fragmentation: DF is set, and sending a packet longer than the path MTU fails.
    Never,
    /// Only this host may fragment: DF is set on packets that are sent unfragmented.
    Here,
    /// Only routers may fragment.
    Routers,
    /// Routers and this host may fragment.
    Anywhere,
}

impl Fragmenting {
    /// Returns whether this host may fragment.
    pub(super) fn is_allowed_here(self) -> bool {
        matches!(self, Self::Here | Self::Anywhere)
    }

    /// Returns whether DF is set, so that routers must not fragment.
    pub(super) fn sets_df(self) -> bool {
        matches!(self, Self::Never | Self::Here)
    }
}
