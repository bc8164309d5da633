//! Filters of datagram sockets (SO_ATTACH_FILTER), and the packet data that filters read.
//!
//! As in Linux's `udp_queue_rcv_one_skb`, the data that the filter of a UDP socket sees begins with
//! the UDP header. A filter cannot truncate that header (`sk_filter_trim_cap`). The data that the
//! filter of an ICMP echo socket sees begins with the ICMP header (`sock_queue_rcv_skb`).

use towpath_cbpf::{Ancillary, FilterPacket, Origin, Program};
use towpath_pool::LinkType;
use towpath_ring::Payload;
use towpath_wire::{IpProtocol, udp};

use crate::net::{IfaceId, Local};

/// Values of Linux's ARPHRD_ETHER, ARPHRD_LOOPBACK and ARPHRD_NONE.
const ETHER: u32 = 1;
const LOOPBACK: u32 = 772;
const NONE: u32 = 0xfffe;
/// Values of Linux's PACKET_HOST, PACKET_BROADCAST and PACKET_MULTICAST.
const TO_HOST: u32 = 0;
const TO_ALL: u32 = 1;
const TO_GROUP: u32 = 2;
/// Length of an Ethernet header in bytes.
const LINK_HEADER: usize = 14;
/// Length in bytes of the UDP header. The ICMP header of an echo message has the same length.
const TRANSPORT_HEADER: u32 = 8;

/// The packet that contains a datagram, and metadata that socket filters can read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    pub local: &'a Local,
    /// Type of the link header that packets of the interface have.
    pub link: LinkType,
    /// Number of the shard, which filters read as the processor number.
    pub shard: u8,
    /// Hash of the packet's addresses and ports.
    pub hash: u32,
    /// Random number, which senders cannot predict.
    pub random: u32,
}

/// A datagram as a filter program sees it.
#[derive(Debug)]
struct FilterView<'a> {
    around: Around<'a>,
    /// UDP header of this datagram, with the length of this datagram alone. Not used for echo
    /// messages.
    header: [u8; udp::HEADER_LEN],
    header_len: u32,
    payload: &'a Payload<'a>,
}

/// Applies the filter program `filter` to a datagram. Returns the number of payload bytes to keep;
/// `None` if the datagram is dropped.
pub(crate) fn filter(filter: &Program, around: &Around<'_>, payload: &Payload<'_>) -> Option<u32> {
    let is_udp = IpProtocol(around.local.protocol) == IpProtocol::UDP;
    let header_len = if is_udp { udp::HEADER_LEN as u32 } else { 0 };
    let mut header = [0; udp::HEADER_LEN];
    let start = around.local.offset;
    if let Some(bytes) = around.local.packet.linear().get(start..start + udp::HEADER_LEN) {
        header.copy_from_slice(bytes);
    }
    // The packet's UDP header may contain the length of several merged datagrams. Set the length of
    // this datagram alone.
    header[4..6].copy_from_slice(&((header_len + payload.len()) as u16).to_be_bytes());
    let view = FilterView { around: *around, header, header_len, payload };
    match filter.run(&view) {
        0 => None,
        kept => Some(kept.saturating_sub(header_len).min(payload.len())),
    }
}

