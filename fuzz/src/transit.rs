//! Fuzzes a router whose received packets have any offload metadata, between ports with and without
//! offloads.
//!
//! Invariants of each sent packet:
//!
//! - Its IP length and IPv4 header checksum are correct, and it fits the link.
//! - Its metadata request only offloads of the port, at the offsets of its headers.
//! - No rule would drop the packet as sent on the wire, with its checksum completed.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use towpath_direct::{Node, NodeConfig};
use towpath_filter::{RuleList, Rules};
use towpath_pool::{
    Batch, Checksum, LinkType, Meta, Offloads, Packet, Pool, Port, Protocol, Segmentation,
};
use towpath_qdisc::QueuedPacket;
use towpath_stack::net::{Change, Forwarding, How, InterfaceConfig, NetConfig};
use towpath_stack::{IfaceId, Instant, StackConfig};
use towpath_wire::{MacAddr, checksum};

use crate::input::Input;

/// Maximum packets of a case; more would only repeat states.
const PACKETS_MAX: usize = 64;
const ETHERNET_LEN: usize = 14;
const MTU: usize = 1500;
/// Maximum payload of a packet in bytes, without headers.
const PAYLOAD_MAX: usize = 5000;
/// TCP and UDP port that the rules drop.
const DROPPED_PORT: u16 = 22;
const RULES: &str = "add id 1 proto tcp dport 22 action drop\nadd id 2 proto udp dport 22 action \
                     drop\nadd id 3 proto tcp flags syn,!ack dport 23 action reject";

/// Offloads and link of each port.
const PORTS: [(LinkType, Offloads); 4] = [
    (
        LinkType::Ethernet,
        Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true },
    ),
    (
        LinkType::Ethernet,
        Offloads { checksum: false, tcp_segmentation: false, udp_segmentation: false },
    ),
    (LinkType::Ip, Offloads { checksum: true, tcp_segmentation: false, udp_segmentation: false }),
    (LinkType::Ip, Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: false }),
];

/// Runs a case.
///
/// # Panics
/// If the router sends an invalid packet.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut case = Case::new(input.bool());
    for _ in 0..PACKETS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
    }
}

/// Packets of a port: received ones for the router, and sent ones.
#[derive(Default)]
struct Wire {
    received: Batch,
    sent: Batch,
}

struct End(usize, Rc<RefCell<Wire>>);

