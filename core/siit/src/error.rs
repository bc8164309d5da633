//! Reasons why a packet is not translated.

use core::fmt;

/// Reason why a packet is not translated. The packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Untranslatable {
    /// A header or checksum of the packet is invalid.
    Malformed,
    /// The packet is an ICMP message, or has an extension header, without a counterpart.
    NoCounterpart,
    /// The packet is a fragment of an ICMP message.
    FragmentedIcmp,
    /// The packet is the first fragment of a UDP datagram without a checksum.
    NoChecksum,
    /// An ICMP error quotes a packet with addresses that are not translated.
    UnknownQuote,
    /// The translated packet would exceed 65,535 bytes.
    TooLong,
}

impl Untranslatable {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::NoCounterpart,
        Self::FragmentedIcmp,
        Self::NoChecksum,
        Self::UnknownQuote,
        Self::TooLong,
    ];

    /// Returns the name of the reason's counter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoCounterpart => "no_counterpart",
            Self::FragmentedIcmp => "fragmented_icmp",
            Self::NoChecksum => "no_checksum",
            Self::UnknownQuote => "unknown_quote",
            Self::TooLong => "too_long",
        }
    }
}

impl fmt::Display for Untranslatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Untranslatable {}
