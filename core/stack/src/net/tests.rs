//! Tests of the IP layer in virtual time, by the frames and packets that it receives and sends.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::sync::Arc;

use proptest::prelude::*;
use towpath_pool::{
    Batch, Checksum, Fragments, LinkType, Offloads, Packet, Pool, Protocol, Segmentation, Stretch,
};
use towpath_ring::Payload;
use towpath_shm::Mapping;
use towpath_tcp::Instant;
use towpath_wire::ethernet::{self, EtherType};
use towpath_wire::ndp::{self, Message, PrefixInfo, RouterAdvert};
use towpath_wire::tcp::Flags;
use towpath_wire::{IpProtocol, MacAddr, Prefix, addr, arp, icmpv4, icmpv6, ipv4, ipv6, udp};

use super::*;
use crate::drop::DropReason;

mod changes;
mod forward;
mod groups;
mod hooks;
mod interfaces;
mod kernel_routes;
mod many_neighbors;
mod neighbors;
mod next_hops;
mod offloads;
mod redirect;
mod routers;
mod shards;
mod snapshots;
mod sources;
mod tracker;
mod transit;

const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const ETH: IfaceId = IfaceId(1);
const ALL: Offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
const NONE: Offloads =
    Offloads { checksum: false, tcp_segmentation: false, udp_segmentation: false };

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn prefix(s: &str) -> Prefix {
    s.parse().unwrap()
}

/// A host with one interface.
struct Host {
    net: Net,
    pool: Pool,
    now: Instant,
}

/// Returns the configuration of an Ethernet interface whose device has no offloads.
fn eth0(addresses: &[&str]) -> InterfaceConfig {
    InterfaceConfig {
        name: "eth0".to_string(),
        link: LinkType::Ethernet,
        mac: MAC_A,
        mtu: 1500,
        offloads: NONE,
        addresses: addresses.iter().map(|a| prefix(a)).collect(),
        slaac: false,
        any_address: false,
        kernel_cuts: false,
        in_process: false,
    }
}

impl Host {
    fn new(mac: MacAddr, addresses: &[&str], change: impl FnOnce(&mut InterfaceConfig)) -> Self {
        let now = Instant(1_000_000_000);
        let keys = Keys::derive(&[mac.0[5]; 32]);
        let mut net = Net::new(NetConfig { trace_drops: true, ..NetConfig::default() }, keys, now);
        let mut config = InterfaceConfig { mac, ..eth0(addresses) };
        change(&mut config);
        assert_eq!(net.add_interface(now, config), ETH);
        Self { net, pool: Pool::default(), now }
    }

    fn a() -> Self {
        Self::new(MAC_A, &["10.0.0.1/24", "fd00::1/64"], |_| {})
    }

    fn b() -> Self {
        Self::new(MAC_B, &["10.0.0.2/24", "fd00::2/64"], |_| {})
    }

    /// Waits until duplicate address detection is over, and discards the frames sent.
    fn settled(mut self) -> Self {
        self.pass(Duration::from_secs(3));
        self.sent();
        self
    }

    /// Advances the clock by `time`, and fires each timer when it is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.net.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.net.on_timeout(self.now, &mut self.pool);
        }
        self.now = end;
    }

    fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.pool.take(bytes.len());
        packet.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    }

    fn receive(&mut self, bytes: &[u8]) -> Option<Received> {
        let packet = self.packet(bytes);
        self.net.receive(self.now, ETH, packet, &mut self.pool)
    }

    /// Returns the reason why the packet is dropped.
    fn refusal(&mut self, bytes: &[u8]) -> Option<DropReason> {
        assert!(self.net.take_dropped().is_none());
        assert!(self.receive(bytes).is_none());
        self.net.take_dropped().map(|dropped| dropped.reason)
    }

    /// Returns the frames sent since the last call.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.take_output().iter().map(bytes_of).collect()
    }

    /// Returns the packets sent since the last call; the device takes all.
    fn take_output(&mut self) -> Batch {
        let mut taken = Batch::new();
        self.net.output(ETH).hand_over(|batch| taken.append(batch));
        taken
    }

    fn send_udp(&mut self, to: &str, len: usize) -> Result<(), SendError> {
        let route = self.net.route(self.now, None, ip(to), None).unwrap();
        let packet = udp_packet(&mut self.pool, len);
        self.send(&route, IpProtocol::UDP, false, packet, 6)
    }

    fn send(
        &mut self,
        route: &Route,
        protocol: IpProtocol,
        dont_fragment: bool,
        packet: Packet,
        checksum_at: u16,
    ) -> Result<(), SendError> {
        let fragmenting = if dont_fragment { Fragmenting::Never } else { Fragmenting::Anywhere };
        let ip = Ip { protocol: protocol.0, ttl: None, tos: 0, fragmenting, flow_label: 0 };
        let (now, dst) = (self.now, route.next_hop);
        self.net.send(now, route, route.src, dst, ip, packet, Some(checksum_at), &mut self.pool)
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.net.counters().data.drops.of(reason)
    }
}

/// Exchanges frames until both hosts are quiet. Returns what each received for its sockets.
fn exchange(a: &mut Host, b: &mut Host) -> (Vec<Received>, Vec<Received>) {
    let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
    loop {
        let (forth, back) = (a.take_output(), b.take_output());
        if forth.is_empty() && back.is_empty() {
            return (to_a, to_b);
        }
        to_b.extend(deliver(forth, b));
        to_a.extend(deliver(back, a));
    }
}

