//! Received packets, as the IP layer gives them to the layers above.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_wire::MacAddr;
use towpath_wire::tcp::SeqNum;

use super::iface::IfaceId;

/// A validated packet of a transport protocol for this host. Its transport checksum is not verified
/// yet; see [`verify_transport`](super::verify_transport).
#[derive(Debug)]
pub struct Local {
    /// The packet, with the link header if it came with one.
    pub packet: Packet,
    /// Interface that the packet arrived on.
    pub iface: IfaceId,
    /// Source address.
    pub src: IpAddr,
    /// Destination address: an address of this host, a group or a broadcast address. Any address on
    /// an interface with `any_address`.
    pub dst: IpAddr,
    /// Number of the transport protocol (IANA), such as 6 for TCP.
    pub protocol: u8,
    /// TTL or hop limit of the received packet.
    pub ttl: u8,
    /// Type of Service (IPv4) or Traffic Class (IPv6): DSCP and ECN.
    pub tos: u8,
    /// Offset of the IP header in `packet.linear()`.
    pub ip_offset: usize,
    /// Offset of the transport header in `packet.linear()`.
    pub offset: usize,
    /// Length in bytes of transport header and payload. The payload may continue in the packet's
    /// tail.
    pub len: usize,
    /// The destination is a multicast or broadcast address, either of IP or of the link layer.
    pub broadcast_or_multicast: bool,
    /// The packet was sent by this host to itself, so it has no link header. `iface` need not be
    /// loopback.
    pub looped: bool,
}

impl Local {
    /// Returns transport header and payload. The packet must be linear.
    pub(super) fn body(&self) -> &[u8] {
        self.packet.linear().get(self.offset..self.offset + self.len).unwrap_or_default()
    }
}

/// A packet that this host sent to itself, without link header.
#[derive(Debug)]
pub struct Looped {
    /// Interface that the packet counts as received on: loopback. As on Linux, the copy of a
    /// datagram to a group or broadcast address counts for the interface that the datagram left by.
    pub iface: IfaceId,
    /// The packet, from its IP header on.
    pub packet: Packet,
}

/// Address conflict: another host on the link uses an address of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Interface that has the address.
    pub iface: IfaceId,
    /// Address that both hosts use.
    pub addr: IpAddr,
    /// MAC address of the other host, if its message had one.
    pub mac: Option<MacAddr>,
    /// Duplicate address detection found the conflict, so this host does not use the address.
    pub is_given_up: bool,
}

/// Received packet or report for the layers above.
#[derive(Debug)]
pub enum Received {
    /// Transport packet: TCP, UDP, or a protocol unknown to the IP layer.
    Local(Local),
    /// ICMP error about a packet of this host.
    IcmpError(IcmpError),
    /// Echo reply, for ping sockets.
    EchoReply(Echo),
    /// Echo request to an address that is not this host's, received on an interface with
    /// `any_address`.
    EchoRequest(Echo),
}

/// ICMP echo message.
#[derive(Debug)]
pub struct Echo {
    /// The packet; `local.offset` is the offset of the ICMP header.
    pub local: Local,
    /// Identifier of the sending ping socket (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number of the echo request (RFC 792, RFC 4443 §4).
    pub seq: u16,
    /// Offset of the echo data in `local.packet.linear()`.
    pub data_offset: usize,
    /// Length of the echo data in bytes. The data is in the packet's linear part.
    pub data_len: usize,
}

/// ICMP error about a packet that this host sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpError {
    /// ICMP type and code; the addresses tell whether ICMPv4 or ICMPv6.
    pub message: (u8, u8),
    /// MTU in bytes of the next link, if the packet was too big for it. 0 if the router does not
    /// report the MTU (before RFC 1191).
    pub too_big: Option<u32>,
    /// Source address of the packet in error.
    pub src: IpAddr,
    /// Destination address of the packet in error.
    pub dst: IpAddr,
    /// Transport protocol of the packet in error, as an IANA number, such as 6 for TCP.
    pub protocol: u8,
    /// Source port of the packet in error; the identifier for an echo request.
    pub src_port: u16,
    /// Destination port of the packet in error; 0 for an echo request.
    pub dst_port: u16,
    /// Sequence number of the TCP segment in error. The connection checks it, because an attacker
    /// off the path does not know it (RFC 5927 §4).
    pub tcp_seq: Option<SeqNum>,
    /// Sender of the ICMP error.
    pub from: IpAddr,
    /// Interface that the ICMP error arrived on. If a neighbour does not answer, the interface of
    /// the neighbour.
    pub iface: IfaceId,
    /// Quoted payload of a UDP datagram, or a whole quoted echo request; at most 1280 bytes.
    pub payload: Vec<u8>,
}