impl Port for End {
    fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let mut wire = self.1.borrow_mut();
        let count = wire.received.len().min(max);
        out.extend(wire.received.drain(..count));
        count
    }

    fn submit(&mut self, _now_ns: u64, _pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        self.1.borrow_mut().sent.append(batch);
        count
    }

    fn offloads(&self) -> Offloads {
        PORTS[self.0].1
    }

    fn link_type(&self) -> LinkType {
        PORTS[self.0].0
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Case {
    node: Node<dyn Port>,
    wires: Vec<Rc<RefCell<Wire>>>,
    has_rules: bool,
    now: Instant,
}

/// Returns the address of the host behind a port.
fn host(port: usize, is_v6: bool) -> IpAddr {
    match is_v6 {
        false => Ipv4Addr::new(10, port as u8 + 1, 0, 2).into(),
        true => Ipv6Addr::new(0xfd00, 0, 0, port as u16 + 1, 0, 0, 0, 2).into(),
    }
}

fn mac(port: usize, is_router: bool) -> MacAddr {
    MacAddr([2, 0, 0, u8::from(is_router), 0, port as u8 + 1])
}

impl Case {
    fn new(has_rules: bool) -> Self {
        let net = NetConfig { forwarding: Some(Forwarding::default()), ..NetConfig::default() };
        let config = NodeConfig {
            stack: StackConfig { net, ..StackConfig::default() },
            ..Default::default()
        };
        let now = Instant(1_000_000_000);
        let mut node: Node<dyn Port> = Node::new(config, [7; 32], now);
        let mut wires = Vec::new();
        for (port, (link, offloads)) in PORTS.into_iter().enumerate() {
            let wire = Rc::new(RefCell::new(Wire::default()));
            let net = port + 1;
            let addresses = [format!("10.{net}.0.1/24"), format!("fd00:0:0:{net}::1/64")];
            let config = InterfaceConfig {
                name: format!("eth{port}"),
                link,
                mac: mac(port, true),
                mtu: MTU as u32,
                offloads,
                addresses: addresses.iter().map(|it| it.parse().expect("a prefix")).collect(),
                slaac: false,
                any_address: false,
                kernel_cuts: false,
                in_process: false,
            };
            node.add_interface(config, Box::new(End(port, Rc::clone(&wire))));
            wires.push(wire);
            if link == LinkType::Ethernet {
                let neighbor = |addr| Change::SetNeighbor {
                    iface: IfaceId(net as u16),
                    addr,
                    mac: mac(port, false),
                    how: How::Replace,
                };
                let neighbors = [false, true].map(|is_v6| neighbor(host(port, is_v6)));
                node.stack.net.apply(now, &neighbors).expect("neighbours");
            }
        }
        if has_rules {
            let list = RuleList::parse(RULES).expect("rules");
            node.stack.net.set_rules(Some(Rules::compile(&list, |_| None).expect("rules")));
        }
        Self { node, wires, has_rules, now }
    }

    /// Receives a packet on one port, and checks the packets that the router sends for it.
    fn step(&mut self, input: &mut Input<'_>) {
        let port = usize::from(input.u8()) % PORTS.len();
        let to = usize::from(input.u8()) % PORTS.len();
        let link = PORTS[port].0;
        let bytes = frame(input, port, to);
        let Some(meta) = metadata(input, link, &bytes) else { return };
        queue(&bytes, meta, link, &mut self.node.pool);
        let mut packet = self.node.pool.take(bytes.len());
        packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(&bytes);
        packet.meta = meta;
        self.wires[port].borrow_mut().received.push_back(packet);
        self.now = Instant(self.now.0 + 1_000_000);
        while self.node.turn(self.now).more {}
        for (port, wire) in self.wires.iter().enumerate() {
            for packet in core::mem::take(&mut wire.borrow_mut().sent) {
                check(port, &packet, self.has_rules);
                self.node.pool.give(packet);
            }
        }
    }
}

/// Queues the same packet like bridges and shaped links: segmented, with complete checksums.
fn queue(bytes: &[u8], meta: Meta, link: LinkType, pool: &mut Pool) {
    let mut packet = pool.take(bytes.len());
    packet.push_back(bytes.len()).expect("taken with room").copy_from_slice(bytes);
    packet.meta = meta;
    QueuedPacket::each(packet, link, pool, |mut queued, pool| {
        queued.complete_checksum();
        pool.give(queued.into_packet());
    });
}

/// Returns metadata as read from a virtio header by a device, or as set by a peer stack.
fn metadata(input: &mut Input<'_>, link: LinkType, bytes: &[u8]) -> Option<Meta> {
    let link_len = if link == LinkType::Ethernet { ETHERNET_LEN } else { 0 };
    let ip = bytes.get(link_len..).unwrap_or_default();
    let is_v6 = ip.first().is_some_and(|first| first >> 4 == 6);
    let transport = if is_v6 { 40 } else { ip.first().map_or(20, |it| usize::from(it & 15) * 4) };
    let likely = (link_len + transport) as u16;
    let start = vary(input, likely);
    let any = input.u16();
    let offset = input.pick(&[16, 6, 2, 8, 0, any]);
    let size = input.pick(&[7, 1, 100, 1000, 1460, any]);
    match input.u8() % 8 {
        0 => Some(Meta { checksum: Checksum::Verified, ..Meta::default() }),
        1 => Some(Meta { checksum: Checksum::Partial { start, offset }, ..Meta::default() }),
        2 => {
            let protocol = input.pick(&[Protocol::Tcp4, Protocol::Tcp6, Protocol::Udp]);
            let headers = start.saturating_add(input.pick(&[20, 8, 32, 0, any]));
            let header_len = vary(input, headers);
            let checksum = match input.bool() {
                true => Checksum::Partial { start, offset },
                false => Checksum::Verified,
            };
            let segmentation = Some(Segmentation { protocol, size, header_len });
            Some(Meta { checksum, segmentation, ..Meta::default() })
        }
        3 => None,
        _ => {
            let mut header = [0; towpath_virtio::HEADER_LEN];
            let kind = input.u8();
            (header[0], header[1]) = (input.pick(&[1, 1, 2, 0]), input.pick(&[1, 4, 5, 0, kind]));
            for (at, word) in [(4, size), (6, start), (8, offset)] {
                header[at..at + 2].copy_from_slice(&word.to_ne_bytes());
            }
            towpath_virtio::parse(&header, bytes).ok()
        }
    }
}

/// Returns the value itself most of the time, otherwise a nearby or arbitrary one.
fn vary(input: &mut Input<'_>, value: u16) -> u16 {
    match input.u8() % 8 {
        0 => value.wrapping_add(input.u8().into()),
        1 => value.wrapping_sub(input.u8().into()),
        2 => input.u16(),
        _ => value,
    }
}

/// Creates a frame from a host to a host behind another port, mostly valid.
fn frame(input: &mut Input<'_>, port: usize, to: usize) -> Vec<u8> {
    let is_v6 = input.bool();
    let packet = if is_v6 { packet_v6(input, port, to) } else { packet_v4(input, port, to) };
    let mut bytes = Vec::with_capacity(ETHERNET_LEN + packet.len());
    if PORTS[port].0 == LinkType::Ethernet {
        bytes.extend(mac(port, true).0);
        bytes.extend(mac(port, false).0);
        bytes.extend(if is_v6 { [0x86, 0xdd] } else { [8, 0] });
    }
    let ip = bytes.len();
    bytes.extend(packet);
    if input.one_in(4) {
        let len = bytes.len() + usize::from(input.u8());
        bytes.resize(len, 0x55);
    }
    for _ in 0..input.u8().saturating_sub(252) {
        let at = usize::from(input.u16()) % bytes.len();
        bytes[at] = input.u8();
    }
    if !is_v6 && !input.one_in(16) {
        seal_v4(&mut bytes[ip..]);
    }
    bytes
}

/// Writes the checksum of an IPv4 header, if the header is complete.
fn seal_v4(ip: &mut [u8]) {
    let len = usize::from(ip[0] & 15) * 4;
    let Some(header) = ip.get_mut(..len).filter(|header| header.len() >= 20) else { return };
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header, 0));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn packet_v4(input: &mut Input<'_>, port: usize, to: usize) -> Vec<u8> {
    let options = if input.one_in(4) { usize::from(input.u8() % 11) * 4 } else { 0 };
    let (protocol, transport) = transport(input);
    let len = 20 + options + transport.len();
    let mut header = vec![0; 20];
    header[0] = 0x45 + (options / 4) as u8;
    header[2..4].copy_from_slice(&vary(input, len as u16).to_be_bytes());
    let any = input.u16();
    header[6..8].copy_from_slice(&input.pick(&[0, 0, 0x4000, 0x2000, 1, 2, any]).to_be_bytes());
    (header[8], header[9]) = (64, protocol);
    for (at, host) in [(12, host(port, false)), (16, host(to, false))] {
        if let IpAddr::V4(host) = host {
            header[at..at + 4].copy_from_slice(&host.octets());
        }
    }
    header.resize(20 + options, 1);
    header.extend(transport);
    header
}

