//! Selects the frames that the twin of a port receives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::addresses::Mac;

/// Rule that selects packets for the twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TwinRule {
    /// Number of the transport protocol; `None` matches any.
    pub protocol: Option<u8>,
    /// Source or destination port; `None` matches any. The source port of a TCP packet that opens a
    /// connection does not match.
    pub port: Option<u16>,
    /// Destination address; `None` matches all addresses of the router, and multicast groups.
    pub address: Option<IpAddr>,
}

/// Transport protocol and port of packets that a rule selects; `None` selects all ports.
type Selected = (u8, Option<u16>);

/// Protocols and ports that the named rules select. A BGP connection may have its port at either
/// end. The ports of BFD are those of RFC 5881 and RFC 5883.
const NAMED: [(&str, &[Selected]); 8] = [
    ("ospf", &[(89, None)]),
    ("vrrp", &[(112, None)]),
    ("pim", &[(103, None)]),
    ("bgp", &[(TCP, Some(179))]),
    ("bfd", &[(UDP, Some(3784)), (UDP, Some(3785)), (UDP, Some(4784))]),
    ("rip", &[(UDP, Some(520)), (UDP, Some(521))]),
    ("ldp", &[(UDP, Some(646)), (TCP, Some(646))]),
    ("babel", &[(UDP, Some(6696))]),
];

/// Names of the rules that apply if the user specifies no rules.
const UNLESS_GIVEN: [&str; 6] = ["ospf", "vrrp", "bgp", "bfd", "rip", "babel"];

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const HEADER_LEN: usize = 14;
const IPV6_LEN: usize = 40;

/// Receiver of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameReceiver {
    Stack,
    Twin,
    Both,
}

/// Rules that select the frames for the twin, a kernel device in which routing daemons run.
#[derive(Debug, Clone)]
pub struct TwinSelection {
    rules: Vec<TwinRule>,
    /// Ethernet address of the port.
    mac: Mac,
}

/// Error: a word is not a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a rule for packets to the kernel: expected {names}, tcp/PORT, udp/PORT, \
     ip/PROTOCOL or to/ADDRESS",
    names = NAMED.map(|(name, _)| name).join(", ")
)]
pub struct NoTwinRule(pub String);

/// Rules of one word of `--bypass`: a name such as `bgp` selects all packets of that protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwinRules(pub Vec<TwinRule>);

impl FromStr for TwinRules {
    type Err = NoTwinRule;

    fn from_str(word: &str) -> Result<Self, NoTwinRule> {
        if let Some((_, list)) = NAMED.iter().find(|(name, _)| *name == word) {
            return Ok(Self(list.iter().map(|(protocol, port)| rule(*protocol, *port)).collect()));
        }
        let unknown = || NoTwinRule(word.to_owned());
        let (kind, value) = word.split_once('/').ok_or_else(unknown)?;
        let port = || value.parse().ok().filter(|port| *port > 0).map(Some);
        let found = match kind {
            "tcp" => port().map(|port| rule(TCP, port)),
            "udp" => port().map(|port| rule(UDP, port)),
            "ip" => value.parse().ok().map(|protocol| rule(protocol, None)),
            "to" => value.parse().ok().map(|address| TwinRule {
                protocol: None,
                port: None,
                address: Some(address),
            }),
            _ => None,
        };
        found.map(|rule| Self(vec![rule])).ok_or_else(unknown)
    }
}

fn rule(protocol: u8, port: Option<u16>) -> TwinRule {
    TwinRule { protocol: Some(protocol), port, address: None }
}

/// Packet of a frame, as far as rules look.
struct TwinPacket<'a> {
    protocol: u8,
    destination: IpAddr,
    /// Transport header; empty in later fragments.
    transport: &'a [u8],
}

impl TwinPacket<'_> {
    /// Returns whether the packet is a SYN of TCP without ACK. The sender chooses its source port,
    /// which must not give access to all TCP ports of the kernel.
    fn opens_connection(&self) -> bool {
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let flags = self.transport.get(13);
        self.protocol == TCP && flags.is_some_and(|flags| flags & (SYN | ACK) == SYN)
    }
}