fn deliver(batch: Batch, to: &mut Host) -> Vec<Received> {
    batch.into_iter().filter_map(|p| to.net.receive(to.now, ETH, p, &mut to.pool)).collect()
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(0, &mut bytes);
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn udp_packet(pool: &mut Pool, len: usize) -> Packet {
    let mut packet = pool.take(udp::HEADER_LEN + len);
    let bytes = packet.push_back(udp::HEADER_LEN + len).unwrap();
    let header = udp::Header {
        src_port: 1000,
        dst_port: 2000,
        length: (udp::HEADER_LEN + len) as u16,
        checksum: 0,
    };
    header.emit(bytes);
    bytes[udp::HEADER_LEN..].copy_from_slice(&pattern(len));
    packet
}

fn local(received: Received) -> Local {
    match received {
        Received::Local(local) => local,
        other => panic!("not a transport packet: {other:?}"),
    }
}

fn only<T>(mut list: Vec<T>) -> T {
    assert_eq!(list.len(), 1);
    list.pop().unwrap()
}

/// Creates an Ethernet frame with a payload.
fn frame(dst: MacAddr, src: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    ethernet::Header { dst, src, vlan: None, ethertype }.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv4_packet(src: &str, dst: &str, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        tos: 0,
        total_len: (20 + payload.len()) as u16,
        ident: 1,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        options: ipv4::Options::EMPTY,
    };
    let mut bytes = vec![0; 20];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv6_packet(
    src: &str,
    dst: &str,
    next_header: IpProtocol,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload.len() as u16,
        next_header,
        hop_limit,
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
    };
    let mut bytes = vec![0; 40];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn from_b_v4(src: &str, dst: &str) -> Vec<u8> {
    frame(MAC_A, MAC_B, EtherType::IPV4, &ipv4_packet(src, dst, IpProtocol::UDP, &[0; 8]))
}

fn from_b_v6(src: &str, dst: &str) -> Vec<u8> {
    frame(MAC_A, MAC_B, EtherType::IPV6, &ipv6_packet(src, dst, IpProtocol::UDP, 64, &[0; 8]))
}

/// Creates two hosts that know each other's MAC addresses.
fn pair(offloads: Offloads) -> (Host, Host) {
    let (mut a, mut b) = (Host::a().settled(), Host::b().settled());
    a.net.set_offloads(ETH, offloads);
    for to in ["10.0.0.2", "fd00::2"] {
        a.send_udp(to, 1).unwrap();
        exchange(&mut a, &mut b);
    }
    (a, b)
}

#[test]
fn datagrams_arrive_after_address_resolution_with_good_checksums() {
    for (to, from) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let (mut a, mut b) = (Host::a().settled(), Host::b().settled());
        a.send_udp(to, 100).unwrap();
        a.send_udp(to, 200).unwrap();
        assert_eq!(a.net.counters().control.solicits_sent, 1);
        let (_, received) = exchange(&mut a, &mut b);
        let lens: Vec<_> = received
            .into_iter()
            .map(|received| {
                let local = local(received);
                assert!(verify_transport(&local));
                assert_eq!((local.src, local.dst), (ip(from), ip(to)));
                assert!(!local.broadcast_or_multicast);
                local.len
            })
            .collect();
        assert_eq!(lens, [108, 208]);
        // Host b learnt the sender's MAC address from the request, so it sends no request itself.
        b.send_udp(from, 5).unwrap();
        assert_eq!(b.net.counters().control.solicits_sent, 0);
    }
}

#[test]
fn a_damaged_payload_fails_the_check() {
    let (mut a, mut b) = pair(NONE);
    a.send_udp("10.0.0.2", 100).unwrap();
    let mut bytes = only(a.sent());
    *bytes.last_mut().unwrap() ^= 1;
    assert!(!verify_transport(&local(b.receive(&bytes).unwrap())));
}

#[test]
fn padding_of_short_frames_is_cut_off() {
    let mut a = Host::a();
    let mut bytes = from_b_v4("10.0.0.2", "10.0.0.1");
    bytes.resize(60, 0xee);
    let local = local(a.receive(&bytes).unwrap());
    assert_eq!((local.len, local.packet.len()), (8, 14 + 28));
}

#[test]
fn an_interface_announces_its_address_and_answers_questions() {
    let mut a = Host::a();
    a.pass(Duration::ZERO);
    let announced = a.sent();
    let (header, at) = ethernet::Header::parse(&announced[0]).unwrap();
    assert_eq!((header.dst, header.ethertype), (MacAddr::BROADCAST, EtherType::ARP));
    // The first frame is the probe for another host with the address, the second the announcement.
    let ends = |frame: &Vec<u8>| {
        let (message, _) = arp::ArpPacket::parse(&frame[at..]).unwrap();
        (message.sender_ip.octets(), message.target_ip.octets())
    };
    assert_eq!(ends(&announced[0]), ([0; 4], [10, 0, 0, 1]));
    assert_eq!(ends(&announced[1]), ([10, 0, 0, 1], [10, 0, 0, 1]));

    let mut question = arp::ArpPacket {
        op: arp::ArpOp::Request,
        sender_mac: MAC_B,
        sender_ip: [10, 0, 0, 2].into(),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: [10, 0, 0, 1].into(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    question.emit(&mut bytes);
    assert!(a.receive(&frame(MacAddr::BROADCAST, MAC_B, EtherType::ARP, &bytes)).is_none());
    let answer = only(a.sent());
    let (answer, _) = arp::ArpPacket::parse(&answer[14..]).unwrap();
    assert_eq!(
        (answer.op, answer.sender_mac, answer.target_mac),
        (arp::ArpOp::Reply, MAC_A, MAC_B)
    );

    question.target_ip = [10, 0, 0, 9].into();
    question.emit(&mut bytes);
    assert!(a.receive(&frame(MacAddr::BROADCAST, MAC_B, EtherType::ARP, &bytes)).is_none());
    assert!(a.sent().is_empty());
}

#[test]
fn a_neighbour_that_does_not_answer_is_reported_for_each_packet() {
    let mut a = Host::a();
    for len in 1..=5 {
        a.send_udp("10.0.0.77", len).unwrap();
    }
    assert_eq!(a.drops(DropReason::NeighborQueueFull), 0);
    a.pass(Duration::from_secs(4));
    assert_eq!(a.net.counters().control.solicits_sent, 3);
    assert_eq!(a.drops(DropReason::NeighborUnreachable), 5);
    let errors: Vec<_> = std::iter::from_fn(|| a.net.take_error()).collect();
    assert_eq!(errors.len(), 5);
    assert_eq!((errors[0].message, errors[0].too_big), ((3, 1), None));
    assert_eq!(
        (errors[0].dst, errors[0].src_port, errors[0].dst_port),
        (ip("10.0.0.77"), 1000, 2000)
    );
}

#[test]
fn a_router_that_does_not_answer_gives_way_to_another() {
    let mut a = Host::a();
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.8")), ETH, 1);
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 2);
    let hop = |a: &Host| a.net.route(a.now, None, ip("8.8.8.8"), None).unwrap().next_hop;
    assert_eq!(hop(&a), ip("10.0.0.8"));
    let route = a.net.route(a.now, None, ip("8.8.8.8"), None).unwrap();
    let packet = udp_packet(&mut a.pool, 1);
    a.send(&route, IpProtocol::UDP, false, packet, 6).unwrap();
    a.pass(Duration::from_secs(4));
    assert!(a.net.route_generation() > route.generation);
    assert_eq!(hop(&a), ip("10.0.0.9"));
}

#[test]
fn big_datagrams_are_cut_and_put_together_again() {
    for to in ["10.0.0.2", "fd00::2"] {
        let (mut a, mut b) = pair(ALL);
        for len in [1472, 1473, 5000, 20_000, 65_000] {
            a.send_udp(to, len).unwrap();
            let (_, received) = exchange(&mut a, &mut b);
            let local = local(only(received));
            assert!(verify_transport(&local));
            let data = &local.packet.linear()[local.offset + 8..];
            assert_eq!(data, pattern(len));
        }
        assert!(a.net.counters().data.fragmented >= 3);
        assert_eq!(b.net.counters().data.reassembled, a.net.counters().data.fragmented);
    }
}

#[test]
fn datagrams_cut_for_an_unknown_neighbour_wait_whole() {
    let (mut a, mut b) = (Host::a(), Host::b());
    a.send_udp("10.0.0.2", 20_000).unwrap();
    let (_, received) = exchange(&mut a, &mut b);
    assert_eq!(local(only(received)).len, 20_008);
}

#[test]
fn what_may_not_be_cut_is_refused() {
    let (mut a, _) = pair(NONE);
    let route = a.net.route(a.now, None, ip("10.0.0.2"), None).unwrap();
    let packet = udp_packet(&mut a.pool, 1473);
    let refused = a.send(&route, IpProtocol::UDP, true, packet, 6);
    assert_eq!(refused, Err(SendError::TooBig { mtu: 1500 }));
    let packet = udp_packet(&mut a.pool, 65_520);
    assert!(a.send(&route, IpProtocol::UDP, false, packet, 6).is_err());
    assert_eq!(a.drops(DropReason::TooBig), 2);
}

fn tcp_packet(
    pool: &mut Pool,
    payload: &[u8],
    size: u16,
    linear: usize,
    protocol: Protocol,
) -> Packet {
    let header_len = 20;
    let mut packet = pool.take(header_len + linear);
    let bytes = packet.push_back(header_len + linear).unwrap();
    bytes.fill(0);
    bytes[..4].copy_from_slice(&[1, 2, 3, 4]);
    bytes[4..8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
    bytes[12] = 0x50;
    bytes[13] = (Flags::FIN | Flags::PSH | Flags::ACK | Flags::CWR).0 as u8;
    bytes[header_len..].copy_from_slice(&payload[..linear]);
    if linear < payload.len() {
        let mapping = Arc::new(Mapping::private(1 << 17).unwrap());
        mapping.write(100, &payload[linear..]);
        let (half, len) = (40, (payload.len() - linear) as u32);
        packet.tail = Fragments::new(
            Stretch::new(&mapping, 100, half),
            Some(Stretch::new(&mapping, 100 + half as usize, len - half)),
        );
    }
    packet.meta.segmentation = Some(Segmentation { protocol, size, header_len: header_len as u16 });
    packet
}

#[test]
fn software_segments_make_the_same_stream_again() {
    let payload = pattern(10_000);
    for (to, protocol, ip_len) in
        [("10.0.0.2", Protocol::Tcp4, 20), ("fd00::2", Protocol::Tcp6, 40)]
    {
        for (offloads, linear) in
            [(NONE, 10_000), (NONE, 17), (Offloads { checksum: true, ..NONE }, 17)]
        {
            let (mut a, mut b) = pair(offloads);
            let route = a.net.route(a.now, None, ip(to), None).unwrap();
            let packet = tcp_packet(&mut a.pool, &payload, 1000, linear, protocol);
            a.send(&route, IpProtocol::TCP, true, packet, 16).unwrap();
            let (mut again, mut idents) = (Vec::new(), Vec::new());
            let count = a.net.output(ETH).len();
            for (n, packet) in a.take_output().into_iter().enumerate() {
                assert_eq!(packet.meta.checksum != Checksum::Unknown, offloads.checksum);
                let bytes = bytes_of(&packet);
                let local = local(b.net.receive(b.now, ETH, packet, &mut b.pool).unwrap());
                assert!(verify_transport(&local));
                let tcp = &bytes[14 + ip_len..];
                let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
                assert_eq!(seq, 0xffff_ff00u32.wrapping_add(n as u32 * 1000));
                let flags = Flags(tcp[13].into());
                assert!(flags.contains(Flags::ACK));
                assert_eq!(flags.contains(Flags::CWR), n == 0);
                assert_eq!(flags.intersects(Flags::FIN | Flags::PSH), n + 1 == count);
                idents.push(u16::from_be_bytes([bytes[18], bytes[19]]));
                again.extend_from_slice(&tcp[20..]);
            }
            assert_eq!(again, payload);
            if ip_len == 20 {
                assert!(idents.windows(2).all(|w| w[1] == w[0].wrapping_add(1)));
            }
            assert_eq!(a.net.counters().data.segmented, 1);
        }
    }
}

#[test]
fn a_device_that_can_gets_the_whole_packet_with_offsets_from_its_first_byte() {
    let (mut a, _) = pair(ALL);
    let route = a.net.route(a.now, None, ip("fd00::2"), None).unwrap();
    let packet = tcp_packet(&mut a.pool, &pattern(5000), 1000, 17, Protocol::Tcp6);
    a.send(&route, IpProtocol::TCP, true, packet, 16).unwrap();
    // On the wire, each of the five segments has its own headers.
    assert_eq!(a.net.output(ETH).load(), Load { packets: 5, bytes: 5 * 74 + 5000 });
    let packet = a.take_output().pop_front().unwrap();
    assert_eq!(packet.meta.checksum, Checksum::Partial { start: 54, offset: 16 });
    assert_eq!(packet.meta.segmentation.unwrap().header_len, 74);
    assert_eq!(packet.len(), 74 + 5000);
    assert_eq!(a.net.output(ETH).load(), Load::default());
}

#[test]
fn segments_shrink_to_a_path_mtu_but_datagrams_do_not() {
    let (mut a, _) = pair(NONE);
    a.net.set_path_mtu(a.now, (ip("10.0.0.1"), ip("10.0.0.2")), None, 1000);
    let route = a.net.route(a.now, None, ip("10.0.0.2"), None).unwrap();
    assert_eq!(route.mtu, 1000);
    let packet = tcp_packet(&mut a.pool, &pattern(3000), 1460, 3000, Protocol::Tcp4);
    a.send(&route, IpProtocol::TCP, true, packet, 16).unwrap();
    let lens: Vec<_> = a.sent().iter().map(Vec::len).collect();
    assert_eq!(lens, [1014, 1014, 1014, 14 + 40 + 3000 - 3 * 960]);

    let mut packet = udp_packet(&mut a.pool, 3000);
    packet.meta.segmentation =
        Some(Segmentation { protocol: Protocol::Udp, size: 1400, header_len: 8 });
    let refused = a.send(&route, IpProtocol::UDP, true, packet, 6);
    assert_eq!(refused, Err(SendError::TooBig { mtu: 1000 }));
}

#[test]
fn udp_segments_are_datagrams_of_their_own() {
    let (mut a, mut b) = pair(NONE);
    let route = a.net.route(a.now, None, ip("fd00::2"), None).unwrap();
    let mut packet = udp_packet(&mut a.pool, 2500);
    packet.meta.segmentation =
        Some(Segmentation { protocol: Protocol::Udp, size: 1000, header_len: 8 });
    a.send(&route, IpProtocol::UDP, true, packet, 6).unwrap();
    let (_, received) = exchange(&mut a, &mut b);
    let mut again = Vec::new();
    for received in received {
        let local = local(received);
        assert!(verify_transport(&local));
        again.extend_from_slice(&local.packet.linear()[local.offset + 8..]);
    }
    assert_eq!(again, pattern(2500));
}

#[test]
fn this_host_talks_to_itself_through_the_loopback_queue() {
    let mut a = Host::a();
    for to in ["127.0.0.1", "127.1.2.3", "::1", "10.0.0.1", "fd00::1"] {
        let route = a.net.route(a.now, None, ip(to), None).unwrap();
        // As in Linux's local table, 127.0.0.1 is the source for all of 127.0.0.0/8.
        let from = if to == "127.1.2.3" { "127.0.0.1" } else { to };
        assert_eq!((route.iface, route.src), (IfaceId::LOOPBACK, ip(from)));
        let packet = tcp_packet(&mut a.pool, &pattern(30_000), 1000, 17, Protocol::Tcp4);
        a.send(&route, IpProtocol::TCP, true, packet, 16).unwrap();
        let looped = a.net.take_loopback().unwrap();
        assert!(!looped.packet.tail.is_empty());
        let received = a.net.receive_looped(a.now, looped, &mut a.pool);
        let local = local(received.unwrap());
        assert_eq!((local.len, local.dst), (30_020, ip(to)));
        assert!(verify_transport(&local));

        let mut packet = udp_packet(&mut a.pool, 2500);
        packet.meta.segmentation =
            Some(Segmentation { protocol: Protocol::Udp, size: 1000, header_len: 8 });
        a.send(&route, IpProtocol::UDP, true, packet, 6).unwrap();
        let mut lens = Vec::new();
        while let Some(looped) = a.net.take_loopback() {
            let received = a.net.receive_looped(a.now, looped, &mut a.pool);
            lens.push(super::tests::local(received.unwrap()).len);
        }
        assert_eq!(lens, [2508], "whoever delivers them tells them apart");
    }
    assert!(a.sent().is_empty());
}

#[test]
fn pings_are_answered() {
    for (to, from) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let (mut a, mut b) = pair(NONE);
        let route = a.net.route(a.now, None, ip(to), None).unwrap();
        let echo = EchoOut {
            src: ip(from),
            dst: ip(to),
            reply: false,
            ident: 7,
            seq: 9,
            ttl: None,
            tos: 0,
            fragmenting: Fragmenting::Anywhere,
        };
        for len in [0, 56, 4000] {
            let data = pattern(len);
            let payload = Payload::new(&data, Fragments::empty());
            a.net.send_echo(a.now, &route, &echo, &payload, &mut a.pool).unwrap();
            let (received, _) = exchange(&mut a, &mut b);
            let Received::EchoReply(reply) = only(received) else { panic!("not a reply") };
            assert_eq!((reply.ident, reply.seq), (7, 9));
            let range = reply.data_offset..reply.data_offset + reply.data_len;
            assert_eq!(reply.local.packet.linear()[range], data);
        }
        assert_eq!(b.net.counters().data.echoes_answered, 3);
    }
}

/// A gateway solicits a neighbour in its first turn, because no detection delays its address.
#[test]
fn an_any_address_interface_does_not_look_for_duplicates() {
    let gateway = |config: &mut InterfaceConfig| config.any_address = true;
    let mut b = Host::new(MAC_B, &["fd00::2/64"], gateway);
    b.pass(Duration::ZERO);
    let interface = b.net.interface(ETH).unwrap();
    let states: Vec<_> = interface.addresses().iter().map(|address| address.state).collect();
    assert_eq!(states, [AddressState::Preferred; 2], "the one given and the link-local one");
}

#[test]
fn an_any_address_interface_takes_everything_and_leaves_pings_to_its_owner() {
    let gateway = |config: &mut InterfaceConfig| config.any_address = true;
    let mut b = Host::new(MAC_B, &["10.0.0.2/24", "fd00::2/64"], gateway);
    let mut a = Host::a();
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.2")), ETH, 0);
    let route = a.net.route(a.now, None, ip("8.8.8.8"), None).unwrap();
    let data = pattern(10);
    let payload = Payload::new(&data, Fragments::empty());
    let echo = EchoOut {
        src: route.src,
        dst: ip("8.8.8.8"),
        reply: false,
        ident: 7,
        seq: 9,
        ttl: None,
        tos: 0,
        fragmenting: Fragmenting::Anywhere,
    };
    a.net.send_echo(a.now, &route, &echo, &payload, &mut a.pool).unwrap();
    let (_, received) = exchange(&mut a, &mut b);
    let Received::EchoRequest(request) = only(received) else { panic!("not a request") };
    assert_eq!((request.local.dst, request.ident, request.data_len), (ip("8.8.8.8"), 7, 10));

    let back = b.net.route(b.now, Some(ip("8.8.8.8")), ip("10.0.0.1"), None).unwrap();
    let reply = EchoOut { src: ip("8.8.8.8"), dst: ip("10.0.0.1"), reply: true, ..echo };
    b.net.send_echo(b.now, &back, &reply, &payload, &mut b.pool).unwrap();
    let (received, _) = exchange(&mut a, &mut b);
    let Received::EchoReply(reply) = only(received) else { panic!("not a reply") };
    assert_eq!(reply.local.src, ip("8.8.8.8"));

    let mut own = echo;
    own.dst = ip("10.0.0.2");
    let route = a.net.route(a.now, None, ip("10.0.0.2"), None).unwrap();
    a.net.send_echo(a.now, &route, &own, &payload, &mut a.pool).unwrap();
    let (received, _) = exchange(&mut a, &mut b);
    assert!(matches!(only(received), Received::EchoReply(_)));
    // A host refuses packets to groups that it has not joined.
    assert_eq!(
        b.refusal(&frame(
            MacAddr::from_multicast_v4([239, 1, 1, 1].into()),
            MAC_A,
            EtherType::IPV4,
            &ipv4_packet("10.0.0.1", "239.1.1.1", IpProtocol::UDP, &[0; 8]),
        )),
        Some(DropReason::NotJoined)
    );
}

#[test]
fn an_undeliverable_datagram_is_reported_with_its_ports() {
    for (to, from) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        for (why, len, codes) in [
            (Unreachable::Port, 10, [3, 4]),
            (Unreachable::Host, 1400, [1, 3]),
            (Unreachable::AdminProhibited, 3, [13, 1]),
        ] {
            let (mut a, mut b) = pair(NONE);
            a.send_udp(to, len).unwrap();
            let (_, received) = exchange(&mut a, &mut b);
            let local = local(only(received));
            b.net.unreachable(b.now, &local, why, &mut b.pool);
            let limit = if ip(to).is_ipv4() { 576 } else { 1280 };
            assert!(b.net.output(ETH).iter().next().unwrap().len() <= 14 + limit);
            let (received, _) = exchange(&mut a, &mut b);
            let Received::IcmpError(error) = only(received) else { panic!("not an error") };
            let message = if ip(to).is_ipv4() { (3, codes[0]) } else { (1, codes[1]) };
            assert_eq!((error.message, error.too_big), (message, None), "{why:?}");
            assert_eq!((error.src, error.dst, error.from), (ip(from), ip(to), ip(to)));
            assert_eq!((error.protocol, error.src_port, error.dst_port), (17, 1000, 2000));
        }
    }
}

#[test]
fn this_host_reports_to_itself() {
    for to in ["127.0.0.1", "::1", "10.0.0.1"] {
        let mut a = Host::a();
        a.send_udp(to, 10).unwrap();
        let through_loopback = |a: &mut Host| {
            let looped = a.net.take_loopback().unwrap();
            a.net.receive_looped(a.now, looped, &mut a.pool).unwrap()
        };
        let local = local(through_loopback(&mut a));
        a.net.unreachable(a.now, &local, Unreachable::Port, &mut a.pool);
        let Received::IcmpError(error) = through_loopback(&mut a) else { panic!("not an error") };
        assert_eq!((error.dst, error.src_port, error.dst_port), (ip(to), 1000, 2000));
    }
}

#[test]
fn errors_are_not_sent_where_they_must_not_be() {
    let mut a = Host::a();
    let base = |group| Local {
        packet: Pool::default().take(0),
        iface: ETH,
        src: ip("10.0.0.2"),
        dst: ip("10.0.0.1"),
        protocol: 17,
        ttl: 64,
        tos: 0,
        ip_offset: 0,
        offset: 20,
        len: 8,
        broadcast_or_multicast: group,
        looped: false,
    };
    let mut errors = |local: Local, bytes: &[u8]| {
        let packet = a.packet(bytes);
        let before = a.net.counters().data.icmp_errors_sent;
        let local = Local { packet, ..local };
        a.net.unreachable(a.now, &local, Unreachable::Port, &mut a.pool);
        a.net.counters().data.icmp_errors_sent - before
    };
    let udp = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::UDP, &[0; 8]);
    assert_eq!(errors(base(false), &udp), 1);
    assert_eq!(errors(base(true), &udp), 0);
    for src in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "10.0.0.255", "255.255.255.255"] {
        assert_eq!(errors(Local { src: ip(src), ..base(false) }, &udp), 0, "{src}");
    }
    let mut later = udp.clone();
    later[7] = 5;
    assert_eq!(errors(base(false), &later), 0);
    let error = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::ICMP, &[3, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!(errors(base(false), &error), 0);
    let echo = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::ICMP, &[8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(errors(base(false), &echo), 1);
    let v6 = Local { src: ip("fd00::2"), dst: ip("fd00::1"), offset: 40, ..base(false) };
    let error =
        ipv6_packet("fd00::2", "fd00::1", IpProtocol::ICMPV6, 64, &[1, 4, 0, 0, 0, 0, 0, 0]);
    assert_eq!(errors(v6, &error), 0);
}

#[test]
fn too_big_is_told_with_its_size_and_believed_when_the_transport_says_so() {
    let mut a = Host::a();
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.2")), ETH, 0);
    a.net.add_route(Prefix::ALL_V6, Some(ip("fd00::2")), ETH, 0);
    let quote = ipv4_packet("10.0.0.1", "8.8.8.8", IpProtocol::TCP, &[1, 2, 3, 4, 0, 0, 0, 9]);
    let mut message = vec![0; 8];
    icmpv4::Message::DestUnreachable { code: icmpv4::UNREACHABLE_FRAG_NEEDED, next_hop_mtu: 1400 }
        .emit(&mut message);
    message.extend_from_slice(&quote);
    icmpv4::fill_checksum(&mut message);
    let packet = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::ICMP, &message);
    let received = a.receive(&frame(MAC_A, MAC_B, EtherType::IPV4, &packet));
    let Some(Received::IcmpError(error)) = received else { panic!("not an error") };
    assert_eq!(error.too_big, Some(1400));
    assert_eq!(error.tcp_seq.map(|seq| seq.0), Some(9));
    assert_eq!(error.dst, ip("8.8.8.8"));

    let (routes, mtus) = (a.net.route_generation(), a.net.path_mtu_generation());
    assert_eq!(a.net.path_mtu(a.now, ip("8.8.8.8")), 1500);
    a.net.set_path_mtu(a.now, (error.src, error.dst), None, 1400);
    assert!(a.net.path_mtu_generation() > mtus);
    assert_eq!(a.net.route_generation(), routes, "no connection has to look up its route again");
    assert_eq!(a.net.path_mtu(a.now, ip("8.8.8.8")), 1400);
    a.pass(limits::PATH_MTU_TIME);
    assert_eq!(a.net.path_mtu(a.now, ip("8.8.8.8")), 1500);

    // An error about a packet that this host did not send is dropped.
    let mut foreign = vec![0; 8];
    icmpv6::Message::PacketTooBig { mtu: 1300 }.emit(&mut foreign);
    foreign.extend(ipv6_packet("fd00::99", "2001:db8::1", IpProtocol::UDP, 1, &[0; 8]));
    let ends: (Ipv6Addr, Ipv6Addr) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    icmpv6::fill_checksum(&mut foreign, ends.0, ends.1);
    let packet = ipv6_packet("fd00::2", "fd00::1", IpProtocol::ICMPV6, 64, &foreign);
    let reason = a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet));
    assert_eq!(reason, Some(DropReason::IcmpIgnored));
}