fn packet_v6(input: &mut Input<'_>, port: usize, to: usize) -> Vec<u8> {
    let (mut next, mut rest) = transport(input);
    let chains = if input.bool() { input.u8() % 40 } else { 0 };
    for _ in 0..chains {
        let any = input.u8();
        let kind = input.pick(&[60, 60, 43, 0, 44, 135, 51, any]);
        let mut header = vec![0; 8];
        header[0] = next;
        match kind {
            44 => {
                let any = input.u16();
                header[2..4].copy_from_slice(&input.pick(&[0, 1, 8, 16, 9, any]).to_be_bytes());
            }
            0 | 60 => header[2..].copy_from_slice(&[1, 4, 0, 0, 0, 0]),
            _ => header[1] = u8::from(input.one_in(8)),
        }
        (next, rest) = (kind, [header, rest].concat());
    }
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(vary(input, rest.len() as u16).to_be_bytes());
    header.extend([next, 64]);
    for host in [host(port, true), host(to, true)] {
        if let IpAddr::V6(host) = host {
            header.extend(host.octets());
        }
    }
    header.extend(rest);
    header
}

/// Creates a transport header with payload. Returns its protocol and bytes.
fn transport(input: &mut Input<'_>) -> (u8, Vec<u8>) {
    let any = input.u8();
    let protocol = input.pick(&[6, 17, 6, 17, 1, 58, 132, 4, any]);
    let len = (usize::from(input.u16()) % PAYLOAD_MAX) >> (input.u8() % 12);
    let ports = [input.u16(), input.pick(&[DROPPED_PORT, 23, 80, 54_321])];
    let mut bytes: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
    match protocol {
        6 => {
            bytes.resize(20, 0);
            let words = if input.one_in(4) { input.u8() } else { 5 };
            (bytes[12], bytes[13]) = (words << 4, input.u8());
        }
        17 => {
            bytes.extend(vary(input, (8 + len) as u16).to_be_bytes());
            bytes.extend([0; 2]);
        }
        _ => bytes.extend([0; 4]),
    }
    let headers = bytes.len();
    bytes.resize(headers + len, any);
    if input.one_in(8) {
        bytes.truncate(usize::from(input.u8()));
    }
    (protocol, bytes)
}

