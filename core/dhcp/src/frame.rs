//! Ethernet frames with DHCP messages and ARP packets.

use core::net::Ipv4Addr;

use towpath_wire::arp::{ArpOp, ArpPacket};
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{IpProtocol, MacAddr, checksum, ipv4, udp};

/// UDP port of DHCP servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of DHCP clients.
pub const CLIENT_PORT: u16 = 68;

/// Time to live of the IPv4 packets that DHCP clients and servers send.
const TTL: u8 = 64;

/// A received frame that a DHCP client or server handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DhcpFrame<'a> {
    /// An ARP packet, which may show that an address is in use.
    Arp(ArpPacket),
    /// A UDP datagram, whose payload may be a DHCP message.
    Datagram(DhcpDatagram<'a>),
}

/// A UDP datagram in an Ethernet frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpDatagram<'a> {
    /// Addresses and port of the sender.
    pub from: LinkEndpoint,
    /// Addresses and port of the receiver.
    pub to: LinkEndpoint,
    /// Payload of the UDP datagram.
    pub payload: &'a [u8],
}

/// Link address, IP address and UDP port of a datagram's sender or receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEndpoint {
    /// Ethernet address.
    pub mac: MacAddr,
    /// IP address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub port: u16,
}

impl LinkEndpoint {
    /// Returns an endpoint with the broadcast addresses of Ethernet and IPv4, and with the given
    /// port.
    pub const fn broadcast(port: u16) -> Self {
        Self { mac: MacAddr::BROADCAST, ip: Ipv4Addr::BROADCAST, port }
    }
}

/// Returns whether a frame is an ARP packet, or an unfragmented UDP datagram over IPv4 to `port`.
/// Called for each packet that an interface with a DHCP client or server receives, so it must be
/// fast.
#[inline]
pub fn concerns(frame: &[u8], port: u16) -> bool {
    const IP: usize = ethernet::HEADER_LEN;
    match frame.first_chunk::<{ IP + ipv4::HEADER_LEN }>() {
        Some(head) if head[12..14] == [8, 0] => {
            let is_whole = head[IP + 6] & 0x3f == 0 && head[IP + 7] == 0;
            let is_udp = head[IP + 9] == IpProtocol::UDP.0;
            let at = IP + usize::from(head[IP] & 0x0f) * 4 + 2;
            is_udp && is_whole && frame.get(at..at + 2) == Some(&port.to_be_bytes())
        }
        Some(head) => head[12..14] == [8, 6],
        None => false,
    }
}

/// Parses a frame. Returns `None` if it is invalid, or is neither ARP nor a UDP datagram over IPv4.
///
/// If `is_verified` is true, the UDP checksum is not checked. Packets from this host may have none
/// yet, because the sender leaves it to the network card.
pub fn parse(frame: &[u8], is_verified: bool) -> Option<DhcpFrame<'_>> {
    let (link, at) = ethernet::Header::parse(frame).ok()?;
    if link.vlan.is_some() {
        return None;
    }
    let packet = frame.get(at..)?;
    if link.ethertype == EtherType::ARP {
        return ArpPacket::parse(packet).ok().map(|(packet, _)| DhcpFrame::Arp(packet));
    }
    if link.ethertype != EtherType::IPV4 {
        return None;
    }
    let (ip, range) = ipv4::Header::parse(packet).ok()?;
    let is_intact = ipv4::checksum_ok(packet.get(..ip.header_len())?);
    if !is_intact || ip.is_fragment() || ip.protocol != IpProtocol::UDP {
        return None;
    }
    let segment = packet.get(range)?;
    let (header, payload) = udp::Header::parse(segment).ok()?;
    let datagram = segment.get(..payload.end)?;
    let pseudo = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, header.length);
    if !is_verified && !udp::checksum_ok_v4(datagram, pseudo) {
        return None;
    }
    Some(DhcpFrame::Datagram(DhcpDatagram {
        from: LinkEndpoint { mac: link.src, ip: ip.src, port: header.src_port },
        to: LinkEndpoint { mac: link.dst, ip: ip.dst, port: header.dst_port },
        payload: segment.get(payload)?,
    }))
}

/// Returns an Ethernet frame that contains a UDP datagram. `payload` must fit in one datagram.
pub fn datagram(from: &LinkEndpoint, to: &LinkEndpoint, payload: &[u8]) -> Vec<u8> {
    let udp_len = udp::HEADER_LEN + payload.len();
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp_len];
    let link =
        ethernet::Header { dst: to.mac, src: from.mac, vlan: None, ethertype: EtherType::IPV4 };
    let ip = ipv4::Header {
        tos: 0,
        total_len: (ipv4::HEADER_LEN + udp_len) as u16,
        ident: 0,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl: TTL,
        protocol: IpProtocol::UDP,
        src: from.ip,
        dst: to.ip,
        options: ipv4::Options::EMPTY,
    };
    let mut header =
        udp::Header { src_port: from.port, dst_port: to.port, length: udp_len as u16, checksum: 0 };
    let pseudo = checksum::pseudo_v4(from.ip, to.ip, IpProtocol::UDP, header.length);
    header.checksum = header.checksum_for(pseudo, checksum::sum(payload, 0));
    let at = link.emit(&mut frame);
    let at = at + ip.emit(&mut frame[at..]);
    let at = at + header.emit(&mut frame[at..]);
    frame[at..].copy_from_slice(payload);
    frame
}

