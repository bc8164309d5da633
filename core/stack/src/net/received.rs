//! Received packets, as the layers above get them.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_wire::MacAddr;
use towpath_wire::tcp::SeqNum;

use super::iface::IfaceId;

/// A validated transport packet for this host. Only its transport checksum is unchecked
/// ([`verify_transport`](super::verify_transport)).
#[derive(Debug)]
pub struct Local {
    /// The packet, with the link header if it came with one.
    pub packet: Packet,
    /// Where it came in.
    pub iface: IfaceId,
    /// Sender.
    pub src: IpAddr,
    /// Receiver: an address of ours, a group, a broadcast address, or anything on an any-address
    /// interface.
    pub dst: IpAddr,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// TTL or hop limit as it arrived.
    pub ttl: u8,
    /// Type of service or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Where the IP header starts in `packet.linear()`.
    pub ip_offset: usize,
    /// Where the transport header starts in `packet.linear()`.
    pub offset: usize,
    /// Bytes of transport header and payload, linear part and tail.
    pub len: usize,
    /// The packet was sent to a group or broadcast address, of IP or of the link.
    pub broadcast_or_multicast: bool,
    /// The packet is from this host itself. Its link header is missing, whatever `iface` is.
    pub looped: bool,
}

impl Local {
    /// The transport header and payload of a linear packet.
    pub(super) fn body(&self) -> &[u8] {
        self.packet.linear().get(self.offset..self.offset + self.len).unwrap_or_default()
    }
}

/// A packet of this host to itself, without link header.
#[derive(Debug)]
pub struct Looped {
    /// The interface that the packet counts as received on: the loopback. As on Linux, the copy of
    /// a datagram to a group or broadcast address counts for the interface that the datagram left
    /// by.
    pub iface: IfaceId,
    /// The IP packet.
    pub packet: Packet,
}

/// An address of this host that another host on the link has as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// The interface of the address.
    pub iface: IfaceId,
    /// The address.
    pub addr: IpAddr,
    /// Ethernet address of the other host, if it said so.
    pub mac: Option<MacAddr>,
    /// Duplicate address detection found it before the address was established: it is not used.
    pub is_given_up: bool,
}

/// A received packet or report for the layers above.
#[derive(Debug)]
pub enum Received {
    /// A transport packet: TCP, UDP, or a protocol that this layer does not know.
    Local(Local),
    /// A report that a packet of ours was not delivered.
    IcmpError(IcmpError),
    /// An answer to an echo request, for ping sockets.
    EchoReply(Echo),
    /// An echo request to an address that is not ours, on an any-address interface.
    EchoRequest(Echo),
}

/// An echo message.
#[derive(Debug)]
pub struct Echo {
    /// The packet; `local.offset` is where the ICMP header starts.
    pub local: Local,
    /// Identifier: which pinger (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number: which of its pings.
    pub seq: u16,
    /// Where the data starts in `local.packet.linear()`.
    pub data_offset: usize,
    /// Bytes of data, all in the linear part.
    pub data_len: usize,
}

/// An ICMP error about a packet of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpError {
    /// ICMP type and code, of the IP version that the addresses have.
    pub message: (u8, u8),
    /// Bytes that the next link takes, when the packet was longer; 0 when the reporter does not say
    /// (before RFC 1191).
    pub too_big: Option<u32>,
    /// Source of our packet.
    pub src: IpAddr,
    /// Destination of our packet.
    pub dst: IpAddr,
    /// Transport of our packet: an IANA protocol number, as 6 for TCP.
    pub protocol: u8,
    /// Source port of our packet; the ident of an echo request.
    pub src_port: u16,
    /// Destination port of our packet; 0 for an echo request.
    pub dst_port: u16,
    /// Sequence number of a TCP segment: it shows whether the reporter saw our packet (RFC 5927
    /// §4).
    pub tcp_seq: Option<SeqNum>,
    /// Sender of the report.
    pub from: IpAddr,
    /// The interface that the report came in on, or whose neighbour does not answer.
    pub iface: IfaceId,
    /// Quoted bytes of a UDP datagram behind its header, or of a whole echo request. 1280 bytes at
    /// most.
    pub payload: Vec<u8>,
}