#[test]
fn martians_and_strangers_are_dropped_for_their_reason() {
    use DropReason::{FrameMalformed, FrameNotOurs, FrameUnknown, IpChecksum, IpMalformed};
    use DropReason::{IpSourceRoute, Martian, NotJoined, NotLocal};
    let mut a = Host::a();
    for (src, dst, reason) in [
        ("127.0.0.1", "10.0.0.1", Martian),
        ("10.0.0.2", "127.0.0.1", Martian),
        ("10.0.0.1", "10.0.0.1", Martian),
        ("224.0.0.1", "10.0.0.1", Martian),
        ("255.255.255.255", "10.0.0.1", Martian),
        ("10.0.0.255", "10.0.0.1", Martian),
        ("0.1.2.3", "10.0.0.1", Martian),
        ("10.0.0.2", "0.0.0.0", Martian),
        ("10.0.0.2", "240.0.0.1", Martian),
        ("10.0.0.2", "10.0.0.3", NotLocal),
        ("10.0.0.2", "8.8.8.8", NotLocal),
        ("10.0.0.2", "239.0.0.1", NotJoined),
    ] {
        assert_eq!(a.refusal(&from_b_v4(src, dst)), Some(reason), "{src} {dst}");
    }
    for (src, dst, reason) in [
        ("::1", "fd00::1", Martian),
        ("fd00::2", "::1", Martian),
        ("fd00::1", "fd00::1", Martian),
        ("ff02::1", "fd00::1", Martian),
        ("::ffff:10.0.0.2", "fd00::1", Martian),
        ("fd00::2", "fd00::3", NotLocal),
        ("fd00::2", "ff02::5", NotJoined),
    ] {
        assert_eq!(a.refusal(&from_b_v6(src, dst)), Some(reason), "{src} {dst}");
    }
    let good = from_b_v4("10.0.0.2", "10.0.0.1");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(a.refusal(&changed(5, 0x0c)), Some(FrameNotOurs));
    assert_eq!(a.refusal(&changed(11, 0x0a)), Some(FrameNotOurs));
    assert_eq!(a.refusal(&changed(13, 0x01)), Some(FrameUnknown));
    assert_eq!(a.refusal(&changed(12, 0)), Some(FrameMalformed));
    assert_eq!(a.refusal(&changed(14, 0x44)), Some(IpMalformed));
    assert_eq!(a.refusal(&changed(17, 0xff)), Some(IpMalformed));
    assert_eq!(a.refusal(&changed(22, 63)), Some(IpChecksum));
    assert_eq!(a.refusal(&good[..10]), Some(FrameMalformed));
    assert_eq!(a.refusal(&good[..20]), Some(IpMalformed));

    let mut routed =
        ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::UDP, &[131, 4, 4, 0, 0, 0, 0, 0]);
    routed[0] = 0x46;
    routed[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&routed[..24], 0));
    routed[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV4, &routed)), Some(IpSourceRoute));

    let broadcast = frame(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &good[14..]);
    assert_eq!(a.refusal(&broadcast), Some(Martian));
    for dst in ["255.255.255.255", "10.0.0.255", "224.0.0.1"] {
        assert!(local(a.receive(&from_b_v4("10.0.0.2", dst)).unwrap()).broadcast_or_multicast);
    }
}

