//! Ethernet II frame headers, with or without one 802.1Q tag.

use core::fmt;

use crate::bytes::{at, be16, head, head_mut};
use crate::{MacAddr, ParseError};

/// Length of an untagged Ethernet header in bytes.
pub const HEADER_LEN: usize = 14;
/// Length of one 802.1Q tag in bytes.
pub const VLAN_TAG_LEN: usize = 4;

/// The header of an Ethernet II frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination MAC address.
    pub dst: MacAddr,
    /// Source MAC address.
    pub src: MacAddr,
    /// The 802.1Q tag; `None` if the frame has none.
    pub vlan: Option<VlanTag>,
    /// Type of the payload. The type is [`EtherType::VLAN`] only if the frame has a second 802.1Q
    /// tag.
    pub ethertype: EtherType,
}

impl Header {
    /// Parses the header of a frame. Returns the header, and the offset of the payload in bytes. A
    /// second 802.1Q tag is left in the payload; `ethertype` is [`EtherType::VLAN`] then.
    #[inline]
    pub fn parse(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let h = head::<HEADER_LEN>(data)?;
        let mut header = Self {
            dst: MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]]),
            src: MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]]),
            vlan: None,
            ethertype: EtherType(be16(h[12], h[13])),
        };
        if header.ethertype != EtherType::VLAN {
            return Ok((header, HEADER_LEN));
        }
        let tag = at::<VLAN_TAG_LEN>(data, HEADER_LEN)?;
        header.vlan = Some(VlanTag::from_bits(be16(tag[0], tag[1])));
        header.ethertype = EtherType(be16(tag[2], tag[3]));
        Ok((header, HEADER_LEN + VLAN_TAG_LEN))
    }

    /// Writes the header to `buf`, and returns its length in bytes, 14 or 18.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let h = head_mut::<HEADER_LEN>(buf);
        h[..6].copy_from_slice(&self.dst.0);
        h[6..12].copy_from_slice(&self.src.0);
        let Some(vlan) = self.vlan else {
            h[12..].copy_from_slice(&self.ethertype.0.to_be_bytes());
            return HEADER_LEN;
        };
        h[12..].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        let tag = head_mut::<VLAN_TAG_LEN>(&mut buf[HEADER_LEN..]);
        tag[..2].copy_from_slice(&vlan.to_bits().to_be_bytes());
        tag[2..].copy_from_slice(&self.ethertype.0.to_be_bytes());
        HEADER_LEN + VLAN_TAG_LEN
    }

    /// Returns the length of the header in bytes: 14, or 18 with an 802.1Q tag.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        if self.vlan.is_some() { HEADER_LEN + VLAN_TAG_LEN } else { HEADER_LEN }
    }
}

/// Contents of an 802.1Q VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Priority code point of the frame, 0 to 7.
    pub priority: u8,
    /// Whether the frame may be dropped before others in case of congestion.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 to 4095. 0 means that the tag contains only a priority; 4095 is reserved.
    pub id: u16,
}

impl VlanTag {
    /// Decodes a tag from its 16 bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self { priority: (bits >> 13) as u8, drop_eligible: bits & 0x1000 != 0, id: bits & 0x0fff }
    }

    /// Encodes the tag as 16 bits.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0x0fff
    }
}

/// The type field of an Ethernet II frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// The payload is an IPv4 packet (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// The payload is an ARP packet (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// The payload begins with an 802.1Q tag.
    pub const VLAN: Self = Self(0x8100);
    /// The payload is an IPv6 packet (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);

    /// Returns whether the type field is an 802.3 length instead of a type. A frame with a length
    /// contains LLC and not IP.
    #[must_use]
    pub const fn is_length(self) -> bool {
        self.0 < 0x0600
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("ipv4"),
            Self::ARP => f.write_str("arp"),
            Self::VLAN => f.write_str("vlan"),
            Self::IPV6 => f.write_str("ipv6"),
            Self(other) => write!(f, "{other:#06x}"),
        }
    }
}
