//! The IPv4 header (RFC 791) and its options.

use core::net::Ipv4Addr;
use core::ops::Range;

use crate::bytes::{be16, be64_of, head, head_mut};
use crate::{IpProtocol, ParseError, checksum};

/// Length of an IPv4 header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// Maximum length of the options of an IPv4 header, in bytes.
pub const OPTIONS_LEN_MAX: usize = 40;
/// Maximum length of an IPv4 packet in bytes.
pub const TOTAL_LEN_MAX: usize = 65535;
/// Minimum MTU of an IPv4 link in bytes (RFC 791 §3.2).
pub const MTU_MIN: usize = 68;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// An IPv4 header. The checksum is not a field: [`Header::emit`] computes it, and [`checksum_ok`]
/// verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of service: differentiated services (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Length of the packet in bytes: header and payload.
    pub total_len: u16,
    /// Identification, which all fragments of a packet share.
    pub ident: u16,
    /// Whether routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Whether more fragments follow this one.
    pub more_fragments: bool,
    /// Offset of this fragment in the original packet's payload, in bytes; a multiple of 8.
    pub fragment_offset: u16,
    /// Time to live: number of remaining hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Options of the header; empty in almost every packet.
    pub options: Options,
}

impl Header {
    /// Parses the header of an IPv4 packet. Returns the header, and the range of the payload. Bytes
    /// after the total length are padding of the link, and not part of the payload. The checksum is
    /// not verified.
    #[inline]
    pub fn parse(data: &[u8]) -> Result<(Self, Range<usize>), ParseError> {
        let (header, header_len) = Self::parse_quoted(data)?;
        let total_len = usize::from(header.total_len);
        if total_len < header_len {
            return Err(ParseError::BadLength);
        }
        if total_len > data.len() {
            return Err(ParseError::Truncated);
        }
        // Reject a fragment that ends beyond the maximum packet length, because its packet can
        // never be reassembled.
        if usize::from(header.fragment_offset) + total_len > TOTAL_LEN_MAX {
            return Err(ParseError::BadLength);
        }
        Ok((header, header_len..total_len))
    }

    /// Parses the header of an IPv4 packet that an ICMP error quotes. The payload may be truncated,
    /// but the header must be complete. Returns the header, and its length in bytes.
    #[inline]
    pub fn parse_quoted(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        if h[0] >> 4 != 4 {
            return Err(ParseError::BadVersion);
        }
        let header_len = usize::from(h[0] & 0x0f) * 4;
        let options = if header_len == HEADER_LEN {
            Options::EMPTY
        } else {
            let bytes = data.get(HEADER_LEN..header_len).ok_or(ParseError::BadHeaderLength)?;
            Options::new(bytes).ok_or(ParseError::BadHeaderLength)?
        };
        let fragment = be16(h[6], h[7]);
        let header = Self {
            tos: h[1],
            total_len: be16(h[2], h[3]),
            ident: be16(h[4], h[5]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: (fragment & OFFSET_MASK) << 3,
            ttl: h[8],
            protocol: IpProtocol(h[9]),
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
            options,
        };
        Ok((header, header_len))
    }

    /// Writes the header with its checksum to `buf`, and returns its length in bytes.
    // Most fields are constants of the caller, and become a few stores.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let header_len = self.header_len();
        let mut fragment = self.fragment_offset >> 3;
        if self.dont_fragment {
            fragment |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= MORE_FRAGMENTS;
        }
        let first = u16::from_be_bytes([0x40 | (header_len / 4) as u8, self.tos]);
        let hops = u16::from_be_bytes([self.ttl, self.protocol.0]);
        // Sum the fields instead of the bytes in `buf`. Loading bytes that were just stored would
        // stall the CPU.
        let fields = u64::from(first)
            + u64::from(self.total_len)
            + u64::from(self.ident)
            + u64::from(fragment)
            + u64::from(hops)
            + u64::from(self.src.to_bits())
            + u64::from(self.dst.to_bits());
        let sum = match self.options.is_empty() {
            true => fields,
            false => self.options.add_to(fields),
        };
        let sum = checksum::finish(sum);
        let h = head_mut::<HEADER_LEN>(buf);
        h[..8].copy_from_slice(&be64_of([first, self.total_len, self.ident, fragment]));
        h[8..10].copy_from_slice(&hops.to_be_bytes());
        h[10..12].copy_from_slice(&sum.to_be_bytes());
        h[12..16].copy_from_slice(&self.src.octets());
        h[16..].copy_from_slice(&self.dst.octets());
        if header_len > HEADER_LEN {
            self.options.emit(&mut buf[HEADER_LEN..header_len]);
        }
        header_len
    }

    /// Returns the length of the header in bytes, 20 to 60.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        HEADER_LEN + self.options.padded_len()
    }

    /// Returns the length of the payload in bytes.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        (self.total_len as usize).saturating_sub(self.header_len())
    }

    /// Returns whether the packet is a fragment.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }
}