impl FilterView<'_> {
    /// Copies bytes of the transport header and the payload to `bytes`, beginning at offset `at`.
    /// Returns false if there are too few.
    fn data(&self, at: u32, bytes: &mut [u8]) -> bool {
        let end = at.checked_add(bytes.len() as u32).filter(|end| *end <= self.len());
        if end.is_none() {
            return false;
        }
        let in_header = (self.header_len.saturating_sub(at) as usize).min(bytes.len());
        let (first, rest) = bytes.split_at_mut(in_header);
        let from = at.min(self.header_len) as usize;
        first.copy_from_slice(&self.header[from..from + in_header]);
        if !rest.is_empty() {
            self.payload.copy_to(at.saturating_sub(self.header_len), rest);
        }
        true
    }

    /// Copies bytes to `bytes`, beginning at offset `at` of `headers` and the packet data that
    /// follow them. Returns false if there are not enough bytes.
    fn behind(&self, headers: &[u8], at: u32, bytes: &mut [u8]) -> bool {
        let from = (at as usize).min(headers.len());
        let n = (headers.len() - from).min(bytes.len());
        let (first, rest) = bytes.split_at_mut(n);
        first.copy_from_slice(&headers[from..from + n]);
        rest.is_empty() || self.data(at.saturating_sub(headers.len() as u32), rest)
    }

    /// Copies bytes to `bytes`, beginning at offset `at` of the link header and the packet data
    /// that follow it. Allocates no memory, because a filter may call this in each of its
    /// instructions.
    fn framed(&self, at: u32, bytes: &mut [u8]) -> bool {
        let link = self.link_header();
        let from = (at as usize).min(LINK_HEADER);
        let n = (LINK_HEADER - from).min(bytes.len());
        let (first, rest) = bytes.split_at_mut(n);
        first.copy_from_slice(&link[from..from + n]);
        let at = at.saturating_sub(LINK_HEADER as u32);
        rest.is_empty() || self.behind(self.ip_header(), at, rest)
    }

    /// Returns the IP header with its options.
    fn ip_header(&self) -> &[u8] {
        let local = self.around.local;
        local.packet.linear().get(local.ip_offset..local.offset).unwrap_or_default()
    }

    /// Returns the link header. For a packet from this host to itself, this is the header that
    /// Linux's loopback interface creates.
    fn link_header(&self) -> [u8; LINK_HEADER] {
        let local = self.around.local;
        let mut header = [0; LINK_HEADER];
        let found = local.ip_offset.checked_sub(LINK_HEADER);
        let found = found.and_then(|from| local.packet.linear().get(from..local.ip_offset));
        match found.filter(|_| !local.looped) {
            Some(found) => header.copy_from_slice(found),
            None => header[12..].copy_from_slice(&(self.ether_type() as u16).to_be_bytes()),
        }
        header
    }

    fn ether_type(&self) -> u32 {
        if self.around.local.src.is_ipv4() { 0x0800 } else { 0x86dd }
    }

    fn packet_type(&self) -> u32 {
        match self.around.local.dst {
            dst if dst.is_multicast() => TO_GROUP,
            _ if self.around.local.broadcast_or_multicast => TO_ALL,
            _ => TO_HOST,
        }
    }

    fn hardware_type(&self) -> u32 {
        match self.around.link {
            _ if self.around.local.iface == IfaceId::LOOPBACK => LOOPBACK,
            LinkType::Ethernet => ETHER,
            LinkType::Ip => NONE,
        }
    }
}

impl FilterPacket for FilterView<'_> {
    fn len(&self) -> u32 {
        self.header_len + self.payload.len()
    }

    fn read(&self, origin: Origin, at: u32, bytes: &mut [u8]) -> bool {
        match origin {
            Origin::Data => self.data(at, bytes),
            Origin::Network => self.behind(self.ip_header(), at, bytes),
            // On a link without link headers, packets begin with the IP header.
            Origin::Link if self.hardware_type() != NONE => self.framed(at, bytes),
            Origin::Link => self.behind(self.ip_header(), at, bytes),
        }
    }

    fn about(&self, what: Ancillary) -> u32 {
        match what {
            Ancillary::Protocol => self.ether_type(),
            Ancillary::PacketType => self.packet_type(),
            Ancillary::InterfaceIndex => u32::from(self.around.local.iface.0) + 1,
            Ancillary::HardwareType => self.hardware_type(),
            Ancillary::FlowHash => self.around.hash,
            Ancillary::Processor => self.around.shard.into(),
            Ancillary::PayloadOffset => TRANSPORT_HEADER,
            Ancillary::Random => self.around.random,
            // The stack's devices have no queue numbers, marks or VLAN tags, so return 0.
            _ => 0,
        }
    }
}
