//! Errors of the parsers.

use core::fmt;

/// Reason why the parser rejected a header. Each is an error of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// The data end before the end of the header, or before the length that the header states.
    Truncated,
    /// The IP version in the header is not the version that the parser expects.
    BadVersion,
    /// The header length is below its minimum, or exceeds the data.
    BadHeaderLength,
    /// Another length field contradicts the header or the length of the data.
    BadLength,
    /// The checksum is not correct, or is missing although it is required.
    BadChecksum,
    /// An option has length 0, extends beyond the options area, or is not permitted in this
    /// message.
    BadOption,
    /// The address in an address field is not permitted there, for example a multicast source.
    BadAddress,
    /// The hop limit or TTL shows that the message was not sent by a host on the link.
    BadHopLimit,
    /// The ICMP code is not permitted for the message type.
    BadCode,
    /// The value of a flag or another field is not permitted by the protocol.
    BadField,
    /// The header is well formed, but the parser does not support it.
    Unsupported,
}

impl ParseError {
    /// Returns the name of the error in counters and traces.
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
