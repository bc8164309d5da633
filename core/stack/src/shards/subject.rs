//! Classification of a packet, as far as needed to find the shard to which it belongs. The headers
//! are not validated yet. Malformed packets belong to no shard; the shard on which they arrive
//! drops them.

use std::net::IpAddr;

use towpath_pool::LinkType;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::{IpProtocol, icmpv4, icmpv6, ipv4, ipv6, ipv6_ext, mld, ndp};

use crate::net::{IcmpError, Local, Received, quoted_flow};
use crate::tables::flow::Flow;

/// Flow or kind of a packet, which determines the shard (stack) that handles it. The local end of a
/// flow is the end on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A TCP segment, or an ICMP error about one.
    Tcp(Flow),
    /// A UDP datagram, or an ICMP error about one.
    Udp(Flow),
    /// An ICMP echo reply, or an ICMP error about an echo request. The identifier is stored as the
    /// local port.
    Echo(Flow),
    /// A fragment of an IP packet. The ports may be in another fragment.
    Fragment { src: IpAddr, dst: IpAddr },
    /// A packet about neighbours, routers or multicast groups, which concerns the host as a whole.
    Host,
    /// A packet that any shard (stack) can handle.
    Any,
}

impl Subject {
    /// Classifies a frame or IP packet from a device.
    #[inline(always)]
    pub fn of_frame(link: LinkType, frame: &[u8]) -> Self {
        if link == LinkType::Ip {
            return Self::of_ip(frame);
        }
        match ethernet::Header::parse(frame) {
            Ok((header, at)) => match header.ethertype {
                EtherType::ARP => Self::Host,
                EtherType::IPV4 | EtherType::IPV6 => Self::of_ip(&frame[at..]),
                _ => Self::Any,
            },
            Err(_) => Self::Any,
        }
    }

    /// Returns the destination address of an IP packet from a device; `None` for other packets.
    pub fn destination(link: LinkType, frame: &[u8]) -> Option<IpAddr> {
        let packet = match link {
            LinkType::Ip => frame,
            LinkType::Ethernet => match ethernet::Header::parse(frame) {
                Ok((header, at)) if is_ip(header.ethertype) => frame.get(at..)?,
                _ => return None,
            },
        };
        match packet.first()? >> 4 {
            4 => Some(ipv4::Header::parse_quoted(packet).ok()?.0.dst.into()),
            6 => Some(ipv6::Header::parse_quoted(packet).ok()?.0.dst.into()),
            _ => None,
        }
    }

    /// Classifies an IP packet. Its payload may be truncated.
    #[inline(always)]
    pub fn of_ip(packet: &[u8]) -> Self {
        let read = match packet.first().map(|first| first >> 4) {
            Some(4) => ipv4_transport(packet),
            Some(6) => ipv6_transport(packet),
            _ => None,
        };
        match read {
            Some(TransportStart { src, dst, is_fragment: true, .. }) => Self::Fragment { src, dst },
            Some(TransportStart { src, dst, protocol, at, .. }) => {
                Self::of_transport(src, dst, protocol, packet.get(at..).unwrap_or_default())
            }
            None => Self::Any,
        }
    }

    /// Classifies a packet or report that the IP layer has processed.
    pub fn of_received(received: &Received) -> Self {
        match received {
            Received::Local(Local { packet, src, dst, protocol, offset, .. }) => {
                let bytes = packet.linear().get(*offset..).unwrap_or_default();
                Self::of_transport(*src, *dst, IpProtocol(*protocol), bytes)
            }
            Received::IcmpError(IcmpError { src, dst, protocol, src_port, dst_port, .. }) => {
                let (local, remote) = (*src, *dst);
                let (local_port, remote_port) = (*src_port, *dst_port);
                let flow = Flow { local, remote, local_port, remote_port };
                Self::of_flow(IpProtocol(*protocol), flow)
            }
            Received::EchoReply(echo) => {
                let (local, remote) = (echo.local.dst, echo.local.src);
                Self::Echo(Flow { local, remote, local_port: echo.ident, remote_port: 0 })
            }
            Received::EchoRequest(_) => Self::Any,
        }
    }

    #[inline(always)]
    fn of_transport(src: IpAddr, dst: IpAddr, protocol: IpProtocol, bytes: &[u8]) -> Self {
        let Some([a, b, c, d, e, f, ..]) = bytes.first_chunk::<8>() else { return Self::Any };
        let (local_port, remote_port) =
            (u16::from_be_bytes([*c, *d]), u16::from_be_bytes([*a, *b]));
        let flow = Flow { local: dst, remote: src, local_port, remote_port };
        let reply = Flow { local_port: u16::from_be_bytes([*e, *f]), remote_port: 0, ..flow };
        match protocol {
            IpProtocol::TCP => Self::Tcp(flow),
            IpProtocol::UDP => Self::Udp(flow),
            IpProtocol::IGMP => Self::Host,
            IpProtocol::ICMP => match *a {
                icmpv4::ECHO_REPLY => Self::Echo(reply),
                icmpv4::DEST_UNREACHABLE | icmpv4::TIME_EXCEEDED | icmpv4::PARAM_PROBLEM => {
                    Self::of_quoted(bytes)
                }
                _ => Self::Any,
            },
            IpProtocol::ICMPV6 => match *a {
                icmpv6::ECHO_REPLY => Self::Echo(reply),
                icmpv6::DEST_UNREACHABLE..=icmpv6::PARAM_PROBLEM => Self::of_quoted(bytes),
                ndp::ROUTER_SOLICIT..=ndp::REDIRECT => Self::Host,
                mld::QUERY..=mld::DONE_V1 | mld::REPORT_V2 => Self::Host,
                _ => Self::Any,
            },
            _ => Self::Any,
        }
    }