/// Returns whether the checksum of an IPv4 header is correct. `header` must be exactly the header,
/// including its options.
#[inline]
#[must_use]
pub fn checksum_ok(header: &[u8]) -> bool {
    checksum::finish(checksum::sum(header, 0)) == 0
}

/// Returns whether a packet is IPv4 and has the don't-fragment flag. Its header may be malformed.
#[inline]
#[must_use]
pub fn forbids_fragments(packet: &[u8]) -> bool {
    match head::<HEADER_LEN>(packet) {
        Ok(h) => h[0] >> 4 == 4 && be16(h[6], h[7]) & DONT_FRAGMENT != 0,
        Err(_) => false,
    }
}

/// The options of an IPv4 header, at most 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    bytes: [u8; OPTIONS_LEN_MAX],
    len: u8,
}

impl Options {
    /// No options: an empty list.
    pub const EMPTY: Self = Self { bytes: [0; OPTIONS_LEN_MAX], len: 0 };
    /// The Router Alert option (RFC 2113), which IGMP messages contain.
    pub const ROUTER_ALERT: Self = {
        let mut bytes = [0; OPTIONS_LEN_MAX];
        bytes[0] = 0x94;
        bytes[1] = 4;
        Self { bytes, len: 4 }
    };

    /// Creates options from bytes; `None` if there are more than 40. `emit` pads them to a multiple
    /// of 4 with zero bytes ("end of option list").
    #[must_use]
    pub fn new(options: &[u8]) -> Option<Self> {
        let mut bytes = [0; OPTIONS_LEN_MAX];
        bytes.get_mut(..options.len())?.copy_from_slice(options);
        Some(Self { bytes, len: options.len() as u8 })
    }

    /// Returns the bytes of the options, as they were received.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns whether the header has no options.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the options. An option that exceeds the options area yields an error, and ends
    /// the iteration.
    #[must_use]
    pub fn iter(&self) -> OptionIter<'_> {
        OptionIter { rest: self.as_bytes() }
    }

    /// Returns the offset of the first option that exceeds the options area.
    #[must_use]
    pub fn malformed_at(&self) -> Option<usize> {
        let mut rest = self.iter();
        loop {
            while let [OptionIter::NOP, after @ ..] = rest.rest {
                rest.rest = after;
            }
            let at = usize::from(self.len) - rest.rest.len();
            if rest.next()?.is_err() {
                return Some(at);
            }
        }
    }

    /// Returns whether the options include a loose or strict source route. Hosts do not forward
    /// such packets, and packet filters should drop them (RFC 7126 §4.3, §4.4).
    #[must_use]
    pub fn has_source_route(&self) -> bool {
        const LOOSE: u8 = 131;
        const STRICT: u8 = 137;
        self.iter().any(|o| o.is_ok_and(|o| matches!(o.kind, LOOSE | STRICT)))
    }

    const fn padded_len(&self) -> usize {
        (self.len as usize).next_multiple_of(4)
    }

    fn padded(&self) -> &[u8] {
        &self.bytes[..self.padded_len()]
    }

    /// Adds the options to the checksum of a header. Not inlined, because options are rare and
    /// headers are written for each packet.
    #[cold]
    fn add_to(&self, sum: u64) -> u64 {
        checksum::sum(self.padded(), sum)
    }

    #[cold]
    fn emit(&self, buf: &mut [u8]) {
        buf.copy_from_slice(self.padded());
    }
}

/// An option of an IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionField<'a> {
    /// Type of the option: copied flag, class and number.
    pub kind: u8,
    /// Data of the option: the bytes after its length byte.
    pub data: &'a [u8],
}

impl OptionField<'_> {
    /// Returns whether the option is copied to every fragment, not only the first one (RFC 791
    /// §3.1).
    #[must_use]
    pub const fn is_copied(&self) -> bool {
        self.kind & 0x80 != 0
    }
}

/// Iterator over the options of an IPv4 header. Padding is skipped.
#[derive(Clone, Debug)]
pub struct OptionIter<'a> {
    rest: &'a [u8],
}

impl OptionIter<'_> {
    const NOP: u8 = 1;
}

impl<'a> Iterator for OptionIter<'a> {
    type Item = Result<OptionField<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        const END: u8 = 0;
        while let [Self::NOP, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let option = match self.rest {
            [] | [END, ..] => return None,
            [kind, len, ..] => {
                let len = usize::from(*len);
                self.rest.get(2..len).map(|data| (OptionField { kind: *kind, data }, len))
            }
            [_] => None,
        };
        let Some((option, len)) = option else {
            self.rest = &[];
            return Some(Err(ParseError::BadOption));
        };
        self.rest = &self.rest[len..];
        Some(Ok(option))
    }
}