#[test]
fn groups_of_a_host_are_not_taken_from_a_link_nor_reported_to_it() {
    let mut a = Host::a();
    a.pass(Duration::from_secs(5));
    a.sent();
    for group in ["ff00::5", "ff10::5", "ff01::5", "ff11::5", "ff01::1"] {
        assert!(a.net.join_group(a.now, ETH, ip(group), None) && a.net.is_member(ETH, ip(group)));
        assert_eq!(a.refusal(&from_b_v6("fd00::2", group)), Some(DropReason::Martian), "{group}");
    }
    assert!(a.net.join_group(a.now, ETH, ip("ff02::5"), None));
    assert!(local(a.receive(&from_b_v6("fd00::2", "ff02::5")).unwrap()).broadcast_or_multicast);
    // Only the link-local group is reported, twice; the other groups are limited to the host.
    a.pass(Duration::from_secs(5));
    let reports = a.sent();
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.ends_with(&[0x05]) && report.len() == 90));
    let mut query =
        [130, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ends: (Ipv6Addr, Ipv6Addr) = ("fe80::ff".parse().unwrap(), addr::ALL_NODES);
    icmpv6::fill_checksum(&mut query, ends.0, ends.1);
    let alert = [IpProtocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];
    let payload = [&alert[..], &query].concat();
    let packet = ipv6_packet("fe80::ff", "ff02::1", IpProtocol::HOP_BY_HOP, 1, &payload);
    assert!(a.receive(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet)).is_none());
    a.pass(Duration::from_secs(5));
    let answer = only(a.sent());
    // The number of records: ff02::5, and a solicited-node group for each of two addresses.
    assert_eq!(answer[68..70], [0, 3]);
    for group in ["ff00::5", "ff01::5"] {
        assert!(a.net.leave_group(a.now, ETH, ip(group), None));
    }
    a.pass(Duration::from_secs(5));
    assert!(a.sent().is_empty());
}

#[test]
fn an_address_of_another_interface_is_no_source_either() {
    let mut a = Host::a();
    let second = InterfaceConfig {
        name: "eth1".to_string(),
        mac: MacAddr([2, 0, 0, 0, 0, 0xc]),
        ..eth0(&["192.0.2.1/24", "2001:db8::1/64"])
    };
    a.net.add_interface(a.now, second);
    a.pass(Duration::from_secs(5));
    for packet in [from_b_v4("192.0.2.1", "10.0.0.1"), from_b_v6("2001:db8::1", "fd00::1")] {
        while a.net.take_dropped().is_some() {}
        assert_eq!(a.refusal(&packet), Some(DropReason::Martian));
    }
}

#[test]
fn a_bad_extension_header_is_reported() {
    let mut a = Host::a();
    // Destination options with an unknown option that asks for a report.
    let payload = [17, 0, 0x9e, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0];
    let packet = ipv6_packet("fd00::2", "fd00::1", IpProtocol::DESTINATION_OPTIONS, 64, &payload);
    let reason = a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet));
    assert_eq!(reason, Some(DropReason::IpMalformed));
    assert_eq!(a.net.counters().data.icmp_errors_sent, 1);
    // Only the destination reports the same problem in a packet to another host.
    let packet = ipv6_packet("fd00::2", "fd00::9", IpProtocol::DESTINATION_OPTIONS, 64, &payload);
    a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet));
    assert_eq!(a.net.counters().data.icmp_errors_sent, 1);
}

/// Holds even if a header in front is refused, because errors about errors would never end.
#[test]
fn no_problem_is_reported_about_an_icmpv6_error() {
    let mut a = Host::a();
    // An unknown destination option that requires a report, then the upper-layer header.
    for (upper, kind, reported) in [
        (IpProtocol::UDP, 0, true),
        (IpProtocol::ICMPV6, 128, true),
        (IpProtocol::ICMPV6, 1, false),
        (IpProtocol::ICMPV6, 4, false),
        (IpProtocol::ICMPV6, ndp::REDIRECT, false),
    ] {
        let payload = [upper.0, 0, 0x80, 4, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0];
        let packet =
            ipv6_packet("fd00::2", "fd00::1", IpProtocol::DESTINATION_OPTIONS, 64, &payload);
        let before = a.net.counters().data.icmp_errors_sent;
        let reason = a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet));
        assert_eq!(reason, Some(DropReason::IpMalformed));
        let sent = a.net.counters().data.icmp_errors_sent - before;
        assert_eq!(sent, u64::from(reported), "{upper:?} {kind}");
    }
}

