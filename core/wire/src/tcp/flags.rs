//! The control bits of the TCP header (RFC 9293 §3.1, RFC 3168, RFC 9768).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// The control bits of a TCP header, from FIN (bit 0) to AE (bit 8). The three reserved bits are
/// ignored on arrival, and sent as zero.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// None of the control bits.
    pub const NONE: Flags = Flags(0);
    /// FIN: the sender has no more bytes to send.
    pub const FIN: Flags = Flags(0x01);
    /// SYN (synchronize): the sequence number is the initial one.
    pub const SYN: Flags = Flags(0x02);
    /// RST: the connection is reset.
    pub const RST: Flags = Flags(0x04);
    /// PSH (push): the receiver should deliver the bytes to the program at once.
    pub const PSH: Flags = Flags(0x08);
    /// ACK: the acknowledgment number is valid. Set in all segments except the first SYN and some
    /// RSTs.
    pub const ACK: Flags = Flags(0x10);
    /// URG: the urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// ECE: ECN echo (RFC 3168 section 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// CWR: the sender has reduced its congestion window (RFC 3168 section 6.1).
    pub const CWR: Flags = Flags(0x80);
    /// AE: accurate ECN (RFC 9768 section 3.1.1).
    pub const AE: Flags = Flags(0x100);
    /// The three bits of the ACE field: AE, CWR and ECE (RFC 9768 section 3.2.2).
    pub const ACE: Flags = Flags(0x1c0);

    /// Number of the lowest bit of the ACE field.
    const ACE_SHIFT: u32 = 6;
    pub(super) const MASK: u16 = 0x1ff;

    /// Returns the flags whose ACE field contains the lower three bits of `count`.
    #[inline]
    pub const fn from_ace(count: u8) -> Flags {
        Flags((count as u16) << Self::ACE_SHIFT & Self::ACE.0)
    }

    /// Returns the ACE field: the bits AE, CWR and ECE as a number from 0 to 7.
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