/// Checks that a port may send this packet.
fn check(port: usize, packet: &Packet, has_rules: bool) {
    let (link, offloads) = PORTS[port];
    let bytes = packet.linear();
    assert!(packet.tail.is_empty());
    let at = if link == LinkType::Ethernet { ETHERNET_LEN } else { 0 };
    if at > 0 && ![[8, 0], [0x86, 0xdd]].iter().any(|it| bytes[12..14] == *it) {
        return;
    }
    let ip = &bytes[at..];
    let is_v4 = ip[0] >> 4 == 4;
    let len = match is_v4 {
        true => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
        false => 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
    };
    assert_eq!(len, ip.len(), "length of IP: {packet:?}");
    if is_v4 {
        let header = &ip[..usize::from(ip[0] & 15) * 4];
        assert_eq!(checksum::finish(checksum::sum(header, 0)), 0, "checksum of IP");
    }
    let segmentation = packet.meta.segmentation;
    assert!(segmentation.is_some() || ip.len() <= MTU, "{} bytes", ip.len());
    let seen = read(ip);
    let mut wire = bytes.to_vec();
    if let Checksum::Partial { start, offset } = packet.meta.checksum {
        assert!(offloads.checksum, "a checksum for a port without offload");
        let (start, place) = (usize::from(start), usize::from(start) + usize::from(offset));
        let sum = checksum::finish(checksum::sum(&wire[start..], 0));
        wire[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        let is_own = seen.is_some_and(|seen| start == at + seen.at);
        let tcp_or_udp = seen.filter(|_| is_own).map(|seen| seen.protocol);
        let wanted = match tcp_or_udp {
            Some(6) => 16,
            Some(17) => 6,
            Some(1 | 58) => 2,
            _ => offset,
        };
        assert_eq!(offset, wanted, "place of the checksum: {packet:?}");
    }
    if let Some(how) = segmentation {
        let can = match how.protocol {
            Protocol::Udp => offloads.udp_segmentation,
            Protocol::Tcp4 | Protocol::Tcp6 => offloads.tcp_segmentation,
        };
        assert!(can && matches!(packet.meta.checksum, Checksum::Partial { .. }), "{packet:?}");
        assert!(how.size > 0 && usize::from(how.header_len) <= bytes.len(), "{packet:?}");
    }
    if !has_rules {
        return;
    }
    let after = read(&wire[at..]).and_then(|seen| seen.ports.map(|ports| (seen.protocol, ports)));
    if let Some((protocol @ (6 | 17), (_, port))) = after {
        assert_ne!(port, DROPPED_PORT, "passes the rules with protocol {protocol}: {packet:?}");
    }
}

/// Transport of a packet.
#[derive(Clone, Copy)]
struct Seen {
    protocol: u8,
    at: usize,
    ports: Option<(u16, u16)>,
}

/// Returns the transport header of a packet; `None` for a later fragment.
fn read(ip: &[u8]) -> Option<Seen> {
    let (mut protocol, mut at) = (ip[6], 40);
    if ip[0] >> 4 == 4 {
        let is_later = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff != 0;
        (protocol, at) = (ip[9], usize::from(ip[0] & 15) * 4);
        if is_later {
            return None;
        }
    } else {
        while matches!(protocol, 0 | 43 | 44 | 60) {
            let header = ip.get(at..at + 8)?;
            if protocol == 44 && u16::from_be_bytes([header[2], header[3]]) & !7 != 0 {
                return None;
            }
            at += if protocol == 44 { 8 } else { (usize::from(header[1]) + 1) * 8 };
            protocol = header[0];
        }
    }
    let ports = ip
        .get(at..at + 4)
        .map(|it| (u16::from_be_bytes([it[0], it[1]]), u16::from_be_bytes([it[2], it[3]])));
    Some(Seen { protocol, at, ports })
}