#[test]
fn a_malformed_ipv4_option_is_reported_where_it_begins() {
    let (mut a, _) = pair(NONE);
    let mut packet = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::UDP, &[0; 8]);
    // No operation, then a timestamp option that runs past the end.
    packet.splice(20..20, [1, 68, 40, 5]);
    packet[0] = 0x46;
    packet[2..4].copy_from_slice(&32u16.to_be_bytes());
    packet[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..24], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let reason = a.refusal(&frame(MAC_A, MAC_B, EtherType::IPV4, &packet));
    assert_eq!(reason, Some(DropReason::IpMalformed));
    assert_eq!(a.net.counters().data.icmp_errors_sent, 1);
    let problem = only(a.sent());
    assert_eq!((&problem[34..36], problem[38]), (&[12, 0][..], 21), "type, code, pointer");
}

/// The unspecified address is only valid as the source of a host that looks for an address, which
/// broadcasts (RFC 1122 §3.2.1.3).
#[test]
fn the_unspecified_address_sends_to_nobody_in_particular() {
    let mut a = Host::a();
    for (dst, mac, taken) in [
        ("10.0.0.1", MAC_A, false),
        ("10.0.0.255", MacAddr::BROADCAST, false),
        ("255.255.255.255", MacAddr::BROADCAST, true),
    ] {
        let packet = ipv4_packet("0.0.0.0", dst, IpProtocol::UDP, &[0; 8]);
        let frame = frame(mac, MAC_B, EtherType::IPV4, &packet);
        assert_eq!(a.receive(&frame).is_some(), taken, "{dst}");
        let refused = a.net.take_dropped().map(|dropped| dropped.reason);
        assert_eq!(refused, (!taken).then_some(DropReason::Martian), "{dst}");
    }
}

#[test]
fn a_datagram_whose_rest_does_not_come_is_reported_to_its_sender() {
    for (to, time) in
        [("10.0.0.2", limits::REASSEMBLY_V4_TIME), ("fd00::2", limits::REASSEMBLY_V6_TIME)]
    {
        let (mut a, mut b) = pair(NONE);
        a.send_udp(to, 3000).unwrap();
        let first = a.sent().remove(0);
        assert!(b.receive(&first).is_none());
        b.pass(time);
        assert_eq!(b.drops(DropReason::FragmentTimeout), 1);
        a.now = b.now;
        let (received, _) = exchange(&mut a, &mut b);
        let Some(Received::IcmpError(error)) = received.into_iter().next() else {
            panic!("not an error")
        };
        assert_eq!(error.message, if ip(to).is_ipv4() { (11, 1) } else { (3, 1) });
        assert_eq!((error.src_port, error.dst_port), (1000, 2000));
    }
}

/// Creates the last 8 bytes of a datagram of maximum length, with a forged source.
fn last_fragment(src: &str, dst: &str, ident: u16) -> Vec<u8> {
    const LAST: u16 = 65_504;
    if ip(src).is_ipv4() {
        let mut packet = ipv4_packet(src, dst, IpProtocol::UDP, &[0; 8]);
        packet[4..6].copy_from_slice(&ident.to_be_bytes());
        packet[6..8].copy_from_slice(&(LAST / 8).to_be_bytes());
        packet[10..12].fill(0);
        let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..20], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        return frame(MAC_B, MAC_A, EtherType::IPV4, &packet);
    }
    let ([high, low], [a, b]) = (LAST.to_be_bytes(), ident.to_be_bytes());
    let payload = [IpProtocol::UDP.0, 0, high, low, 0, 0, a, b, 0, 0, 0, 0, 0, 0, 0, 0];
    let packet = ipv6_packet(src, dst, IpProtocol::FRAGMENT, 64, &payload);
    frame(MAC_B, MAC_A, EtherType::IPV6, &packet)
}

#[test]
fn fragments_in_a_hosts_name_do_not_silence_it() {
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (mut a, mut b) = pair(NONE);
        for count in [17, 3000] {
            for ident in 0..count {
                assert!(b.receive(&last_fragment(src, dst, ident)).is_none());
            }
            a.send_udp(dst, 64_000).unwrap();
            let (_, received) = exchange(&mut a, &mut b);
            assert!(verify_transport(&local(only(received))), "{count} before it");
        }
    }
}

#[test]
fn fragments_given_up_are_counted_by_the_limit() {
    let (_, mut b) = pair(NONE);
    let share = limits::REASSEMBLY_SOURCE_DATAGRAMS_MAX as u16;
    for ident in 0..share + 3 {
        b.receive(&last_fragment("10.0.0.1", "10.0.0.2", ident));
    }
    assert_eq!(
        (b.net.counters().data.reassembly_source_full, b.net.counters().data.reassembly_full),
        (3, 0)
    );
    for source in 0..limits::REASSEMBLY_DATAGRAMS_MAX as u16 {
        let [c, d] = source.to_be_bytes();
        b.receive(&last_fragment(&format!("192.0.{c}.{d}"), "10.0.0.2", 1));
    }
    let full = b.net.counters().data.reassembly_full;
    assert_eq!((b.net.counters().data.reassembly_source_full, full), (3, u64::from(share)));
    assert_eq!(b.drops(DropReason::FragmentLimit), 3 + full);
    b.pass(limits::REASSEMBLY_V4_TIME);
    assert_eq!(b.drops(DropReason::FragmentTimeout), limits::REASSEMBLY_DATAGRAMS_MAX as u64);
    // Send more fragments than a datagram may have.
    let mut packet = ipv4_packet("10.0.0.1", "10.0.0.2", IpProtocol::UDP, &[0; 8]);
    for n in 0..=limits::FRAGMENTS_MAX as u16 {
        packet[6..8].copy_from_slice(&(0x2000 + 2 * n).to_be_bytes());
        packet[10..12].fill(0);
        let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..20], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        b.receive(&frame(MAC_B, MAC_A, EtherType::IPV4, &packet));
    }
    assert_eq!(
        (b.net.counters().data.fragments_too_many, b.drops(DropReason::FragmentLimit)),
        (1, 4 + full)
    );
}

#[test]
fn overlapping_fragments_from_the_link_give_nothing() {
    let (mut a, mut b) = pair(NONE);
    a.send_udp("fd00::2", 3000).unwrap();
    let mut frames = a.sent();
    let mut overlap = frames[1].clone();
    let offset = u16::from_be_bytes([overlap[56], overlap[57]]) - 8;
    overlap[56..58].copy_from_slice(&offset.to_be_bytes());
    frames.insert(1, overlap);
    assert!(frames.iter().all(|frame| b.receive(frame).is_none()));
    assert_eq!(b.drops(DropReason::FragmentOverlap), 1);
}

#[test]
fn neighbour_discovery_in_fragments_is_ignored() {
    let mut a = Host::a();
    a.pass(Duration::from_secs(5));
    a.sent();
    let ends: (Ipv6Addr, Ipv6Addr) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    let solicit = Message::NeighborSolicit { target: ends.1, source_ll: Some(MAC_B) };
    let mut message = vec![0; ndp::MESSAGE_LEN_MAX];
    let len = solicit.emit(&mut message);
    message.truncate(len);
    icmpv6::fill_checksum(&mut message, ends.0, ends.1);
    let piece = |offset: u16, more: bool, bytes: &[u8]| {
        let field = (offset | u16::from(more)).to_be_bytes();
        let mut payload = vec![IpProtocol::ICMPV6.0, 0, field[0], field[1], 0, 0, 0, 9];
        payload.extend_from_slice(bytes);
        let packet = ipv6_packet("fd00::2", "fd00::1", IpProtocol::FRAGMENT, 255, &payload);
        frame(MAC_A, MAC_B, EtherType::IPV6, &packet)
    };
    let (first, rest) = message.split_at(24);
    assert!(a.receive(&piece(0, true, first)).is_none());
    assert_eq!(a.refusal(&piece(24, false, rest)), Some(DropReason::NeighborMalformed));
    assert_eq!(a.refusal(&piece(0, false, &message)), Some(DropReason::NeighborMalformed));
    assert!(a.sent().is_empty() && a.net.neighbors().next().is_none());
    let whole = ipv6_packet("fd00::2", "fd00::1", IpProtocol::ICMPV6, 255, &message);
    assert!(a.receive(&frame(MAC_A, MAC_B, EtherType::IPV6, &whole)).is_none());
    assert_eq!(a.sent().len(), 1);
}

#[test]
fn a_full_output_refuses_and_counts() {
    let (mut a, _) = pair(NONE);
    let refused =
        (0..limits::OUTPUT_PACKETS_MAX + 3).filter(|_| a.send_udp("10.0.0.2", 1).is_err());
    assert_eq!(refused.count(), 3);
    assert_eq!(a.drops(DropReason::OutputFull), 3);
    assert_eq!(
        (a.net.counters().data.output_packets_full, a.net.counters().data.output_bytes_full),
        (3, 0)
    );
    let route = a.net.route(a.now, None, ip("::1"), None).unwrap();
    for n in 0..limits::LOOPBACK_LEN_MAX + 1 {
        let packet = udp_packet(&mut a.pool, 1);
        let sent = a.send(&route, IpProtocol::UDP, false, packet, 6);
        assert_eq!(sent.is_err(), n == limits::LOOPBACK_LEN_MAX);
    }
    assert_eq!(a.drops(DropReason::LoopbackFull), 1);
}

