//! The Address Resolution Protocol for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::bytes::{be16, head, head_mut};
use crate::{MacAddr, ParseError};

/// Length of an ARP packet for IPv4 over Ethernet in bytes.
pub const PACKET_LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u16 = 0x0800;

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Operation: request or reply.
    pub op: ArpOp,
    /// Ethernet address of the sender.
    pub sender_mac: MacAddr,
    /// IPv4 address of the sender; 0.0.0.0 in an ARP probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Ethernet address of the target; ignored in a request.
    pub target_mac: MacAddr,
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArpOp {
    /// Requests the MAC address of `target_ip`.
    Request,
    /// Reports that `sender_ip` is at `sender_mac`.
    Reply,
}

impl ArpPacket {
    /// Parses an ARP packet. Returns [`ParseError::Unsupported`] for other hardware or protocol
    /// types, and for reverse ARP. Returns [`ParseError::BadAddress`] if the sender is a multicast
    /// address.
    pub fn parse(data: &[u8]) -> Result<(Self, usize), ParseError> {
        let p = head::<PACKET_LEN>(data)?;
        if be16(p[0], p[1]) != HARDWARE_ETHERNET || be16(p[2], p[3]) != PROTOCOL_IPV4 {
            return Err(ParseError::Unsupported);
        }
        if p[4] != 6 || p[5] != 4 {
            return Err(ParseError::BadLength);
        }
        let op = match be16(p[6], p[7]) {
            1 => ArpOp::Request,
            2 => ArpOp::Reply,
            _ => return Err(ParseError::Unsupported),
        };
        let packet = Self {
            op,
            sender_mac: MacAddr([p[8], p[9], p[10], p[11], p[12], p[13]]),
            sender_ip: Ipv4Addr::new(p[14], p[15], p[16], p[17]),
            target_mac: MacAddr([p[18], p[19], p[20], p[21], p[22], p[23]]),
            target_ip: Ipv4Addr::new(p[24], p[25], p[26], p[27]),
        };
        if packet.sender_mac.is_multicast() {
            return Err(ParseError::BadAddress);
        }
        Ok((packet, PACKET_LEN))
    }

    /// Writes the ARP packet to `buf`, and returns its length in bytes.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let p = head_mut::<PACKET_LEN>(buf);
        p[..2].copy_from_slice(&HARDWARE_ETHERNET.to_be_bytes());
        p[2..4].copy_from_slice(&PROTOCOL_IPV4.to_be_bytes());
        p[4] = 6;
        p[5] = 4;
        let op: u16 = match self.op {
            ArpOp::Request => 1,
            ArpOp::Reply => 2,
        };
        p[6..8].copy_from_slice(&op.to_be_bytes());
        p[8..14].copy_from_slice(&self.sender_mac.0);
        p[14..18].copy_from_slice(&self.sender_ip.octets());
        p[18..24].copy_from_slice(&self.target_mac.0);
        p[24..].copy_from_slice(&self.target_ip.octets());
        PACKET_LEN
    }
}