impl TwinSelection {
    /// Creates the selection for a port with this Ethernet address. Without rules, packets of the
    /// usual routing protocols are selected.
    pub fn new(rules: &[TwinRule], mac: Mac) -> Self {
        let mut rules = rules.to_vec();
        if rules.is_empty() {
            let named = NAMED.iter().filter(|(name, _)| UNLESS_GIVEN.contains(name));
            let all = named.flat_map(|(_, list)| list.iter());
            rules = all.map(|(protocol, port)| rule(*protocol, *port)).collect();
        }
        Self { rules, mac }
    }

    /// Returns the receiver of a frame without a VLAN tag. `own` are the addresses of the router.
    pub(crate) fn receiver(&self, frame: &[u8], own: &[IpAddr]) -> FrameReceiver {
        let Some(header) = frame.get(..HEADER_LEN) else { return FrameReceiver::Stack };
        if header[0] & 1 == 0 && header[..6] != self.mac {
            return FrameReceiver::Stack;
        }
        let rest = &frame[HEADER_LEN..];
        let parsed = match header[12..] {
            [0x08, 0x06] => return of_arp(rest),
            [0x08, 0x00] => parse_ipv4(rest),
            [0x86, 0xdd] => parse_ipv6(rest),
            _ => None,
        };
        let Some(packet) = parsed else { return FrameReceiver::Stack };
        if !is_discovery(&packet) && self.rules.iter().any(|rule| rule.selects(&packet)) {
            return match is_for_host(packet.destination, own) {
                true => FrameReceiver::Twin,
                false => FrameReceiver::Stack,
            };
        }
        if is_shared(&packet) && is_for_host(packet.destination, own) {
            return FrameReceiver::Both;
        }
        FrameReceiver::Stack
    }
}

impl TwinRule {
    fn selects(&self, packet: &TwinPacket<'_>) -> bool {
        let has_port = |port: u16| {
            let ports = packet.transport.get(..4);
            let port = port.to_be_bytes();
            let is_source = |ports: &[u8]| ports[..2] == port && !packet.opens_connection();
            ports.is_some_and(|ports| ports[2..] == port || is_source(ports))
        };
        self.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && self.address.is_none_or(|address| address == packet.destination)
            && self.port.is_none_or(has_port)
    }
}

/// Returns whether packets to `destination` are for the router itself: to its own addresses,
/// link-local addresses, and multicast or broadcast addresses.
fn is_for_host(destination: IpAddr, own: &[IpAddr]) -> bool {
    let is_of_link = match destination {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        // The stack and the kernel have different link-local addresses.
        IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
    };
    is_of_link || own.contains(&destination)
}

/// Returns the receiver of an ARP packet. The stack answers requests. Stack and kernel both learn
/// from replies, because both send requests. Announcements (RFC 5227) also go to both, because they
/// may have a new Ethernet address.
fn of_arp(packet: &[u8]) -> FrameReceiver {
    const REPLY: [u8; 2] = [0, 2];
    let is_reply = packet.get(6..8) == Some(&REPLY);
    let (sender, target) = (packet.get(14..18), packet.get(24..28));
    match is_reply || target.is_some() && sender == target {
        true => FrameReceiver::Both,
        false => FrameReceiver::Stack,
    }
}

