//! The IP headers of a received packet.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_wire::ipv6_ext::{self, UpperLayer};
use towpath_wire::{IpProtocol, ipv4, ipv6};

/// Fields of the IP headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct IpPacket {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: IpProtocol,
    pub ttl: u8,
    pub tos: u8,
    /// Place of the IP header.
    pub ip_offset: usize,
    /// End of the IP headers, as far as they were read.
    pub offset: usize,
    /// End of the IP packet.
    pub end: usize,
    pub fragment: Option<FragmentPiece>,
    /// A tracker replaced an address.
    pub is_rewritten: bool,
}

/// Fields of a fragment's headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct FragmentPiece {
    pub offset: usize,
    pub more: bool,
    pub ident: u32,
    pub next_header: Option<(usize, u8)>,
}

impl IpPacket {
    /// The headers of a packet whose IPv4 header at `at` is valid, has no options and is of no
    /// fragment.
    #[inline]
    pub(super) fn of_plain_v4(packet: &Packet, at: usize) -> Option<Self> {
        let (header, len) = ipv4::Header::parse_quoted(packet.linear().get(at..)?).ok()?;
        Some(Self::of_v4(&header, at, len, None))
    }

    /// Transport header, or the piece of it in a fragment, with its place in `packet`. `None` if
    /// extension headers end beyond the packet, or it is a fragment of a fragment.
    #[inline]
    pub(super) fn upper(&self, packet: &Packet) -> Option<UpperLayer> {
        let (protocol, at) = (self.protocol, self.offset);
        if self.src.is_ipv6() && protocol.is_ipv6_extension() {
            return self.upper_by_lengths(packet);
        }
        let piece = self.fragment;
        let fragment_offset = piece.map_or(0, |piece| piece.offset);
        let more_fragments = piece.is_some_and(|piece| piece.more);
        Some(UpperLayer { protocol, at, fragment_offset, more_fragments })
    }

    #[cold]
    fn upper_by_lengths(&self, packet: &Packet) -> Option<UpperLayer> {
        let linear = packet.linear();
        let bytes = linear.get(self.ip_offset..self.end.min(linear.len()))?;
        let (header, _) = ipv6::Header::parse_quoted(bytes).ok()?;
        let upper = ipv6_ext::upper_by_lengths(bytes, &header)?;
        Some(UpperLayer { at: self.ip_offset + upper.at, ..upper })
    }

    #[inline]
    pub(super) fn of_v4(
        header: &ipv4::Header,
        at: usize,
        header_len: usize,
        fragment: Option<FragmentPiece>,
    ) -> Self {
        Self {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.protocol,
            ttl: header.ttl,
            tos: header.tos,
            ip_offset: at,
            offset: at + header_len,
            end: at + usize::from(header.total_len),
            fragment,
            is_rewritten: false,
        }
    }
}
