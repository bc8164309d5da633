//! Creates frames of another host on the link, and parses the frames that the hosts sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::ndp::{Envelope, Message, PrefixInfo};
use towpath_wire::{IpProtocol, MacAddr, addr, arp, icmpv6, ipv6};

use super::hosts::{Hosts, mac};

/// Another host on the link.
pub const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x99]);

pub fn frame(dst: MacAddr, src: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// Creates a gratuitous ARP reply: `ip` is at MAC address `at`.
pub fn gratuitous(ip: &str, at: MacAddr) -> Vec<u8> {
    reply(ip, at, (MacAddr::BROADCAST, ip))
}

/// Creates an ARP reply to host 0: `ip` is at MAC address `at`.
pub fn answer(ip: &str, at: MacAddr) -> Vec<u8> {
    reply(ip, at, (mac(0), "10.0.0.1"))
}

fn reply(ip: &str, at: MacAddr, (target_mac, target): (MacAddr, &str)) -> Vec<u8> {
    let [ip, target]: [Ipv4Addr; 2] = [ip, target].map(|ip| ip.parse().expect("an address"));
    let message = arp::ArpPacket {
        op: arp::ArpOp::Reply,
        sender_mac: at,
        sender_ip: ip,
        target_mac,
        target_ip: target,
    };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    frame(target_mac, at, EtherType::ARP, &bytes)
}

/// Creates a neighbour discovery message to a group, with options.
pub fn discovery(src: &str, dst: Ipv6Addr, message: &Message, options: &[PrefixInfo]) -> Vec<u8> {
    let src: Ipv6Addr = src.parse().expect("an address");
    let mut bytes = vec![0; 200];
    let mut len = message.emit(&mut bytes);
    for option in options {
        len += option.emit(&mut bytes[len..]);
    }
    bytes.truncate(len);
    icmpv6::fill_checksum(&mut bytes, src, dst);
    let mut packet = vec![0; ipv6::HEADER_LEN];
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
        next_header: IpProtocol::ICMPV6,
        hop_limit: 255,
        src,
        dst,
    };
    header.emit(&mut packet);
    packet.extend(bytes);
    frame(MacAddr::from_multicast_v6(dst), STRANGER, EtherType::IPV6, &packet)
}

/// Creates the probe of another host that wants to use an address of host 0.
pub fn probe_for(target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().expect("an address");
    let message = Message::NeighborSolicit { target, source_ll: None };
    discovery("::", addr::solicited_node(target), &message, &[])
}

/// Returns the destinations of host 0's solicitations for `target` since the last call.
pub fn questions(w: &mut Hosts, target: &str) -> Vec<MacAddr> {
    let target: IpAddr = target.parse().expect("an address");
    let frames = w.take_seen();
    let asked = frames.iter().filter_map(|bytes| {
        let (header, at) = ethernet::Header::parse(bytes).ok()?;
        let is_question = match target {
            IpAddr::V4(target) => {
                let (message, _) = arp::ArpPacket::parse(&bytes[at..]).ok()?;
                message.op == arp::ArpOp::Request
                    && message.target_ip == target
                    && message.sender_ip != target
            }
            IpAddr::V6(wanted) => {
                let (header, body) = ipv6::Header::parse(&bytes[at..]).ok()?;
                let ipv6::Header { src, dst, hop_limit, .. } = header;
                let envelope = Envelope { src, dst, hop_limit };
                let (message, _) = Message::parse(&bytes[at..][body], &envelope).ok()?;
                let is_probe = src.is_unspecified();
                matches!(message, Message::NeighborSolicit { target, .. }
                    if target == wanted && !is_probe)
            }
        };
        (header.src == mac(0) && is_question).then_some(header.dst)
    });
    asked.collect()
}

/// Returns the destinations of host 0's IPv4 UDP packets since the last call.
pub fn receivers(w: &mut Hosts) -> Vec<MacAddr> {
    let frames = w.take_seen();
    let udp = frames.iter().filter_map(|bytes| {
        let (header, at) = ethernet::Header::parse(bytes).ok()?;
        let is_udp =
            header.ethertype == EtherType::IPV4 && bytes.get(at + 9) == Some(&IpProtocol::UDP.0);
        (header.src == mac(0) && is_udp).then_some(header.dst)
    });
    udp.collect()
}