/// Returns a broadcast ARP probe (RFC 5227) for an address.
//= https://www.rfc-editor.org/rfc/rfc2131#section-4.4.1
//# When broadcasting an ARP request for the suggested address,
//# the client must fill in its own hardware address as the sender's
//# hardware address, and 0 as the sender's IP address, to avoid
//# confusing ARP caches in other hosts on the same subnet.
pub fn arp_probe(sender: MacAddr, target: Ipv4Addr) -> Vec<u8> {
    let (dst, src) = (MacAddr::BROADCAST, sender);
    let link = ethernet::Header { dst, src, vlan: None, ethertype: EtherType::ARP };
    let probe = ArpPacket {
        op: ArpOp::Request,
        sender_mac: sender,
        sender_ip: Ipv4Addr::UNSPECIFIED,
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: target,
    };
    let mut frame = vec![0; ethernet::HEADER_LEN + towpath_wire::arp::PACKET_LEN];
    let at = link.emit(&mut frame);
    probe.emit(&mut frame[at..]);
    frame
}

/// Returns whether a packet shows that another host than `own` uses `address`, or is about to.
//= https://www.rfc-editor.org/rfc/rfc5227#section-2.1.1
//# If during this period, from the beginning of the probing process
//# until ANNOUNCE_WAIT seconds after the last probe packet is sent, the
//# host receives any ARP packet (Request *or* Reply) on the interface
//# where the probe is being performed, where the packet's 'sender IP
//# address' is the address being probed for, then the host MUST treat
//# this address as being in use by some other host, and should indicate
//# to the configuring agent (human operator, DHCP server, etc.) that the
//# proposed address is not acceptable.
pub(crate) fn is_conflict(packet: &ArpPacket, own: MacAddr, address: Ipv4Addr) -> bool {
    let uses = packet.sender_ip == address;
    let probes = packet.sender_ip.is_unspecified() && packet.target_ip == address;
    packet.sender_mac != own && (uses || probes && packet.op == ArpOp::Request)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> Vec<u8> {
        let from = LinkEndpoint {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            ip: Ipv4Addr::new(192, 0, 2, 1),
            port: SERVER_PORT,
        };
        datagram(&from, &LinkEndpoint::broadcast(CLIENT_PORT), b"some bytes")
    }

    #[test]
    fn parse_returns_emitted_datagram() {
        let frame = frame();
        assert!(concerns(&frame, CLIENT_PORT) && !concerns(&frame, SERVER_PORT));
        let Some(DhcpFrame::Datagram(found)) = parse(&frame, false) else { panic!("a datagram") };
        assert_eq!((found.payload, found.from.port), (&b"some bytes"[..], SERVER_PORT));
        assert_eq!(found.to, LinkEndpoint::broadcast(CLIENT_PORT));
    }

    #[test]
    fn wrong_checksums_are_refused_unless_verified() {
        let mut frame = frame();
        *frame.last_mut().expect("bytes") ^= 1;
        assert_eq!(parse(&frame, false), None);
        assert!(parse(&frame, true).is_some());
        frame[ethernet::HEADER_LEN + 8] ^= 1;
        assert_eq!(parse(&frame, true), None, "the checksum of the IP header");
    }

    #[test]
    fn fragments_and_tagged_frames_do_not_concern() {
        let mut fragment = frame();
        fragment[ethernet::HEADER_LEN + 7] = 1;
        assert!(!concerns(&fragment, CLIENT_PORT));
        let mut tagged = frame();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert!(!concerns(&tagged, CLIENT_PORT));
        assert_eq!(parse(&tagged, true), None);
    }

    #[test]
    fn probes_of_own_are_no_conflict() {
        let (own, address) = (MacAddr([2; 6]), Ipv4Addr::new(10, 0, 0, 9));
        let read = |frame: &[u8]| match parse(frame, false) {
            Some(DhcpFrame::Arp(packet)) => packet,
            found => panic!("{found:?}"),
        };
        let probe = read(&arp_probe(own, address));
        assert!(!is_conflict(&probe, own, address));
        assert!(is_conflict(&probe, MacAddr([4; 6]), address));
        let reply = ArpPacket { op: ArpOp::Reply, sender_ip: address, ..probe };
        assert!(is_conflict(&reply, MacAddr([4; 6]), address));
        assert!(!is_conflict(&reply, MacAddr([4; 6]), Ipv4Addr::new(10, 0, 0, 8)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            is_ip in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if is_ip && bytes.len() > 24 {
                bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
                bytes[23] = 17;
            }
            concerns(&bytes, CLIENT_PORT);
            parse(&bytes, true);
        }
    }
}