/// The limit in bytes is reached by few packets, and includes the headers of each segment.
#[test]
fn a_full_output_counts_bytes_as_they_will_be_sent() {
    let (mut a, _) = pair(ALL);
    let route = a.net.route(a.now, None, ip("10.0.0.2"), None).unwrap();
    let mut sent = 0;
    loop {
        let packet = tcp_packet(&mut a.pool, &pattern(60_000), 1000, 60_000, Protocol::Tcp4);
        if a.send(&route, IpProtocol::TCP, true, packet, 16).is_err() {
            break;
        }
        sent += 1;
    }
    let one = 60 * (14 + 20 + 20) + 60_000;
    assert_eq!(sent, limits::OUTPUT_BYTES_MAX.div_ceil(one));
    assert_eq!(a.net.output(ETH).load(), Load { packets: sent * 60, bytes: sent * one });
    assert_eq!(
        (a.net.counters().data.output_packets_full, a.net.counters().data.output_bytes_full),
        (0, 1)
    );
}

/// Control packets have a separate reserve, which no flood of requests exceeds.
#[test]
fn a_full_output_has_a_reserve_which_floods_fill_and_do_not_pass() {
    let (mut a, _) = pair(NONE);
    a.pass(Duration::from_secs(5));
    a.sent();
    while a.send_udp("10.0.0.2", 1).is_ok() {}
    assert_eq!(
        (a.net.output(ETH).len(), a.drops(DropReason::OutputFull)),
        (limits::OUTPUT_PACKETS_MAX, 1)
    );
    let request = arp::ArpPacket {
        op: arp::ArpOp::Request,
        sender_mac: MAC_B,
        sender_ip: [10, 0, 0, 2].into(),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: [10, 0, 0, 1].into(),
    };
    let mut asked = [0; arp::PACKET_LEN];
    request.emit(&mut asked);
    let ends: (Ipv6Addr, Ipv6Addr) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    let mut solicit = vec![0; ndp::MESSAGE_LEN_MAX];
    let len =
        Message::NeighborSolicit { target: ends.1, source_ll: Some(MAC_B) }.emit(&mut solicit);
    solicit.truncate(len);
    icmpv6::fill_checksum(&mut solicit, ends.0, ends.1);
    let solicit = ipv6_packet("fd00::2", "fd00::1", IpProtocol::ICMPV6, 255, &solicit);
    let mut ping = vec![8, 0, 0, 0, 0, 1, 0, 1];
    icmpv4::fill_checksum(&mut ping);
    let ping = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::ICMP, &ping);
    let flood = |a: &mut Host, ethertype, packet: &[u8], answered: usize| {
        let (before, dropped) = (a.net.output(ETH).len(), a.drops(DropReason::OutputFull));
        for _ in 0..answered + 10 {
            assert!(a.receive(&frame(MAC_A, MAC_B, ethertype, packet)).is_none());
        }
        assert_eq!(a.net.output(ETH).len(), before + answered);
        assert_eq!(a.drops(DropReason::OutputFull), dropped + 10);
    };
    // An echo reply carries data of a program, so it must not use the reserve. A TCP
    // acknowledgement may, because the peer waits for it.
    flood(&mut a, EtherType::IPV4, &ping, 0);
    let route = a.net.route(a.now, None, ip("10.0.0.2"), None).unwrap();
    let mut ack = tcp_packet(&mut a.pool, &[], 1000, 0, Protocol::Tcp4);
    ack.meta.segmentation = None;
    a.send(&route, IpProtocol::TCP, true, ack, 16).unwrap();
    flood(&mut a, EtherType::ARP, &asked, limits::OUTPUT_RESERVE_PACKETS - 1);
    flood(&mut a, EtherType::IPV6, &solicit, 0);
    assert_eq!(a.net.counters().data.output_reserve_used, limits::OUTPUT_RESERVE_PACKETS as u64);
    assert_eq!(a.net.counters().data.output_reserve_full, 20);
    // Group reports, solicitations and announcements do not exceed the reserve, either.
    a.net.join_group(a.now, ETH, ip("239.1.2.3"), None);
    a.net.join_group(a.now, ETH, ip("ff02::77"), None);
    a.net.add_address(a.now, ETH, prefix("10.0.0.99/24"));
    a.send_udp("10.0.0.77", 1).unwrap_err();
    a.pass(Duration::from_secs(5));
    let most = limits::OUTPUT_PACKETS_MAX + limits::OUTPUT_RESERVE_PACKETS;
    assert_eq!(a.net.output(ETH).len(), most);
    assert_eq!(a.sent().len(), most);
    assert!(a.receive(&frame(MAC_A, MAC_B, EtherType::ARP, &asked)).is_none());
    assert_eq!(a.sent().len(), 1);
}

#[test]
fn traced_drops_are_bounded() {
    let mut a = Host::a();
    for _ in 0..limits::DROPPED_MAX + 10 {
        assert!(a.receive(&[0; 5]).is_none());
    }
    assert_eq!(std::iter::from_fn(|| a.net.take_dropped()).count(), limits::DROPPED_MAX);
    assert_eq!(a.drops(DropReason::FrameMalformed), limits::DROPPED_MAX as u64 + 10);
}

#[test]
fn routes_say_why_there_is_none() {
    let a = Host::a();
    let route = |src: Option<&str>, dst: &str, iface: Option<u16>| {
        let found = a.net.route(a.now, src.map(ip), ip(dst), iface.map(IfaceId));
        found.map(|route| (route.iface.0, route.src, route.broadcast))
    };
    assert_eq!(route(None, "8.8.8.8", None), Err(RouteError::NoRoute));
    assert_eq!(route(None, "0.0.0.0", None), Err(RouteError::BadDestination));
    assert_eq!(route(Some("fd00::1"), "10.0.0.2", None), Err(RouteError::NoSource));
    assert_eq!(route(None, "10.0.0.2", Some(9)), Err(RouteError::NoInterface));
    assert_eq!(route(None, "10.0.0.2", None), Ok((1, ip("10.0.0.1"), false)));
    assert_eq!(route(None, "10.0.0.255", None), Ok((1, ip("10.0.0.1"), true)));
    assert_eq!(route(None, "255.255.255.255", None), Ok((1, ip("10.0.0.1"), true)));
    assert_eq!(route(None, "224.0.0.251", None), Ok((1, ip("10.0.0.1"), false)));
    assert_eq!(route(Some("1.2.3.4"), "10.0.0.2", None), Ok((1, ip("1.2.3.4"), false)));
}

#[test]
fn removed_addresses_are_strangers() {
    let mut a = Host::a();
    assert!(a.net.is_local(ip("10.0.0.1")) && a.net.is_local(ip("127.9.9.9")));
    assert!(a.net.remove_address(a.now, ETH, ip("10.0.0.1")));
    assert!(!a.net.remove_address(a.now, ETH, ip("10.0.0.1")));
    assert!(!a.net.is_local(ip("10.0.0.1")));
    assert_eq!(a.net.route(a.now, None, ip("10.0.0.2"), None), Err(RouteError::NoRoute));
    assert_eq!(a.refusal(&from_b_v4("10.0.0.2", "10.0.0.1")), Some(DropReason::NotLocal));
}

/// Returns the neighbour discovery messages that a host sent: source, destination, message.
fn discovery(host: &mut Host) -> Vec<(Ipv6Addr, Ipv6Addr, Message)> {
    let frames = host.sent();
    let messages = frames.iter().filter_map(|frame| {
        let (header, range) = ipv6::Header::parse(frame.get(14..)?).ok()?;
        if header.next_header != IpProtocol::ICMPV6 {
            return None;
        }
        let bytes = &frame[14..][range];
        assert!(icmpv6::checksum_ok(bytes, header.src, header.dst));
        let envelope =
            ndp::Envelope { src: header.src, dst: header.dst, hop_limit: header.hop_limit };
        let (message, _) = Message::parse(bytes, &envelope).ok()?;
        Some((header.src, header.dst, message))
    });
    messages.collect()
}

const ROUTER: &str = "fe80::ff";
const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xff]);

fn from_router(dst: &str, message: &Message, options: &[PrefixInfo]) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    let mut len = message.emit(&mut bytes);
    for option in options {
        len += option.emit(&mut bytes[len..]);
    }
    bytes.truncate(len);
    icmpv6::fill_checksum(&mut bytes, ROUTER.parse().unwrap(), dst.parse().unwrap());
    let packet = ipv6_packet(ROUTER, dst, IpProtocol::ICMPV6, 255, &bytes);
    let mac = MacAddr::from_multicast_v6(dst.parse().unwrap());
    frame(mac, ROUTER_MAC, EtherType::IPV6, &packet)
}

fn advert(lifetime_s: u16) -> Message {
    Message::RouterAdvert(RouterAdvert {
        hop_limit: 63,
        managed: false,
        other: false,
        preference: ndp::Preference::Medium,
        lifetime_s,
        reachable_ms: 0,
        retrans_ms: 0,
        source_ll: Some(ROUTER_MAC),
        mtu: Some(1400),
    })
}

fn announced(valid_s: u32, preferred_s: u32) -> PrefixInfo {
    PrefixInfo {
        prefix: "2001:db8::".parse().unwrap(),
        len: 64,
        on_link: true,
        autonomous: true,
        valid_s,
        preferred_s,
    }
}

fn global(host: &Host) -> Option<Address> {
    let addresses = host.net.interface(IfaceId(1)).unwrap().addresses();
    addresses.iter().find(|a| prefix("2001:db8::/64").contains(a.addr())).copied()
}

fn slaac_host() -> Host {
    let mut host = Host::new(MAC_A, &[], |config| config.slaac = true);
    host.pass(Duration::from_secs(3));
    host
}

