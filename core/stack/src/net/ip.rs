//! Fields of the IP header that the transport protocol chooses: TTL, traffic class, flow label and
//! DF.

use core::net::IpAddr;

/// Default TTL and hop limit (RFC 1700, RFC 8504 §12.1).
pub(super) const DEFAULT_TTL: u8 = 64;

/// Source and destination address of a packet, which are of the same IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressPair {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// IP header fields that the transport protocol chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// Number of the transport protocol (IANA), such as 6 for TCP.
    pub protocol: u8,
    /// TTL or hop limit; `None` for the default of the interface. With 0, a multicast datagram is
    /// not sent to other hosts.
    pub ttl: Option<u8>,
    /// Type of service (IPv4) or traffic class (IPv6), which contain DSCP and ECN.
    pub tos: u8,
    /// Whether this host or routers may fragment the packet.
    pub fragmenting: Fragmenting,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Nodes that may fragment a packet that exceeds the MTU of a link. Routers never fragment IPv6
/// packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// No node may fragment the packet: DF is set, and sending a packet longer than the path MTU
    /// fails.
    Never,
    /// Only this host may fragment the packet. DF is set, unless this host fragments the packet.
    Here,
    /// Only routers may fragment the packet.
    Routers,
    /// Both this host and routers may fragment the packet.
    Anywhere,
}

impl Fragmenting {
    /// Returns whether this host may fragment the packet.
    pub(super) fn is_allowed_here(self) -> bool {
        matches!(self, Self::Here | Self::Anywhere)
    }

    /// Returns whether the packet has DF set, so that routers must not fragment it.
    pub(super) fn sets_df(self) -> bool {
        matches!(self, Self::Never | Self::Here)
    }
}
