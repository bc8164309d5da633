//! Fields of the IP header that the transport decides: TTL, class, flow label, and DF.

use core::net::IpAddr;

/// TTL and hop limit unless someone says otherwise (RFC 1700; RFC 8504 §12.1 has the same).
pub(super) const DEFAULT_TTL: u8 = 64;

/// Source and destination of a packet, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressPair {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// Wishes of the transport for the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// Number of the transport protocol.
    pub protocol: u8,
    /// TTL or hop limit; `None` for the default. Zero keeps a datagram to a group on this host.
    pub ttl: Option<u8>,
    /// Type of service or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Hosts and routers that may fragment the packet.
    pub fragmenting: Fragmenting,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Permission to fragment a packet that is longer than a link takes. Routers never fragment IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// No fragmentation: DF is set, and a packet longer than the known path MTU is refused.
    Never,
    /// Only this host: DF is set on packets that leave whole.
    Here,
    /// Routers alone.
    Routers,
    /// Both.
    Anywhere,
}

impl Fragmenting {
    /// Whether this host may.
    pub(super) fn is_allowed_here(self) -> bool {
        matches!(self, Self::Here | Self::Anywhere)
    }

    /// Whether routers may not.
    pub(super) fn sets_df(self) -> bool {
        matches!(self, Self::Never | Self::Here)
    }
}
