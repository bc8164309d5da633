//! Tests of a tracker that translates addresses and ports, and translates the answers back.

use core::net::SocketAddr;

use towpath_filter::{Action, Fields, Hook, Hooks};
use towpath_wire::checksum;

use super::forward::{TUN, introduce, router_with};
use super::*;

/// Port forward: packets to one socket address go to another one.
#[derive(Debug, Clone, Copy)]
struct PortForward {
    from: SocketAddr,
    to: SocketAddr,
    hooks: Hooks,
}

impl Tracker for PortForward {
    fn hooks(&self) -> Hooks {
        self.hooks
    }

    fn on_packet(&mut self, _now: Instant, packet: &mut HookPacket<'_>) -> Action {
        let &Fields { hook, src, dst, ports: Some((src_port, dst_port)), .. } = packet.fields()
        else {
            return Action::Accept;
        };
        let is_first = matches!(hook, Hook::Prerouting | Hook::Output);
        if is_first && (dst, dst_port) == (self.from.ip(), self.from.port()) {
            packet.set_dst(self.to.ip());
            assert!(packet.set_ports(src_port, self.to.port()));
        }
        if hook == Hook::Postrouting && (src, src_port) == (self.to.ip(), self.to.port()) {
            packet.set_src(self.from.ip());
            assert!(packet.set_ports(self.from.port(), dst_port));
        }
        Action::Accept
    }
}

const ROUTED: [Hook; 2] = [Hook::Prerouting, Hook::Postrouting];

/// Creates a router that translates the destination `from` to `to`, at these hooks.
fn router_to(from: &str, to: &str, hooks: &[Hook], offloads: Offloads) -> Host {
    let mut router = router_with(Forwarding::default(), offloads);
    let hooks = hooks.iter().fold(Hooks::NONE, |all, hook| all.with(*hook));
    let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
    router.net.set_tracker(Some(Box::new(PortForward { from, to, hooks })));
    router
}

/// State of the checksum of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    Whole,
    /// The checksum is left to a device: the field has the sum of the pseudo-header.
    Pseudo,
    /// No checksum, as UDP over IPv4 allows.
    Zero,
}

