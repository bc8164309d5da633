//! The ECN field of an IP header (RFC 3168 section 5).

/// Codepoint of the ECN field: the lower two bits of the IPv4 TOS or the IPv6 traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// 00: not ECN-capable; drops are the only congestion signal.
    #[default]
    NotEct = 0,
    /// 01: ECN-capable; L4S's identifier (RFC 9331).
    Ect1 = 1,
    /// 10: ECN-capable.
    Ect0 = 2,
    /// 11: congestion was experienced.
    Ce = 3,
}

impl Ecn {
    /// Bits of the ECN field in a TOS or traffic class byte.
    pub const MASK: u8 = 3;

    /// Decodes the lower two bits of a TOS or traffic class byte.
    #[inline]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & Self::MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns `tos` with this codepoint, and its DSCP unchanged.
    #[inline]
    pub const fn with_dscp(self, tos: u8) -> u8 {
        tos & !Self::MASK | self as u8
    }

    /// Returns whether the packet is marked with congestion experienced.
    #[inline]
    pub const fn is_ce(self) -> bool {
        matches!(self, Self::Ce)
    }
}
