//! Received packets, as the IP layer passes them to the layers above.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_wire::MacAddr;
use towpath_wire::tcp::SeqNum;

use super::iface::IfaceId;

/// A validated packet of a transport protocol for this host. Its transport checksum is not verified
/// yet; see [`verify_transport`](super::verify_transport).
#[derive(Debug)]
pub struct Local {
    /// The packet, including its link header if it arrived with one.
    pub packet: Packet,
    /// Interface on which the packet arrived.
    pub iface: IfaceId,
    /// Source address of the packet.
    pub src: IpAddr,
    /// Destination address: an address of this host, a multicast group or a broadcast address. If
    /// the interface accepts packets to every address (`any_address`), it can be any address.
    pub dst: IpAddr,
    /// Number of the transport protocol (IANA), such as 6 for TCP.
    pub protocol: u8,
    /// TTL or hop limit that the packet had on arrival.
    pub ttl: u8,
    /// Type of service (IPv4) or traffic class (IPv6) of the packet, which contain DSCP and ECN.
    pub tos: u8,
    /// Offset of the IP header in `packet.linear()`.
    pub ip_offset: usize,
    /// Offset of the transport header in `packet.linear()`.
    pub offset: usize,
    /// Length in bytes of the transport header and the payload. The payload may continue in the
    /// packet's tail, outside its linear part.
    pub len: usize,
    /// Whether the packet was sent to a multicast or broadcast address of IP or of the link layer.
    pub broadcast_or_multicast: bool,
    /// Whether this host sent the packet to itself. A packet to itself has no link header, and
    /// `iface` need not be the loopback interface.
    pub looped: bool,
}

impl Local {
    /// Returns the transport header and the payload. The packet must be linear.
    pub(super) fn body(&self) -> &[u8] {
        self.packet.linear().get(self.offset..self.offset + self.len).unwrap_or_default()
    }
}

/// A packet that this host sent to itself. The packet has no link header.
#[derive(Debug)]
pub struct Looped {
    /// Interface on which the packet counts as received; usually loopback. As on Linux, the copy of
    /// a multicast or broadcast datagram counts as received on the interface by which the datagram
    /// was sent.
    pub iface: IfaceId,
    /// The packet, which begins with its IP header.
    pub packet: Packet,
}

/// Address conflict: another host on the link uses an address of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Interface whose address another host uses.
    pub iface: IfaceId,
    /// Address that this host and another host on the link use.
    pub addr: IpAddr,
    /// MAC address of the host with the same address; `None` if its message did not contain one.
    pub mac: Option<MacAddr>,
    /// Whether duplicate address detection found the conflict, so that this host does not use the
    /// address.
    pub is_given_up: bool,
}

/// A received packet, or a report about a sent one, for the layers above.
#[derive(Debug)]
pub enum Received {
    /// A packet with a transport protocol: TCP, UDP, or one that the IP layer does not know.
    Local(Local),
    /// An ICMP error about a packet that this host sent.
    IcmpError(IcmpError),
    /// An ICMP echo reply, for ICMP echo sockets.
    EchoReply(Echo),
    /// An ICMP echo request to an address that is not one of this host, received on an interface
    /// that accepts packets to any address (`any_address`).
    EchoRequest(Echo),
}

/// A received ICMP echo message.
#[derive(Debug)]
pub struct Echo {
    /// The packet with the message. `local.offset` is the offset of its ICMP header.
    pub local: Local,
    /// Echo identifier of the message (RFC 792, RFC 4443 §4).
    pub ident: u16,
    /// Sequence number of the message (RFC 792, RFC 4443 §4).
    pub seq: u16,
    /// Offset of the echo data in `local.packet.linear()`.
    pub data_offset: usize,
    /// Length of the echo data in bytes. All of the data is in the packet's linear part.
    pub data_len: usize,
}

/// ICMP error about a packet that this host sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpError {
    /// Type and code of the ICMP message: ICMPv6 if the addresses are IPv6, otherwise ICMPv4.
    pub message: (u8, u8),
    /// MTU in bytes of the next link, if the error reports that the packet was too long. 0 if the
    /// router does not report the MTU, because it is older than RFC 1191.
    pub too_big: Option<u32>,
    /// Source address of the packet that the error is about.
    pub src: IpAddr,
    /// Destination address of the packet that the error is about.
    pub dst: IpAddr,
    /// Transport protocol of the packet that the error is about, as an IANA number, such as 6 for
    /// TCP.
    pub protocol: u8,
    /// Source port of the packet that the error is about. For an echo request, its identifier.
    pub src_port: u16,
    /// Destination port of the packet that the error is about; 0 for an echo request.
    pub dst_port: u16,
    /// Sequence number of the TCP segment that the error is about. The connection ignores an error
    /// with a wrong sequence number, because an attacker off the path does not know the right one
    /// (RFC 5927 §4).
    pub tcp_seq: Option<SeqNum>,
    /// Source address of the ICMP error.
    pub from: IpAddr,
    /// Interface on which the ICMP error arrived. If this host created the error because a
    /// neighbour did not answer, the interface of the neighbour.
    pub iface: IfaceId,
    /// Payload of the quoted UDP datagram, or the whole quoted echo request; at most 1280 bytes.
    pub payload: Vec<u8>,
}