#[test]
fn a_host_makes_its_addresses_and_finds_its_router() {
    let mut host = Host::new(MAC_A, &[], |config| config.slaac = true);
    let link_local = host.net.interface(IfaceId(1)).unwrap().addresses()[0];
    assert!(addr::is_link_local(link_local.addr()));
    assert_eq!(link_local.state, AddressState::Tentative);
    assert!(!host.net.is_local(link_local.addr()));
    host.pass(Duration::from_secs(3));
    assert!(host.net.is_local(link_local.addr()));
    let messages = discovery(&mut host);
    let IpAddr::V6(own) = link_local.addr() else { panic!("IPv6") };
    assert!(messages.iter().any(|(src, dst, message)| {
        src.is_unspecified()
            && *dst == addr::solicited_node(own)
            && *message == Message::NeighborSolicit { target: own, source_ll: None }
    }));
    assert!(messages.iter().any(|(_, dst, message)| {
        *dst == addr::ALL_ROUTERS && matches!(message, Message::RouterSolicit { .. })
    }));

    host.receive(&from_router("ff02::1", &advert(1800), &[announced(7200, 3600)]));
    assert_eq!(global(&host).unwrap().state, AddressState::Tentative);
    host.pass(Duration::from_secs(3));
    let address = global(&host).unwrap();
    assert_eq!(address.state, AddressState::Preferred);
    assert!(!discovery(&mut host).iter().any(|m| matches!(m.2, Message::RouterSolicit { .. })));

    let route = host.net.route(host.now, None, ip("2001:4860::1"), None).unwrap();
    assert_eq!((route.next_hop, route.src, route.mtu), (ip(ROUTER), address.addr(), 1400));
    let route = host.net.route(host.now, None, ip("2001:db8::77"), None).unwrap();
    assert_eq!(route.next_hop, ip("2001:db8::77"));
    // The router advertisement contained the router's MAC address and the hop limit.
    let route = host.net.route(host.now, None, ip("2001:4860::1"), None).unwrap();
    let packet = udp_packet(&mut host.pool, 5);
    host.send(&route, IpProtocol::UDP, true, packet, 6).unwrap();
    let sent = only(host.sent());
    assert_eq!((&sent[..6], sent[21]), (&ROUTER_MAC.0[..], 63));
}

#[test]
fn a_duplicate_address_is_replaced_by_another() {
    let mut host = slaac_host();
    host.sent();
    let mut seen = Vec::new();
    host.receive(&from_router("ff02::1", &advert(1800), &[announced(7200, 3600)]));
    for _ in 0..=limits::DAD_RETRIES_MAX {
        let IpAddr::V6(target) = global(&host).unwrap().addr() else { panic!("IPv6") };
        assert!(!seen.contains(&target));
        seen.push(target);
        let taken = Message::NeighborAdvert {
            router: false,
            solicited: false,
            override_: true,
            target,
            target_ll: Some(ROUTER_MAC),
        };
        host.receive(&from_router("ff02::1", &taken, &[]));
    }
    assert_eq!(global(&host), None);
    assert_eq!(host.net.counters().control.duplicate_addresses, 4);
}

#[test]
fn somebody_detecting_the_same_address_at_the_same_time_is_a_duplicate() {
    let mut host = Host::a();
    let target: Ipv6Addr = "fd00::1".parse().unwrap();
    let mut bytes = vec![0; 24];
    Message::NeighborSolicit { target, source_ll: None }.emit(&mut bytes);
    let dst = addr::solicited_node(target);
    icmpv6::fill_checksum(&mut bytes, Ipv6Addr::UNSPECIFIED, dst);
    let packet = ipv6_packet("::", &dst.to_string(), IpProtocol::ICMPV6, 255, &bytes);
    let question = frame(MacAddr::from_multicast_v6(dst), MAC_B, EtherType::IPV6, &packet);
    assert!(host.net.is_local(ip("fd00::1")));
    host.receive(&question);
    assert!(!host.net.is_local(ip("fd00::1")));

    // An address is defended after its detection has finished.
    let mut host = Host::a();
    host.pass(Duration::from_secs(3));
    host.sent();
    host.receive(&question);
    assert!(host.net.is_local(ip("fd00::1")));
    let (_, dst, message) = only(discovery(&mut host));
    assert_eq!(dst, addr::ALL_NODES);
    assert!(matches!(message, Message::NeighborAdvert { solicited: false, override_: true, .. }));
}

/// Creates a neighbour advertisement of host b for `fd00::1`, sent from that address.
fn claim_of_b() -> Vec<u8> {
    let target: Ipv6Addr = "fd00::1".parse().unwrap();
    let claim = Message::NeighborAdvert {
        router: false,
        solicited: false,
        override_: true,
        target,
        target_ll: Some(MAC_B),
    };
    let mut bytes = vec![0; ndp::MESSAGE_LEN_MAX];
    let len = claim.emit(&mut bytes);
    bytes.truncate(len);
    icmpv6::fill_checksum(&mut bytes, target, addr::ALL_NODES);
    let packet = ipv6_packet("fd00::1", "ff02::1", IpProtocol::ICMPV6, 255, &bytes);
    frame(MacAddr::from_multicast_v6(addr::ALL_NODES), MAC_B, EtherType::IPV6, &packet)
}

/// Linux defends an address this way; RFC 4861 section 7.2.4 does not specify the source.
#[test]
fn a_defender_may_advertise_from_the_tentative_address() {
    let mut host = Host::a();
    let generation = host.net.route_generation();
    assert!(host.receive(&claim_of_b()).is_none());
    assert_eq!(host.drops(DropReason::Martian), 0);
    let own = host
        .net
        .interface(IfaceId(1))
        .unwrap()
        .addresses()
        .iter()
        .find(|it| it.addr() == ip("fd00::1"));
    assert_eq!(own.map(|own| own.state), Some(AddressState::DadFailed));
    assert!(!host.net.is_local(ip("fd00::1")) && host.net.route_generation() > generation);
    let conflict =
        Conflict { iface: ETH, addr: ip("fd00::1"), mac: Some(MAC_B), is_given_up: true };
    assert_eq!([host.net.take_conflict(), host.net.take_conflict()], [Some(conflict), None]);
    // The address stays unused, and the host that has it is an ordinary neighbour.
    host.pass(Duration::from_secs(10));
    assert!(!host.net.is_local(ip("fd00::1")));
    host.sent();
    let question = Message::NeighborSolicit {
        target: "fd00::1".parse().unwrap(),
        source_ll: Some(ROUTER_MAC),
    };
    host.receive(&from_router("ff02::1:ff00:1", &question, &[]));
    assert_eq!(discovery(&mut host), []);

    // An established address is kept.
    let mut host = Host::a().settled();
    assert_eq!(host.refusal(&claim_of_b()), Some(DropReason::Martian));
    assert!(host.net.is_local(ip("fd00::1")));
    assert_eq!(host.net.take_conflict(), None);
}

#[test]
fn another_host_with_the_same_ipv4_address_is_told_of_once() {
    let mut host = Host::a().settled();
    let mut bytes = [0; arp::PACKET_LEN];
    let defence = arp::ArpPacket {
        op: arp::ArpOp::Reply,
        sender_mac: MAC_B,
        sender_ip: [10, 0, 0, 1].into(),
        target_mac: MAC_A,
        target_ip: [0, 0, 0, 0].into(),
    };
    defence.emit(&mut bytes);
    for _ in 0..3 {
        let claim = frame(MAC_A, MAC_B, EtherType::ARP, &bytes);
        assert_eq!(host.refusal(&claim), Some(DropReason::Martian));
    }
    let conflict =
        Conflict { iface: ETH, addr: ip("10.0.0.1"), mac: Some(MAC_B), is_given_up: false };
    assert_eq!([host.net.take_conflict(), host.net.take_conflict()], [Some(conflict), None]);
    assert_eq!(host.net.counters().control.address_conflicts, 3);
    assert!(host.net.is_local(ip("10.0.0.1")));
}

#[test]
fn lifetimes_end_and_two_hours_are_safe() {
    let hour = Duration::from_secs(3600);
    let mut host = slaac_host();
    host.receive(&from_router("ff02::1", &advert(1800), &[announced(4 * 3600, 3600)]));
    host.pass(hour / 2);
    assert_eq!(host.net.route(host.now, None, ip("2001:4860::1"), None), Err(RouteError::NoRoute));
    host.pass(hour / 2);
    assert_eq!(global(&host).unwrap().state, AddressState::Deprecated);
    // An advertisement cannot remove the address: two hours remain.
    host.receive(&from_router("ff02::1", &advert(0), &[announced(1, 1)]));
    assert_eq!(global(&host).unwrap().valid_until, Some(host.now + hour * 2));
    host.receive(&from_router("ff02::1", &advert(0), &[announced(2, 1)]));
    assert_eq!(global(&host).unwrap().valid_until, Some(host.now + hour * 2));
    host.pass(hour * 2);
    assert_eq!(global(&host), None);
}

#[test]
fn router_advertisements_make_no_more_than_the_limits() {
    let mut host = slaac_host();
    for n in 0..100u128 {
        let network = Ipv6Addr::from_bits(0x2001_0db8 << 96 | n << 64);
        let info = PrefixInfo { prefix: network, ..announced(7200, 3600) };
        host.receive(&from_router("ff02::1", &advert(1800), &[info]));
    }
    assert_eq!(host.net.interface(IfaceId(1)).unwrap().addresses().len(), limits::ADDRESSES_MAX);
    let learnt = host.net.routes().filter(|route| route.origin == Origin::Router).count();
    assert_eq!(learnt, limits::ROUTER_ROUTES_MAX);
}

