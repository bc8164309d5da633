//! The IPv6 header (RFC 8200). Extension headers are in [`crate::ipv6_ext`].

use core::net::Ipv6Addr;
use core::ops::Range;

use crate::bytes::{be16, head, head_mut};
use crate::{IpProtocol, ParseError};

/// Length of the IPv6 header in bytes.
pub const HEADER_LEN: usize = 40;
/// Maximum length of an IPv6 payload in bytes. Jumbograms (RFC 2675) are not supported.
pub const PAYLOAD_LEN_MAX: usize = 65535;
/// Minimum MTU of an IPv6 link in bytes (RFC 8200 §5).
pub const MTU_MIN: usize = 1280;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Traffic class: differentiated services (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length in bytes of the payload: everything after this header.
    pub payload_len: u16,
    /// Type of the header that follows: an extension header or the transport protocol.
    pub next_header: IpProtocol,
    /// Hop limit: number of remaining hops.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Header {
    /// Parses the header of an IPv6 packet. Returns the header, and the range of the payload. Bytes
    /// after the payload length are padding of the link, and not part of the payload.
    #[inline]
    pub fn parse(data: &[u8]) -> Result<(Self, Range<usize>), ParseError> {
        let (header, header_len) = Self::parse_quoted(data)?;
        let end = header_len + usize::from(header.payload_len);
        if end > data.len() {
            return Err(ParseError::Truncated);
        }
        Ok((header, header_len..end))
    }

    /// Parses the header of an IPv6 packet that an ICMPv6 error quotes. The payload may be
    /// truncated. Returns the header, and its length in bytes.
    #[inline]
    pub fn parse_quoted(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        if h[0] >> 4 != 6 {
            return Err(ParseError::BadVersion);
        }
        let (words, _) = h.as_chunks::<8>();
        let address = |hi: usize| {
            let (hi, lo) = (u64::from_be_bytes(words[hi]), u64::from_be_bytes(words[hi + 1]));
            Ipv6Addr::from_bits(u128::from(hi) << 64 | u128::from(lo))
        };
        let header = Self {
            traffic_class: h[0] << 4 | h[1] >> 4,
            flow_label: u32::from_be_bytes([0, h[1] & 0x0f, h[2], h[3]]),
            payload_len: be16(h[4], h[5]),
            next_header: IpProtocol(h[6]),
            hop_limit: h[7],
            src: address(1),
            dst: address(3),
        };
        Ok((header, HEADER_LEN))
    }

    /// Writes the header to `buf`, and returns its length in bytes, 40.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let h = head_mut::<HEADER_LEN>(buf);
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        h[..4].copy_from_slice(&first.to_be_bytes());
        h[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        h[6] = self.next_header.0;
        h[7] = self.hop_limit;
        h[8..24].copy_from_slice(&self.src.octets());
        h[24..].copy_from_slice(&self.dst.octets());
        HEADER_LEN
    }
}
