//! Received packets, as the IP layer passes them to the sockets.

use towpath_ring::Payload;
use towpath_tcp::{Flags, Instant, Segment};
use towpath_wire::ipv4;

use crate::net::Local;
use crate::tables::flow::Flow;

/// A received TCP segment, with its flow: local and remote address.
pub(crate) struct IncomingSegment {
    pub local: Local,
    pub flow: Flow,
    pub hash: u64,
    pub segment: Segment,
    /// Length of the TCP header in bytes, including options.
    pub header_len: usize,
}

impl IncomingSegment {
    /// Returns the TCP header.
    pub fn header(&self) -> &[u8] {
        let bytes = self.local.packet.linear().get(self.local.offset..).unwrap_or_default();
        bytes.get(..self.header_len).unwrap_or_default()
    }

    /// Returns the IP and TCP headers of the segment, as TCP_SAVED_SYN does.
    pub fn headers(&self) -> Box<[u8]> {
        let end = self.local.offset + self.header_len;
        self.local.packet.linear().get(self.local.ip_offset..end).unwrap_or_default().into()
    }

    /// Returns the payload of the segment.
    pub fn payload(&self) -> Payload<'_> {
        payload_of(&self.local, self.header_len)
    }
}

/// Returns whether the segment is a SYN without ACK and RST, which opens a connection.
pub(crate) fn is_opening(segment: &Segment) -> bool {
    segment.flags.contains(Flags::SYN) && !segment.flags.intersects(Flags::ACK | Flags::RST)
}

/// Returns the payload of a packet: the bytes after the first `header_len` bytes of the transport
/// header.
pub(crate) fn payload_of(local: &Local, header_len: usize) -> Payload<'_> {
    let linear = local.packet.linear();
    let start = (local.offset + header_len).min(linear.len());
    let len = local.len.saturating_sub(header_len);
    let end = linear.len().min(start + len);
    let tail = (len - (end - start)).min(local.packet.tail.len() as usize);
    Payload::new(&linear[start..end], local.packet.tail.slice(0, tail as u32))
}

/// Returns the time at which the device received the packet; `now` if the device gives no time.
pub(crate) fn arrival(now: Instant, local: &Local) -> Instant {
    match local.packet.meta.arrival_ns {
        0 => now,
        ns => Instant(ns),
    }
}

/// Returns whether the IPv4 don't-fragment bit is set; false for IPv6.
pub(crate) fn dont_fragment(local: &Local) -> bool {
    let header = local.packet.linear().get(local.ip_offset..);
    header.is_some_and(ipv4::forbids_fragments)
}

/// Returns the number of segments on the wire that were merged into the packet.
pub(crate) fn segments_in(local: &Local, payload_len: usize) -> u16 {
    let size =
        local.packet.meta.segmentation.map_or(0, |segmentation| usize::from(segmentation.size));
    if size == 0 { 1 } else { payload_len.div_ceil(size).clamp(1, 65535) as u16 }
}
