//! What of the IP header is not this layer's to decide: TTL, class, flow label, and who may cut the
//! packet.

/// TTL and hop limit unless someone says otherwise (RFC 1700; RFC 8504 §12.1 has the same).
pub(super) const DEFAULT_TTL: u8 = 64;

/// What the transport wants in the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// What the transport header is.
    pub protocol: u8,
    /// TTL or hop limit; `None` for the default. One of 0 keeps a datagram to a group on this host.
    pub ttl: Option<u8>,
    /// Type of service or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Who may cut it.
    pub fragmenting: Fragmenting,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Who may cut a packet that is longer than a link takes. Routers never cut IPv6 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragmenting {
    /// Nobody: it has DF, and is refused when it is too long for what is known of its path.
    Never,
    /// This host alone: it has DF when it leaves whole.
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