/// An IP packet between these ends, with the payload [`pattern`].
fn packet_of(
    protocol: IpProtocol,
    ends: [SocketAddr; 2],
    len: usize,
    ttl: u8,
    sum: Sum,
) -> Vec<u8> {
    let [src, dst] = ends;
    let (header_len, at) = if protocol == IpProtocol::TCP { (20, 16) } else { (8, 6) };
    let mut transport = vec![0; header_len];
    transport[..2].copy_from_slice(&src.port().to_be_bytes());
    transport[2..4].copy_from_slice(&dst.port().to_be_bytes());
    if protocol == IpProtocol::TCP {
        (transport[12], transport[13]) = (5 << 4, 0x10);
    } else {
        transport[4..6].copy_from_slice(&((8 + len) as u16).to_be_bytes());
    }
    transport.extend(pattern(len));
    let pseudo = pseudo_of(protocol, ends, transport.len());
    let field = match sum {
        Sum::Whole => checksum::finish(checksum::sum(&transport, pseudo)),
        Sum::Pseudo => checksum::fold(pseudo),
        Sum::Zero => 0,
    };
    transport[at..at + 2].copy_from_slice(&field.to_be_bytes());
    let (src, dst) = (src.ip().to_string(), dst.ip().to_string());
    if src.contains(':') {
        return ipv6_packet(&src, &dst, protocol, ttl, &transport);
    }
    let mut packet = ipv4_packet(&src, &dst, protocol, &transport);
    packet[8] = ttl;
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&packet[..20], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn pseudo_of(protocol: IpProtocol, ends: [SocketAddr; 2], len: usize) -> u64 {
    match ends.map(|end| end.ip()) {
        [IpAddr::V4(src), IpAddr::V4(dst)] => checksum::pseudo_v4(src, dst, protocol, len as u16),
        [IpAddr::V6(src), IpAddr::V6(dst)] => checksum::pseudo_v6(src, dst, protocol, len as u32),
        _ => unreachable!(),
    }
}

/// Passes an IP packet to the router, as received from the device of `iface`.
fn give(router: &mut Host, iface: IfaceId, bytes: &[u8], meta: towpath_pool::Meta) {
    let mut packet = match iface {
        TUN => router.packet(bytes),
        _ => {
            let ethertype = if bytes[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
            router.packet(&frame(MAC_A, MAC_B, ethertype, bytes))
        }
    };
    packet.meta = meta;
    assert!(router.net.receive(router.now, iface, packet, &mut router.pool).is_none());
}

fn end(s: &str) -> SocketAddr {
    s.parse().unwrap()
}

/// Addresses of the client, of the translated service, and of the server.
const CASES: [[&str; 3]; 2] = [
    ["10.0.0.2:4000", "10.0.0.1:8080", "192.0.2.9:80"],
    ["[fd00::2]:4000", "[fd00::1]:8080", "[2001:db8::9]:80"],
];

#[test]
fn translates_packets_and_their_answers() {
    for ([client, known, server], protocol) in
        CASES.iter().flat_map(|case| [(case, IpProtocol::TCP), (case, IpProtocol::UDP)])
    {
        let mut router = router_to(known, server, &ROUTED, ALL);
        let [client, known, server] = [client, known, server].map(|it| end(it));
        let ip_len = if client.is_ipv4() { 20 } else { 40 };
        for sum in [Sum::Whole, Sum::Pseudo, Sum::Zero] {
            if sum == Sum::Zero && (protocol == IpProtocol::TCP || client.is_ipv6()) {
                continue;
            }
            let offset = if protocol == IpProtocol::TCP { 16 } else { 6 };
            let meta = |start| {
                let partial = Checksum::Partial { start, offset };
                let checksum = if sum == Sum::Pseudo { partial } else { Checksum::Unknown };
                towpath_pool::Meta { checksum, ..Default::default() }
            };
            let packet = |ends, ttl| packet_of(protocol, ends, 333, ttl, sum);
            give(&mut router, ETH, &packet([client, known], 9), meta(14 + ip_len));
            let left = only(router.out());
            assert_eq!(bytes_of(&left), packet([client, server], 8), "{sum:?}");
            assert_eq!(left.meta.checksum, meta(ip_len).checksum);

            give(&mut router, TUN, &packet([server, client], 9), meta(ip_len));
            let left = only(router.take_output().into_iter().collect());
            assert_eq!(bytes_of(&left)[14..], packet([known, client], 8), "{sum:?}");
            assert_eq!(left.meta.checksum, meta(14 + ip_len).checksum);
        }
    }
}

/// Packets are segmented after the hooks, so each segment has the new addresses and its own
/// checksum.
#[test]
fn translates_every_segment_of_a_large_packet() {
    for ([client, known, server], offloads) in
        CASES.iter().flat_map(|case| [(case, ALL), (case, NONE)])
    {
        let mut router = router_to(known, server, &ROUTED, offloads);
        let [client, known, server] = [client, known, server].map(|it| end(it));
        let (ip_len, protocol) = match client.is_ipv4() {
            true => (20, Protocol::Tcp4),
            false => (40, Protocol::Tcp6),
        };
        let start = 14 + ip_len;
        let checksum = Checksum::Partial { start, offset: 16 };
        let segmentation = Some(Segmentation { protocol, size: 1000, header_len: start + 20 });
        let meta = towpath_pool::Meta { checksum, segmentation, ..Default::default() };
        let packet = |ends, ttl| packet_of(IpProtocol::TCP, ends, 2500, ttl, Sum::Pseudo);
        give(&mut router, ETH, &packet([client, known], 9), meta);
        let left = router.out();
        if offloads == ALL {
            assert_eq!(bytes_of(&only(left)), packet([client, server], 8));
            continue;
        }
        assert_eq!(left.len(), 3);
        for segment in left {
            let bytes = bytes_of(&segment);
            let (header, transport) = bytes.split_at(ip_len.into());
            assert!(ip_len == 40 || ipv4::checksum_ok(header));
            let pseudo = pseudo_of(IpProtocol::TCP, [client, server], transport.len());
            assert_eq!(checksum::finish(checksum::sum(transport, pseudo)), 0);
            assert_eq!(transport[2..4], [0, 80]);
            assert_eq!(segment.meta.checksum, Checksum::Unknown);
        }
    }
}

#[test]
fn delivers_a_packet_that_is_translated_to_this_host() {
    for [client, known, own] in [
        ["10.0.0.2:4000", "10.0.0.1:1000", "10.1.0.1:2000"],
        ["[fd00::2]:4000", "[fd00::1]:1000", "[fd01::1]:2000"],
    ] {
        let hooks = [Hook::Prerouting, Hook::Output, Hook::Postrouting];
        let mut router = router_to(known, own, &hooks, ALL);
        router.net.set_offloads(ETH, NONE);
        let [client, known, own] = [client, known, own].map(end);
        let bytes = packet_of(IpProtocol::UDP, [client, known], 100, 9, Sum::Whole);
        let ethertype = if own.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let delivered = local(router.receive(&frame(MAC_A, MAC_B, ethertype, &bytes)).unwrap());
        assert_eq!((delivered.src, delivered.dst), (client.ip(), own.ip()));
        assert_eq!(delivered.body()[2..4], own.port().to_be_bytes());
        assert!(verify_transport(&delivered));

        // The socket's answer has the source address that the client used as destination.
        let route = router.net.route(router.now, Some(own.ip()), client.ip(), None).unwrap();
        let mut answer = udp_packet(&mut router.pool, 100);
        answer.linear_mut()[..4].copy_from_slice(&[7, 208, 15, 160]);
        router.send(&route, IpProtocol::UDP, false, answer, 6).unwrap();
        let sent = only(router.sent());
        let expected = packet_of(IpProtocol::UDP, [known, client], 100, 64, Sum::Whole);
        let ip_len = if own.is_ipv4() { 20 } else { 40 };
        assert_eq!(sent[14 + ip_len..], expected[ip_len..]);
        assert_eq!(sent[14 + ip_len - 8..][..8], expected[ip_len - 8..][..8]);
    }
}

#[test]
fn chooses_another_route_for_a_translated_destination() {
    let mut router = router_to("10.0.0.2:2000", "192.0.2.9:80", &[Hook::Output], NONE);
    router.send_udp("10.0.0.2", 100).unwrap();
    assert_eq!(router.sent().len(), 0);
    let ends = [end("10.0.0.1:1000"), end("192.0.2.9:80")];
    let expected = packet_of(IpProtocol::UDP, ends, 100, 64, Sum::Whole);
    let left = bytes_of(&only(router.out()));
    assert_eq!((&left[12..20], &left[20..]), (&expected[12..20], &expected[20..]));

    let mut router = router_to("10.0.0.2:2000", "10.1.0.1:80", &[Hook::Output], NONE);
    router.send_udp("10.0.0.2", 100).unwrap();
    let looped = router.net.take_loopback().unwrap();
    let received = router.net.receive_looped(router.now, looped, &mut router.pool);
    assert_eq!(local(received.unwrap()).dst, ip("10.1.0.1"));

    let mut router = router_to("10.0.0.2:2000", "203.0.113.1:80", &[Hook::Output], NONE);
    router.send_udp("10.0.0.2", 100).unwrap();
    assert_eq!(router.drops(DropReason::NoRoute), 1);
}

#[test]
fn plans_batches_only_if_no_tracker_sees_packets_in_transit() {
    for (hooks, planned) in [(&[Hook::Input, Hook::Output][..], 3), (&ROUTED[..], 0)] {
        let mut router = router_to("192.0.2.77:53", "192.0.2.9:80", hooks, NONE);
        let ends = [end("10.0.0.2:4000"), end("192.0.2.77:53")];
        let bytes = packet_of(IpProtocol::UDP, ends, 50, 9, Sum::Whole);
        let frame = frame(MAC_A, MAC_B, EtherType::IPV4, &bytes);
        let mut batch: Batch = (0..3).map(|_| router.packet(&frame)).collect();
        router.net.plan_transit(ETH, &batch);
        router.net.forward_run(router.now, ETH, &mut batch, &mut router.pool);
        assert_eq!(batch.len(), 3 - planned);
        for packet in batch {
            assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
        }
        let to = if planned == 0 { end("192.0.2.9:80") } else { ends[1] };
        let expected = packet_of(IpProtocol::UDP, [ends[0], to], 50, 8, Sum::Whole);
        assert!(router.out().iter().all(|packet| bytes_of(packet) == expected));
    }
}

/// Gives echo requests another identifier, and refuses other packets.
#[derive(Debug)]
struct EchoIdents;

impl Tracker for EchoIdents {
    fn hooks(&self) -> Hooks {
        Hooks::from(Hook::Forward)
    }

    fn on_packet(&mut self, _now: Instant, packet: &mut HookPacket<'_>) -> Action {
        let is_echo = packet.fields().icmp.is_some() && !packet.transport().is_empty();
        match is_echo && packet.rewrite(4, &[0xab, 0xcd]) {
            true => Action::Accept,
            false => Action::Reject,
        }
    }
}

#[test]
fn rewrites_identifiers_and_refuses() {
    let mut router = router_with(Forwarding::default(), NONE);
    router.net.set_offloads(ETH, NONE);
    router.net.set_tracker(Some(Box::new(EchoIdents)));
    for (src, dst) in [("10.0.0.2", "192.0.2.9"), ("fd00::2", "2001:db8::9")] {
        let ends = [src, dst].map(|it| SocketAddr::new(ip(it), 0));
        let mut echo = vec![8, 0, 0, 0, 0, 1, 0, 7, 1, 2, 3, 4];
        let (packet, pseudo) = if ends[0].is_ipv4() {
            let sum = checksum::finish(checksum::sum(&echo, 0));
            echo[2..4].copy_from_slice(&sum.to_be_bytes());
            (ipv4_packet(src, dst, IpProtocol::ICMP, &echo), 0)
        } else {
            let pseudo = pseudo_of(IpProtocol::ICMPV6, ends, echo.len());
            echo[0] = 128;
            let sum = checksum::finish(checksum::sum(&echo, pseudo));
            echo[2..4].copy_from_slice(&sum.to_be_bytes());
            (ipv6_packet(src, dst, IpProtocol::ICMPV6, 64, &echo), pseudo)
        };
        router.transit(&packet);
        let left = bytes_of(&only(router.out()));
        let echo = &left[left.len() - 12..];
        assert_eq!(echo[4..], [0xab, 0xcd, 0, 7, 1, 2, 3, 4]);
        assert_eq!(checksum::finish(checksum::sum(echo, pseudo)), 0);
    }
    let ends = [end("10.0.0.2:1"), end("192.0.2.9:2")];
    router.transit(&packet_of(IpProtocol::UDP, ends, 8, 9, Sum::Whole));
    assert_eq!((router.out().len(), router.drops(DropReason::FilterReject)), (0, 1));
    assert_eq!(only(router.sent())[34..36], [3, 13]);
}

/// A redirect to the server would name a destination that the client never used.
#[test]
fn sends_no_redirect_for_a_translated_packet() {
    for (to, redirects) in [("10.0.0.3:80", 0), ("10.0.0.9:80", 1)] {
        let mut router = router_to("10.0.0.1:8080", to, &ROUTED, NONE);
        router.net.set_offloads(ETH, NONE);
        introduce(&mut router, ip("10.0.0.3"), ip("10.0.0.1"));
        let known = if redirects == 0 { "10.0.0.1:8080" } else { "10.0.0.3:80" };
        let bytes =
            packet_of(IpProtocol::UDP, [end("10.0.0.2:4000"), end(known)], 8, 9, Sum::Whole);
        router.transit(&bytes);
        assert_eq!(router.net.counters().data.redirects_sent, redirects);
        assert_eq!(router.sent().len() as u64, 1 + redirects);
    }
}