    /// Classifies the packet quoted by an ICMP error. The quoted packet was sent by this host.
    fn of_quoted(message: &[u8]) -> Self {
        let quoted = message.get(icmpv4::HEADER_LEN..).and_then(quoted_flow);
        quoted.map_or(Self::Any, |(protocol, flow)| Self::of_flow(protocol, flow))
    }

    fn of_flow(protocol: IpProtocol, flow: Flow) -> Self {
        match protocol {
            IpProtocol::TCP => Self::Tcp(flow),
            IpProtocol::UDP => Self::Udp(flow),
            IpProtocol::ICMP | IpProtocol::ICMPV6 => Self::Echo(flow),
            _ => Self::Any,
        }
    }
}

fn is_ip(ethertype: EtherType) -> bool {
    matches!(ethertype, EtherType::IPV4 | EtherType::IPV6)
}

/// Addresses, protocol and offset of the transport header of a packet.
struct TransportStart {
    src: IpAddr,
    dst: IpAddr,
    protocol: IpProtocol,
    at: usize,
    is_fragment: bool,
}

#[inline(always)]
fn ipv4_transport(packet: &[u8]) -> Option<TransportStart> {
    let (header, at) = ipv4::Header::parse_quoted(packet).ok()?;
    let (src, dst, protocol) = (header.src.into(), header.dst.into(), header.protocol);
    Some(TransportStart { src, dst, protocol, at, is_fragment: header.is_fragment() })
}

fn ipv6_transport(packet: &[u8]) -> Option<TransportStart> {
    let (header, _) = ipv6::Header::parse_quoted(packet).ok()?;
    let chain = ipv6_ext::walk(packet, &header).ok()?;
    let is_fragment = chain.fragment.is_some_and(|fragment| !fragment.is_atomic());
    let (src, dst) = (header.src.into(), header.dst.into());
    Some(TransportStart { src, dst, protocol: chain.upper, at: chain.upper_at, is_fragment })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip_packet(protocol: IpProtocol, fragment_offset: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; ipv4::HEADER_LEN];
        packet.extend_from_slice(body);
        let header = ipv4::Header {
            tos: 0,
            total_len: packet.len() as u16,
            ident: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset,
            ttl: 64,
            protocol,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            options: ipv4::Options::EMPTY,
        };
        header.emit(&mut packet);
        packet
    }

    fn flow(local_port: u16, remote_port: u16) -> Flow {
        let (local, remote) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        Flow { local, remote, local_port, remote_port }
    }

    const PORTS: [u8; 8] = [0, 7, 0, 80, 0, 0, 0, 9];

    #[test]
    fn packets_are_about_what_their_headers_say() {
        let of = |protocol, body: &[u8]| Subject::of_ip(&ip_packet(protocol, 0, body));
        assert_eq!(of(IpProtocol::TCP, &PORTS), Subject::Tcp(flow(80, 7)));
        assert_eq!(of(IpProtocol::UDP, &PORTS), Subject::Udp(flow(80, 7)));
        assert_eq!(of(IpProtocol::ICMP, &[0, 0, 1, 1, 0, 9, 0, 1]), Subject::Echo(flow(9, 0)));
        assert_eq!(of(IpProtocol::ICMP, &[8, 0, 1, 1, 0, 9, 0, 1]), Subject::Any);
        assert_eq!(of(IpProtocol::IGMP, &PORTS), Subject::Host);
        assert_eq!(of(IpProtocol::TCP, &PORTS[..7]), Subject::Any, "cut short");
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let piece = ip_packet(IpProtocol::UDP, 8, &PORTS);
        assert_eq!(Subject::of_ip(&piece), Subject::Fragment { src, dst });
    }

    #[test]
    fn frames_are_about_what_is_in_them() {
        use towpath_wire::MacAddr;
        let frame = |ethertype, payload: &[u8]| {
            let mut frame = vec![0; ethernet::HEADER_LEN];
            let (dst, src) = (MacAddr([2; 6]), MacAddr([4; 6]));
            ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut frame);
            Subject::of_frame(LinkType::Ethernet, &[&frame, payload].concat())
        };
        let packet = ip_packet(IpProtocol::TCP, 0, &PORTS);
        assert_eq!(frame(EtherType::IPV4, &packet), Subject::Tcp(flow(80, 7)));
        assert_eq!(frame(EtherType::ARP, &[0; 28]), Subject::Host);
        assert_eq!(frame(EtherType(0x88cc), &packet), Subject::Any);
        assert_eq!(Subject::of_frame(LinkType::Ethernet, &packet[..9]), Subject::Any);
    }

    /// The quoted packet was sent by this host, whichever host reports the error.
    #[test]
    fn an_error_is_about_what_it_quotes() {
        for (protocol, body, subject) in [
            (IpProtocol::TCP, PORTS, Subject::Tcp as fn(Flow) -> Subject),
            (IpProtocol::UDP, PORTS, Subject::Udp),
            (IpProtocol::ICMP, [8, 0, 1, 1, 0, 7, 0, 1], Subject::Echo),
        ] {
            let (local, remote) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let remote_port = if protocol == IpProtocol::ICMP { 0 } else { 80 };
            let ours = Flow { local, remote, local_port: 7, remote_port };
            let error = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &ip_packet(protocol, 0, &body)].concat();
            let report = ip_packet(IpProtocol::ICMP, 0, &error);
            assert_eq!(Subject::of_ip(&report), subject(ours));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_about_something(mut bytes: Vec<u8>, version in 0..16u8) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | version << 4;
            }
            Subject::of_ip(&bytes);
            Subject::of_frame(LinkType::Ethernet, &bytes);
        }
    }
}
