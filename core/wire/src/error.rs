//! Errors of the parsers.

use core::fmt;

/// Reason why a header was rejected. The sender is at fault in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// The buffer ends before the header, or before the length stated in the header.
    Truncated,
    /// The IP version does not match the parser.
    BadVersion,
    /// A header length field is below its minimum or exceeds the buffer.
    BadHeaderLength,
    /// A length field contradicts the header or the buffer.
    BadLength,
    /// A checksum does not match, or is absent where one is required.
    BadChecksum,
    /// An option has a length of zero, exceeds the options area, or is not allowed here.
    BadOption,
    /// An address is not allowed in this field.
    BadAddress,
    /// The hop limit or TTL shows that the message does not originate from the link.
    BadHopLimit,
    /// The message type does not allow this ICMP code.
    BadCode,
    /// The protocol does not allow this flag or field value.
    BadField,
    /// Well formed, but not supported by the parser.
    Unsupported,
}

impl ParseError {
    /// Returns a short constant name for counters and traces.
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
