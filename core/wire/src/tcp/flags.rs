//! The control bits of the TCP header (RFC 9293 §3.1, RFC 3168, RFC 9768).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// The control bits, from FIN (bit 0) to AE (bit 8). The three reserved bits are ignored on
/// receive, and sent as zero.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// No bits set.
    pub const NONE: Flags = Flags(0);
    /// The sender has no more bytes.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize: `seq` is the initial sequence number.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push: deliver the bytes to the program now.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement number is valid: always, except in the first SYN and in some RSTs.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168 section 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// The congestion window was reduced (RFC 3168 section 6.1).
    pub const CWR: Flags = Flags(0x80);
    /// Accurate ECN (RFC 9768 section 3.1.1).
    pub const AE: Flags = Flags(0x100);
    /// The ACE field: AE, CWR and ECE (RFC 9768 section 3.2.2).
    pub const ACE: Flags = Flags(0x1c0);

    /// Position of the ACE field.
    const ACE_SHIFT: u32 = 6;
    pub(super) const MASK: u16 = 0x1ff;

    /// Returns the flags whose ACE field contains the lower three bits of `count`.
    #[inline]
    pub const fn from_ace(count: u8) -> Flags {
        Flags((count as u16) << Self::ACE_SHIFT & Self::ACE.0)
    }

    /// Returns the ACE field: AE, CWR and ECE as a number of three bits.
    #[inline]
    pub const fn ace(self) -> u8 {
        ((self.0 & Self::ACE.0) >> Self::ACE_SHIFT) as u8
    }

    /// Returns whether all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the flags without the bits of `other`.
    #[inline]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 9] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "AE"];
        let mut first = true;
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                if !first {
                    f.write_str("|")?;
                }
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("-") } else { Ok(()) }
    }
}
