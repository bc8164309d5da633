//! The ECN field of an IP header (RFC 3168 section 5).

/// Codepoint of the ECN field: the lower two bits of the IPv4 TOS or the IPv6 traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// 00: the transport does not support ECN, so congestion is signalled only by drops.
    #[default]
    NotEct = 0,
    /// 01: the transport supports ECN; also the identifier of L4S (RFC 9331).
    Ect1 = 1,
    /// 10: the transport supports ECN.
    Ect0 = 2,
    /// 11: a router has marked the packet, because it experienced congestion.
    Ce = 3,
}

impl Ecn {
    /// Mask of the ECN field in the TOS or traffic class byte.
    pub const MASK: u8 = 3;

    /// Returns the ECN field: the lower two bits of the TOS or traffic class byte.
    #[inline]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & Self::MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the TOS byte `tos` with its ECN field replaced by this one. The DSCP in `tos` is
    /// unchanged.
    #[inline]
    pub const fn with_dscp(self, tos: u8) -> u8 {
        tos & !Self::MASK | self as u8
    }

    /// Returns whether a router has marked the packet because of congestion.
    #[inline]
    pub const fn is_ce(self) -> bool {
        matches!(self, Self::Ce)
    }
}
