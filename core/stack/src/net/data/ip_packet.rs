//! Parsed IP headers of a received packet.

use core::net::IpAddr;

use towpath_filter::FlowState;
use towpath_pool::Packet;
use towpath_wire::ipv6_ext::{self, UpperLayer};
use towpath_wire::{IpProtocol, ipv4, ipv6};

/// Fields of a received packet's IP headers, and their offsets.
#[derive(Debug, Clone, Copy)]
pub(super) struct IpPacket {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub protocol: IpProtocol,
    pub ttl: u8,
    pub tos: u8,
    /// Offset of the IP header in the packet.
    pub ip_offset: usize,
    /// Offset of the first header that is not parsed yet.
    pub offset: usize,
    /// Offset of the end of the IP packet, according to its length field.
    pub end: usize,
    pub fragment: Option<FragmentPiece>,
    /// Values that the tracker and rules attached to the packet at an earlier hook.
    pub tracked: Tracked,
    /// Whether the tracker has replaced an address of the packet.
    pub is_rewritten: bool,
}

/// Fields of the fragment header: offset, identification and "more fragments".
#[derive(Debug, Clone, Copy)]
pub(super) struct FragmentPiece {
    pub offset: usize,
    pub more: bool,
    pub ident: u32,
    /// Offset of the field that names the next header, and its value. 32 bits keep [`IpPacket`]
    /// small.
    pub next_header: Option<(u32, u8)>,
}

/// Values that the tracker (such as NAT) and rules attach to a packet, to read them at later hooks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tracked {
    /// Number that the stack does not interpret. The number is stored as bytes, which need no
    /// alignment, so that an [`IpPacket`] is small.
    pub token: [u8; 8],
    /// Connection state of the packet's flow, which rules of the packet filter match.
    pub state: FlowState,
    /// Mark that a rule of the packet filter has set; 0 if none has. Stored as bytes, as `token`.
    pub mark: [u8; 4],
}

impl IpPacket {
    /// Parses the IPv4 header at offset `at`, which the caller has validated. The packet has no IP
    /// options and is not a fragment.
    #[inline]
    pub(super) fn of_plain_v4(packet: &Packet, at: usize) -> Option<Self> {
        let (header, len) = ipv4::Header::parse_quoted(packet.linear().get(at..)?).ok()?;
        Some(Self::of_v4(&header, at, len, None))
    }

    /// Returns the protocol of the upper-layer header and its offset in `packet`. For a fragment
    /// other than the first, this is the offset of its data.
    ///
    /// Returns `None` if the packet ends within an extension header, or has two fragment headers.
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
            tracked: Tracked::default(),
            is_rewritten: false,
        }
    }
}
