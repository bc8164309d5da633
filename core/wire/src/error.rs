//! Why bytes were refused.

use core::fmt;

/// Why a header was refused. The sender is at fault in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// The buffer ends before the header, or before the length that the header states.
    Truncated,
    /// The IP version nibble is not the one this parser reads.
    BadVersion,
    /// A header length field is below its minimum or beyond the buffer.
    BadHeaderLength,
    /// A length field contradicts the header or the buffer.
    BadLength,
    /// A checksum does not match, or is absent where one is required.
    BadChecksum,
    /// An option has a length of zero, runs past its area, or may not stand where it stands.
    BadOption,
    /// An address may not stand where it stands.
    BadAddress,
    /// The hop limit or TTL shows that the message was not sent from the link.
    BadHopLimit,
    /// An ICMP code which the message type does not allow.
    BadCode,
    /// A flag or field value which the protocol does not allow.
    BadField,
    /// Well formed, but of a kind which this parser does not read.
    Unsupported,
}

impl ParseError {
    /// A short constant name, for counters and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadVersion => "bad-version",
            Self::BadHeaderLength => "bad-header-length",
            Self::BadLength => "bad-length",
            Self::BadChecksum => "bad-checksum",
            Self::BadOption => "bad-option",
            Self::BadAddress => "bad-address",
            Self::BadHopLimit => "bad-hop-limit",
            Self::BadCode => "bad-code",
            Self::BadField => "bad-field",
            Self::Unsupported => "unsupported",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for ParseError {}
