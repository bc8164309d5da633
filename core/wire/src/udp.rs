//! The UDP header (RFC 768), and the rules for its checksum, which depend on the IP version.

use core::ops::Range;

use crate::bytes::{be16, be64_of, head, head_mut};
use crate::{ParseError, checksum};

/// Length of a UDP header in bytes.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum field in a UDP header.
pub const CHECKSUM_OFFSET: usize = 6;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the datagram in bytes: header and payload.
    pub length: u16,
    /// Checksum as on the wire; 0 if the datagram has no checksum.
    pub checksum: u16,
}

impl Header {
    /// Parses the header of a UDP datagram. Returns the header, and the range of the payload.
    /// `data` is the whole payload of the IP packet; bytes after the UDP length are ignored.
    #[inline]
    pub fn parse(data: &[u8]) -> Result<(Self, Range<usize>), ParseError> {
        let (header, header_len) = Self::parse_quoted(data)?;
        let length = usize::from(header.length);
        if length < header_len {
            return Err(ParseError::BadLength);
        }
        if length > data.len() {
            return Err(ParseError::Truncated);
        }
        Ok((header, header_len..length))
    }

    /// Parses the header of a UDP datagram that an ICMP error quotes. The payload may be truncated.
    /// Returns the header, and its length in bytes.
    #[inline]
    pub fn parse_quoted(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        let header = Self {
            src_port: be16(h[0], h[1]),
            dst_port: be16(h[2], h[3]),
            length: be16(h[4], h[5]),
            checksum: be16(h[6], h[7]),
        };
        Ok((header, HEADER_LEN))
    }

    /// Writes the header with its checksum to `buf`, and returns its length in bytes, 8.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let h = head_mut::<HEADER_LEN>(buf);
        // Use a single store. The checksum may be computed next by loading words, and a load that
        // spans several recent stores would stall.
        *h = be64_of([self.src_port, self.dst_port, self.length, self.checksum]);
        HEADER_LEN
    }

    /// Returns the checksum field for this header over a payload with the running sum
    /// `payload_sum`. `pseudo` is the running sum of the pseudo-header. The current value of the
    /// field is ignored.
    //= https://www.rfc-editor.org/rfc/rfc768
    //# If the computed  checksum  is zero,  it is transmitted  as all ones (the
    //# equivalent  in one's complement  arithmetic).
    #[inline]
    #[must_use]
    pub fn checksum_for(&self, pseudo: u64, payload_sum: u64) -> u16 {
        let ports = u64::from(self.src_port) + u64::from(self.dst_port) + u64::from(self.length);
        match checksum::finish(pseudo + ports + payload_sum) {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// Returns whether the checksum of a UDP datagram over IPv4 is correct or absent. `datagram` must
/// end at the UDP length. `pseudo` is the running sum of the pseudo-header.
#[inline]
#[must_use]
pub fn checksum_ok_v4(datagram: &[u8], pseudo: u64) -> bool {
    //= https://www.rfc-editor.org/rfc/rfc1122#section-4.1.3.4
    //# If a UDP datagram is received with a checksum that is non-zero and invalid, UDP
    //# MUST silently discard the datagram.
    matches!(datagram.get(6..8), Some([0, 0])) || sum_ok(datagram, pseudo)
}

/// Returns whether the checksum of a UDP datagram over IPv6 is correct. `datagram` must end at the
/// UDP length. `pseudo` is the running sum of the pseudo-header.
#[inline]
#[must_use]
pub fn checksum_ok_v6(datagram: &[u8], pseudo: u64) -> bool {
    //= https://www.rfc-editor.org/rfc/rfc8200#section-8.1
    //# IPv6 receivers must discard UDP packets containing a zero checksum and should log the error.
    !matches!(datagram.get(6..8), Some([0, 0])) && sum_ok(datagram, pseudo)
}

#[inline]
fn sum_ok(datagram: &[u8], pseudo: u64) -> bool {
    checksum::finish(checksum::sum(datagram, pseudo)) == 0
}