#[test]
fn groups_are_reported_joined_and_queried() {
    let mut a = Host::a();
    a.pass(Duration::from_secs(3));
    a.sent();
    let group = ip("239.1.2.3");
    assert!(a.net.join_group(a.now, ETH, group, None));
    assert!(!a.net.join_group(a.now, ETH, ip("10.0.0.1"), None));
    a.pass(Duration::from_secs(3));
    let reports = a.sent();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0][30..34], [224, 0, 0, 22]);
    assert_eq!(reports[0][38], 0x22);
    assert!(a.receive(&from_b_v4("10.0.0.2", "239.1.2.3")).is_some());

    let mut query = [0x11, 20, 0, 0, 0, 0, 0, 0];
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&query, 0));
    query[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = ipv4_packet("10.0.0.2", "224.0.0.1", IpProtocol::IGMP, &query);
    packet[8] = 1;
    packet[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..20], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    assert!(a.receive(&frame(MAC_A, MAC_B, EtherType::IPV4, &packet)).is_none());
    a.pass(Duration::from_secs(2));
    let answer = only(a.sent());
    assert_eq!((answer[38], &answer[30..34]), (0x16, &[239, 1, 2, 3][..]));

    // The querier uses version 2, so the host leaves by a message to all routers.
    assert!(a.net.leave_group(a.now, ETH, group, None));
    a.pass(Duration::from_secs(1));
    let leaves: Vec<_> = a.sent().iter().map(|sent| (sent[38], sent[30..34].to_vec())).collect();
    assert_eq!(leaves, [(0x17, vec![224, 0, 0, 2]), (0x17, vec![224, 0, 0, 2])]);
    assert_eq!(a.refusal(&from_b_v4("10.0.0.2", "239.1.2.3")), Some(DropReason::NotJoined));
}

#[test]
fn solicited_node_groups_are_reported() {
    let mut a = Host::new(MAC_A, &["fd00::1:2345/64"], |_| {});
    a.pass(Duration::from_secs(3));
    let group: Ipv6Addr = "ff02::1:ff01:2345".parse().unwrap();
    let reported = a.sent().iter().any(|frame| {
        frame.get(12..14) == Some(&[0x86, 0xdd])
            && frame.windows(16).any(|w| w == group.octets())
            && frame.get(62) == Some(&towpath_wire::mld::REPORT_V2)
    });
    assert!(reported);
}

#[test]
fn an_ip_link_needs_no_neighbours() {
    let change = |config: &mut InterfaceConfig| config.link = LinkType::Ip;
    let mut a = Host::new(MAC_A, &["10.0.0.1/24", "fd00::1/64"], change);
    a.send_udp("10.0.0.2", 3).unwrap();
    a.send_udp("fd00::2", 3).unwrap();
    let sent = a.sent();
    assert_eq!((sent[0][0] >> 4, sent[1][0] >> 4), (4, 6));
    let packet = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::UDP, &[0; 8]);
    assert_eq!(local(a.receive(&packet).unwrap()).ip_offset, 0);
    assert_eq!(a.net.next_timeout(), None);
}

#[test]
fn warm_paths_take_no_new_buffers() {
    let (mut a, mut b) = pair(ALL);
    let allocated = |a: &Host, b: &Host| a.pool.allocated() + b.pool.allocated();
    let mut before = 0;
    for round in 0..100 {
        a.send_udp("10.0.0.2", 100).unwrap();
        let (_, received) = exchange(&mut a, &mut b);
        a.pool.give(local(only(received)).packet);
        if round == 10 {
            before = allocated(&a, &b);
        }
    }
    assert_eq!(allocated(&a, &b), before);
}

#[test]
fn the_same_keys_give_the_same_run() {
    let run = || {
        let mut host = slaac_host();
        host.receive(&from_router("ff02::1", &advert(1800), &[announced(7200, 3600)]));
        host.pass(Duration::from_secs(10));
        host.sent()
    };
    assert_eq!(run(), run());
}

/// Generates frames that pass the first checks: valid lengths and header checksum, random bytes.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop::sample::select(vec![0u8, 1, 2, 6, 17, 43, 44, 58, 59, 60, 99]);
    let body = prop::collection::vec(any::<u8>(), 0..200);
    let kind = prop::sample::select(vec![
        0u8, 1, 2, 3, 4, 5, 8, 0x11, 128, 129, 130, 133, 134, 135, 136, 137,
    ]);
    let ends = prop::sample::select(vec!["fe80::ff", "fd00::2", "::"]);
    let to = prop::sample::select(vec!["fd00::1", "ff02::1", "ff02::1:ff00:1"]);
    let to_v4 = prop::sample::select(vec![
        "10.0.0.1",
        "10.0.0.255",
        "255.255.255.255",
        "224.0.0.1",
        "239.1.2.3",
        "10.0.0.9",
        "127.0.0.1",
    ]);
    let to = (to, to_v4);
    (any::<bool>(), protocol, body, kind, any::<[u8; 4]>(), (ends, to, any::<bool>()))
        .prop_map(|(v4, protocol, mut body, kind, noise, (src, (dst, dst_v4), near))| {
            let protocol = IpProtocol(protocol);
            if let Some(first) = body.first_mut() {
                *first = kind;
            }
            if let Some(code) = body.get_mut(1) {
                *code &= noise[0];
            }
            if v4 {
                if body.len() >= 8 && protocol == IpProtocol::ICMP {
                    icmpv4::fill_checksum(&mut body);
                }
                if body.len() >= 8 && protocol == IpProtocol::IGMP {
                    body[2..4].fill(0);
                    let sum = towpath_wire::checksum::sum(&body, 0);
                    body[2..4].copy_from_slice(&towpath_wire::checksum::finish(sum).to_be_bytes());
                }
                let mut packet = ipv4_packet("10.0.0.2", dst_v4, protocol, &body);
                packet[8] = if near { 1 } else { 64 };
                packet[6..8].copy_from_slice(&[noise[1] & 0x20, noise[2] & 3]);
                packet[10..12].fill(0);
                let sum =
                    towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..20], 0));
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
                return (EtherType::IPV4, packet);
            }
            if body.len() >= 8 && protocol == IpProtocol::ICMPV6 {
                icmpv6::fill_checksum(&mut body, src.parse().unwrap(), dst.parse().unwrap());
            }
            let hop_limit = if near { 255 } else { 1 };
            (EtherType::IPV6, ipv6_packet(src, dst, protocol, hop_limit, &body))
        })
        .prop_map(|(ethertype, packet)| frame(MAC_A, MAC_B, ethertype, &packet))
}

/// Receives frames, and lets time pass. Checks that the operator's configuration stays, and that no
/// table exceeds its limit.
fn survive(link: LinkType, any_address: bool, frames: &[Vec<u8>]) {
    let mut host = Host::new(MAC_A, &["10.0.0.1/24", "fd00::1/64"], |config| {
        config.link = link;
        config.slaac = true;
        config.any_address = any_address;
    });
    let mut batch: Batch = frames.iter().map(|bytes| host.packet(bytes)).collect();
    let merged = coalesce(link, &mut batch, &mut host.pool);
    assert_eq!(batch.len() + merged, frames.len());
    for bytes in frames {
        let skip = if link == LinkType::Ip { 14.min(bytes.len()) } else { 0 };
        match host.receive(&bytes[skip..]) {
            Some(Received::Local(local)) => {
                assert!(local.offset + local.len == local.packet.len());
                verify_transport(&local);
                host.net.unreachable(host.now, &local, Unreachable::Protocol, &mut host.pool);
            }
            Some(Received::EchoReply(echo) | Received::EchoRequest(echo)) => {
                assert!(echo.data_offset + echo.data_len <= echo.local.packet.linear().len());
            }
            Some(Received::IcmpError(error)) => {
                host.net.set_path_mtu(host.now, (error.src, error.dst), None, 1);
            }
            None => {}
        }
        host.pass(Duration::from_millis(700));
    }
    host.pass(Duration::from_secs(100));
    let counted = host.net.counters().data.iter().find(|(name, _)| *name == "received").unwrap().1;
    assert_eq!(counted, frames.len() as u64);
    assert!(host.net.is_local(ip("10.0.0.1")));
    let route = host.net.route(host.now, None, ip("10.0.0.2"), None).unwrap();
    assert_eq!((route.iface, route.next_hop, route.src), (ETH, ip("10.0.0.2"), ip("10.0.0.1")));
    let addresses = host.net.interface(IfaceId(1)).unwrap().addresses();
    assert!(addresses.len() <= limits::ADDRESSES_MAX);
    let learnt = host.net.routes().filter(|route| route.origin == Origin::Router).count();
    let routers = limits::ROUTERS_MAX * limits::ROUTER_ROUTES_MAX;
    assert!(learnt <= routers + limits::ROUTER_PREFIXES_MAX);
    assert!(host.net.neighbors().count() <= frames.len());
    // No fragment is held any more.
    assert_eq!(host.net.data.reassembly.next_timeout(), Instant::FAR);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
        any_address: bool,
    ) {
        survive(LinkType::Ethernet, any_address, &frames);
        survive(LinkType::Ip, any_address, &frames);
    }

    #[test]
    fn plausible_packets_never_panic(
        frames in prop::collection::vec(plausible(), 1..12),
        any_address: bool,
    ) {
        survive(LinkType::Ethernet, any_address, &frames);
        survive(LinkType::Ip, any_address, &frames);
    }

    #[test]
    fn fragments_in_any_order_make_the_datagram(
        len in 1473usize..20_000,
        v6: bool,
        seed: u64,
    ) {
        let (mut a, mut b) = pair(NONE);
        a.send_udp(if v6 { "fd00::2" } else { "10.0.0.2" }, len).unwrap();
        let mut frames = a.sent();
        let mut random = hash::Random::new(seed);
        for n in (1..frames.len()).rev() {
            frames.swap(n, random.below(n as u64 + 1) as usize);
        }
        let received: Vec<_> = frames.iter().filter_map(|frame| b.receive(frame)).collect();
        let local = local(only(received));
        prop_assert!(verify_transport(&local));
        prop_assert_eq!(&local.packet.linear()[local.offset + 8..], &pattern(len)[..]);
    }
}

#[test]
fn loopback_is_the_first_interface() {
    let a = Host::a();
    let lo = &a.net.interface(IfaceId::LOOPBACK).unwrap();
    assert_eq!((lo.name(), lo.id()), ("lo", IfaceId::LOOPBACK));
    assert_eq!(lo.addresses()[0].addr(), IpAddr::V4(Ipv4Addr::LOCALHOST));
}