/// Returns whether both the stack and the kernel need a packet that no rule selects. Both need
/// errors about their packets, replies of neighbours, and queries for multicast group members.
fn is_shared(packet: &TwinPacket<'_>) -> bool {
    let kind = packet.transport.first().copied();
    match packet.protocol {
        // Destination unreachable, time exceeded, parameter problem (RFC 792).
        ICMP => matches!(kind, Some(3 | 11 | 12)),
        IGMP => true,
        ICMP6 => match kind {
            // Errors (RFC 4443), queries of MLD (RFC 2710) and neighbour advertisements (RFC 4861).
            Some(1..=4 | 130 | 136) => true,
            // A solicitation for a link-local address, which may be the kernel's.
            Some(135) => {
                packet.transport.get(8..10).is_some_and(|it| it[0] == 0xfe && it[1] & 0xc0 == 0x80)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Returns whether a packet belongs to neighbour discovery (RFC 4861), without which the stack
/// would reach no neighbour.
fn is_discovery(packet: &TwinPacket<'_>) -> bool {
    packet.protocol == ICMP6 && matches!(packet.transport.first(), Some(133..=137))
}

fn parse_ipv4(packet: &[u8]) -> Option<TwinPacket<'_>> {
    let header = packet.get(..20)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let destination: [u8; 4] = header[16..20].try_into().ok()?;
    let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    let transport = packet.get(header_len..).filter(|_| !is_later_fragment).unwrap_or_default();
    let destination = Ipv4Addr::from(destination).into();
    Some(TwinPacket { protocol: header[9], destination, transport })
}

/// Parses an IPv6 packet. Hop-by-hop options are skipped, because MLD queries have them. Other
/// extension headers are not skipped.
fn parse_ipv6(packet: &[u8]) -> Option<TwinPacket<'_>> {
    let header = packet.get(..IPV6_LEN)?;
    let destination: [u8; 16] = header[24..40].try_into().ok()?;
    let (mut protocol, mut transport) = (header[6], &packet[IPV6_LEN..]);
    if protocol == HOP_BY_HOP {
        let &[next, len, ..] = transport else { return None };
        (protocol, transport) = (next, transport.get(usize::from(len) * 8 + 8..)?);
    }
    Some(TwinPacket { protocol, destination: Ipv6Addr::from(destination).into(), transport })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OWN: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

    /// Returns a frame to `to` with this transport header.
    fn frame(to: &str, protocol: u8, transport: &[u8]) -> Vec<u8> {
        let to: IpAddr = to.parse().expect("an address");
        let mut frame = MAC.to_vec();
        frame.extend([2, 0, 0, 0, 0, 9]);
        match to {
            IpAddr::V4(v4) => {
                frame.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0, 0, 1, protocol, 0, 0]);
                frame.extend([192, 0, 2, 1]);
                frame.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 1]);
                frame.extend([0; 16]);
                frame.extend(v6.octets());
            }
        }
        frame.extend(transport);
        frame
    }

    fn ports(source: u16, destination: u16) -> Vec<u8> {
        [source.to_be_bytes(), destination.to_be_bytes()].concat()
    }

    fn receiver(rules: &[&str], frame: &[u8]) -> FrameReceiver {
        let parse = |word: &&str| word.parse::<TwinRules>().expect("a rule").0;
        let rules: Vec<_> = rules.iter().flat_map(parse).collect();
        let own = OWN.map(|own| own.parse().expect("an address"));
        TwinSelection::new(&rules, MAC).receiver(frame, &own)
    }

    #[test]
    fn routing_protocols_of_the_router_go_to_the_twin() {
        let selected = [
            frame("192.0.2.2", TCP, &ports(179, 40_000)),
            frame("192.0.2.2", TCP, &ports(40_000, 179)),
            frame("2001:db8::2", TCP, &ports(40_000, 179)),
            frame("fe80::7", TCP, &ports(40_000, 179)),
            frame("224.0.0.5", 89, &[]),
            frame("192.0.2.2", 89, &[]),
            frame("ff02::5", 89, &[]),
            frame("224.0.0.18", 112, &[]),
            frame("192.0.2.2", UDP, &ports(49_152, 3784)),
            frame("224.0.0.9", UDP, &ports(520, 520)),
        ];
        for frame in selected {
            assert_eq!(receiver(&[], &frame), FrameReceiver::Twin, "{frame:?}");
        }
        let passed_on = [
            // Packets of connections between other hosts.
            frame("198.51.100.1", TCP, &ports(40_000, 179)),
            frame("2001:db8:9::1", TCP, &ports(179, 40_000)),
            frame("192.0.2.2", TCP, &ports(40_000, 22)),
            frame("192.0.2.2", UDP, &ports(40_000, 179)),
            frame("192.0.2.2", ICMP, &[8, 0]),
            frame("2001:db8::2", ICMP6, &[128, 0]),
            vec![0; 13],
            vec![0; 14],
        ];
        for frame in passed_on {
            assert_eq!(receiver(&[], &frame), FrameReceiver::Stack, "{frame:?}");
        }
        let mut to_other_mac = frame("224.0.0.5", 89, &[]);
        to_other_mac[..6].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
        assert_eq!(receiver(&[], &to_other_mac), FrameReceiver::Stack);
    }

    #[test]
    fn source_ports_open_no_connections_to_other_ports() {
        let segment = |source, destination, flags: u8| {
            let header = [&ports(source, destination)[..], &[0; 9], &[flags], &[0; 6]].concat();
            receiver(&[], &frame("192.0.2.2", TCP, &header))
        };
        let (syn, ack) = (2, 16);
        assert_eq!(segment(179, 22, syn), FrameReceiver::Stack);
        assert_eq!(segment(40_000, 179, syn), FrameReceiver::Twin);
        assert_eq!(segment(179, 40_000, syn | ack), FrameReceiver::Twin);
        assert_eq!(segment(179, 40_000, ack), FrameReceiver::Twin);
    }

    #[test]
    fn rules_replace_the_usual_ones() {
        let ssh = frame("192.0.2.2", TCP, &ports(40_000, 22));
        assert_eq!(receiver(&["tcp/22"], &ssh), FrameReceiver::Twin);
        assert_eq!(receiver(&["tcp/23", "udp/22", "ip/47"], &ssh), FrameReceiver::Stack);
        assert_eq!(receiver(&["ip/6"], &ssh), FrameReceiver::Twin);
        assert_eq!(receiver(&["to/192.0.2.2"], &ssh), FrameReceiver::Twin);
        assert_eq!(receiver(&["to/192.0.2.3"], &ssh), FrameReceiver::Stack);
        assert_eq!(receiver(&["tcp/22"], &frame("224.0.0.5", 89, &[])), FrameReceiver::Stack);
        for wrong in ["", "bpg", "tcp/0", "tcp/x", "ip/256", "to/x", "sctp/5"] {
            let error = wrong.parse::<TwinRules>().expect_err(wrong).to_string();
            assert!(error.contains("expected ospf, vrrp"), "{error}");
        }
    }

    #[test]
    fn no_rule_takes_neighbor_discovery_from_the_stack() {
        for rule in ["ip/58", "to/2001:db8::2"] {
            let to_own = |kind| receiver(&[rule], &frame("2001:db8::2", ICMP6, &[kind, 0]));
            assert_eq!(to_own(136), FrameReceiver::Both, "{rule}");
            assert_eq!(to_own(135), FrameReceiver::Stack, "{rule}");
            assert_eq!(to_own(128), FrameReceiver::Twin, "{rule}");
        }
    }

    #[test]
    fn ports_of_later_fragments_are_unknown() {
        let mut later = frame("192.0.2.2", TCP, &ports(40_000, 179));
        later[HEADER_LEN + 7] = 1;
        assert_eq!(receiver(&[], &later), FrameReceiver::Stack);
    }

    #[test]
    fn replies_of_neighbors_and_errors_go_to_both() {
        let arp = |operation| {
            let mut frame = [MAC, [2, 0, 0, 0, 0, 9]].concat();
            frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation]);
            frame
        };
        assert_eq!(receiver(&[], &arp(1)), FrameReceiver::Stack);
        assert_eq!(receiver(&[], &arp(2)), FrameReceiver::Both);
        let request = |target: [u8; 4]| {
            let sender = [192, 0, 2, 9];
            receiver(&[], &[&arp(1)[..], &[2; 6], &sender, &[0; 6], &target].concat())
        };
        assert_eq!(request([192, 0, 2, 9]), FrameReceiver::Both, "an announcement");
        assert_eq!(request([192, 0, 2, 2]), FrameReceiver::Stack);
        let solicitation = |target: [u8; 2]| {
            let body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
            frame("ff02::1:ff00:7", ICMP6, &body)
        };
        assert_eq!(receiver(&[], &solicitation([0xfe, 0x80])), FrameReceiver::Both);
        assert_eq!(receiver(&[], &solicitation([0x20, 0x01])), FrameReceiver::Stack);
        let query = [ICMP6, 0, 5, 2, 0, 0, 0, 0, 130, 0];
        for frame in [
            frame("2001:db8::2", ICMP6, &[136, 0]),
            frame("2001:db8::2", ICMP6, &[2, 0]),
            frame("ff02::1", HOP_BY_HOP, &query),
            frame("192.0.2.2", ICMP, &[3, 4]),
            frame("224.0.0.1", IGMP, &[0x11, 0]),
        ] {
            assert_eq!(receiver(&[], &frame), FrameReceiver::Both, "{frame:?}");
        }
        assert_eq!(receiver(&[], &frame("198.51.100.1", ICMP, &[3, 4])), FrameReceiver::Stack);
    }
}
