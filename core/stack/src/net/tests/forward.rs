//! Tests of a router, whose packets arrive on one interface and leave by another one. `eth0` is an
//! Ethernet interface with an MTU of 1500; `tun1` is an IP link with a smaller MTU.

use super::*;

pub(super) const TUN: IfaceId = IfaceId(2);
pub(super) const TUN_MTU: u32 = 1300;
const FAR_V4: &str = "192.0.2.9";
const FAR_V6: &str = "2001:db8::9";

pub(super) fn router_with(forwarding: Forwarding, offloads: Offloads) -> Host {
    let now = Instant(1_000_000_000);
    let forwarding = Some(forwarding);
    let config = NetConfig { trace_drops: true, forwarding, ..NetConfig::default() };
    let mut net = Net::new(config, Keys::derive(&[7; 32]), now);
    let eth = InterfaceConfig { offloads: ALL, ..eth0(&["10.0.0.1/24", "fd00::1/64"]) };
    let tun = InterfaceConfig {
        name: "tun1".to_string(),
        link: LinkType::Ip,
        mtu: TUN_MTU,
        offloads,
        addresses: vec![prefix("10.1.0.1/24"), prefix("fd01::1/64")],
        ..eth.clone()
    };
    assert_eq!(net.add_interface(now, eth), ETH);
    assert_eq!(net.add_interface(now, tun), TUN);
    assert!(net.add_route(prefix("192.0.2.0/24"), Some(ip("10.1.0.2")), TUN, 0));
    assert!(net.add_route(prefix("2001:db8::/32"), Some(ip("fd01::2")), TUN, 0));
    let mut host = Host { net, pool: Pool::default(), now }.settled();
    host.out();
    // Resolve the neighbour to which errors are sent.
    for src in ["10.0.0.2", "fd00::2"] {
        host.net.output(ETH);
        let (from, to) = (ip(src), if src.contains(':') { ip("fd00::1") } else { ip("10.0.0.1") });
        introduce(&mut host, from, to);
    }
    host
}

pub(super) fn router() -> Host {
    router_with(Forwarding::default(), NONE)
}

/// Resolves the MAC address of the neighbour on `eth0`.
pub(super) fn introduce(host: &mut Host, from: IpAddr, to: IpAddr) {
    let (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) = (from, to) else {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (from, to) else { unreachable!() };
        let message = Message::NeighborSolicit { target: dst, source_ll: Some(MAC_B) };
        let mut body = vec![0; ndp::MESSAGE_LEN_MAX];
        let len = message.emit(&mut body);
        body.truncate(len);
        icmpv6::fill_checksum(&mut body, src, dst);
        let (src, dst) = (src.to_string(), dst.to_string());
        let packet = ipv6_packet(&src, &dst, IpProtocol::ICMPV6, 255, &body);
        assert!(host.receive(&frame(MAC_A, MAC_B, EtherType::IPV6, &packet)).is_none());
        host.sent();
        return;
    };
    let question = arp::ArpPacket {
        op: arp::ArpOp::Request,
        sender_mac: MAC_B,
        sender_ip,
        target_mac: MacAddr::UNSPECIFIED,
        target_ip,
    };
    let mut body = vec![0; arp::PACKET_LEN];
    question.emit(&mut body);
    assert!(host.receive(&frame(MacAddr::BROADCAST, MAC_B, EtherType::ARP, &body)).is_none());
    host.sent();
}

impl Host {
    /// Returns the packets that left by `tun1` since the last call.
    pub(super) fn out(&mut self) -> Vec<Packet> {
        let mut taken = Batch::new();
        self.net.output(TUN).hand_over(|batch| taken.append(batch));
        taken.into_iter().collect()
    }

    /// Returns the bytes of the single packet that left by `tun1`.
    fn only_out(&mut self) -> Vec<u8> {
        bytes_of(&only(self.out()))
    }

    /// Receives an IP packet from the neighbour on `eth0`.
    pub(super) fn transit(&mut self, packet: &[u8]) {
        let v4 = packet[0] >> 4 == 4;
        let ethertype = if v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        assert!(self.receive(&frame(MAC_A, MAC_B, ethertype, packet)).is_none());
    }

    /// Returns the drop reason of an IP packet, and the ICMP error sent back: type, code, third and
    /// fourth word.
    fn refused(&mut self, packet: &[u8]) -> (DropReason, Option<Vec<u8>>) {
        self.transit(packet);
        let dropped = self.net.take_dropped().expect("it is dropped");
        assert_eq!(self.out().len(), 0);
        let mut errors = self.sent();
        assert!(errors.len() <= 1);
        let error = errors.pop().map(|frame| {
            let packet = &frame[ethernet::HEADER_LEN..];
            let (at, quoted) = if packet[0] >> 4 == 4 { (20, 28) } else { (40, 48) };
            assert_eq!(packet[quoted..quoted + 8], dropped.bytes[14..22], "it quotes the packet");
            packet[at..at + 8].to_vec()
        });
        (dropped.reason, error)
    }
}

pub(super) fn v4(ttl: u8, len: usize, change: impl FnOnce(&mut ipv4::Header)) -> Vec<u8> {
    let mut header = ipv4::Header {
        tos: 0x28,
        total_len: (20 + len) as u16,
        ident: 77,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl,
        protocol: IpProtocol::UDP,
        src: "10.0.0.2".parse().unwrap(),
        dst: FAR_V4.parse().unwrap(),
        options: ipv4::Options::EMPTY,
    };
    change(&mut header);
    let mut bytes = vec![0; header.header_len()];
    header.total_len = (header.header_len() + len) as u16;
    header.emit(&mut bytes);
    bytes.extend(pattern(len));
    bytes
}

pub(super) fn v6(hop_limit: u8, next: IpProtocol, payload: &[u8]) -> Vec<u8> {
    ipv6_packet("fd00::2", FAR_V6, next, hop_limit, payload)
}

pub(super) fn from_to(packet: &[u8], src: &str, dst: &str) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    match (ip(src), ip(dst)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes[12..16].copy_from_slice(&src.octets());
            bytes[16..20].copy_from_slice(&dst.octets());
            bytes[10..12].fill(0);
            let sum = towpath_wire::checksum::sum(&bytes[..20], 0);
            let sum = towpath_wire::checksum::finish(sum);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes[8..24].copy_from_slice(&src.octets());
            bytes[24..40].copy_from_slice(&dst.octets());
        }
        _ => unreachable!(),
    }
    bytes
}

#[test]
fn a_packet_leaves_with_its_ttl_lowered_and_all_else_as_it_was() {
    for ttl in [2, 64, 255] {
        let mut router = router();
        let sent = v4(ttl, 100, |_| {});
        router.transit(&sent);
        let left = router.only_out();
        assert!(ipv4::checksum_ok(&left[..20]));
        assert_eq!((left[8], &left[..8], &left[12..]), (ttl - 1, &sent[..8], &sent[12..]));
        let sent = v6(ttl, IpProtocol::UDP, &pattern(100));
        router.transit(&sent);
        let left = router.only_out();
        assert_eq!((left[7], &left[..7], &left[8..]), (ttl - 1, &sent[..7], &sent[8..]));
        let counters = router.net.counters().data;
        assert_eq!((counters.forwarded, counters.forwarded_bytes), (2, 260));
        assert_eq!(counters.drops.total(), 0);
    }
}

#[test]
fn the_incremental_checksum_is_right_for_every_header() {
    let mut router = router();
    for ident in (0..=u16::MAX).step_by(97) {
        router.transit(&v4(ident as u8 | 2, 0, |header| header.ident = ident));
        assert!(ipv4::checksum_ok(&router.only_out()), "ident {ident}");
    }
}

#[test]
fn padding_of_the_link_and_its_header_stay_behind() {
    let mut router = router();
    let mut bytes = frame(MAC_A, MAC_B, EtherType::IPV4, &v4(9, 4, |_| {}));
    bytes.resize(60, 0xee);
    assert!(router.receive(&bytes).is_none());
    assert_eq!(router.only_out().len(), 24);
}

#[test]
fn a_host_forwards_nothing() {
    let mut host = Host::a();
    let packet = frame(MAC_A, MAC_B, EtherType::IPV4, &v4(9, 4, |_| {}));
    assert_eq!(host.refusal(&packet), Some(DropReason::NotLocal));
}

#[test]
fn a_ttl_that_ends_here_is_told() {
    let mut router = router();
    for ttl in [0, 1] {
        let (reason, error) = router.refused(&v4(ttl, 8, |_| {}));
        assert_eq!((reason, &error.unwrap()[..2]), (DropReason::TransitTtl, &[11, 0][..]));
        let (reason, error) = router.refused(&v6(ttl, IpProtocol::UDP, &[0; 8]));
        assert_eq!((reason, &error.unwrap()[..2]), (DropReason::TransitTtl, &[3, 0][..]));
    }
    // An ICMP error must not be answered by an error.
    let icmp = |header: &mut ipv4::Header| header.protocol = IpProtocol::ICMP;
    let mut error = v4(1, 8, icmp);
    error[20] = icmpv4::DEST_UNREACHABLE;
    assert_eq!(router.refused(&error), (DropReason::TransitTtl, None));
}

#[test]
fn a_packet_without_a_way_is_told_by_the_kind_of_its_route() {
    let mut router = router();
    let to_v4 = |dst| from_to(&v4(9, 8, |_| {}), "10.0.0.2", dst);
    let to_v6 = |dst| from_to(&v6(9, IpProtocol::UDP, &[0; 8]), "fd00::2", dst);
    let routes = [
        ("203.0.113.0/26", RouteKind::Blackhole),
        ("203.0.113.64/26", RouteKind::Unreachable),
        ("203.0.113.128/26", RouteKind::Prohibit),
        ("2001:db9:1::/48", RouteKind::Blackhole),
        ("2001:db9:2::/48", RouteKind::Unreachable),
        ("2001:db9:3::/48", RouteKind::Prohibit),
    ];
    let changes = routes.map(|(to, kind)| {
        Change::SetRoute(RouteSpec { kind: Some(kind), ..RouteSpec::to(prefix(to)) }, How::Add)
    });
    router.net.apply(router.now, &changes).unwrap();
    let cases = [
        (to_v4("198.51.100.1"), DropReason::TransitNoRoute, Some([3, 0])),
        (to_v4("203.0.113.1"), DropReason::TransitBlackhole, None),
        (to_v4("203.0.113.65"), DropReason::TransitUnreachable, Some([3, 1])),
        (to_v4("203.0.113.129"), DropReason::TransitProhibited, Some([3, 13])),
        (to_v6("2001:db9::1"), DropReason::TransitNoRoute, Some([1, 0])),
        (to_v6("2001:db9:1::1"), DropReason::TransitBlackhole, None),
        (to_v6("2001:db9:2::1"), DropReason::TransitUnreachable, Some([1, 0])),
        (to_v6("2001:db9:3::1"), DropReason::TransitProhibited, Some([1, 1])),
    ];
    for (packet, reason, told) in cases {
        let (found, error) = router.refused(&packet);
        assert_eq!((found, error.map(|error| [error[0], error[1]])), (reason, told));
    }
    // Packets of the router itself fail likewise.
    let own = |dst| router.net.route(router.now, None, ip(dst), None).unwrap_err();
    assert_eq!(own("203.0.113.1"), RouteError::Blackhole);
    assert_eq!(own("203.0.113.65"), RouteError::Unreachable);
    assert_eq!(own("2001:db9:3::1"), RouteError::Prohibited);
}

#[test]
fn addresses_of_one_link_go_no_further() {
    let mut router = router();
    let packet = v4(9, 8, |_| {});
    for (src, dst) in [("169.254.1.1", FAR_V4), ("10.0.0.2", "169.254.1.1")] {
        let reach = prefix("169.254.0.0/16");
        router.net.add_route(reach, None, TUN, 0);
        let refused = router.refused(&from_to(&packet, src, dst));
        assert_eq!(refused, (DropReason::TransitScope, None), "{src} to {dst}");
    }
    // The directed broadcast of another link of the router.
    let refused = router.refused(&from_to(&packet, "10.0.0.2", "10.1.0.255"));
    assert_eq!(refused, (DropReason::TransitScope, None));
    let packet = v6(9, IpProtocol::UDP, &[0; 8]);
    introduce(&mut router, ip("fe80::b"), ip("fd00::1"));
    let (reason, error) = router.refused(&from_to(&packet, "fe80::b", FAR_V6));
    assert_eq!((reason, &error.unwrap()[..2]), (DropReason::TransitScope, &[1, 2][..]));
}

#[test]
fn martians_are_not_sent_on() {
    let mut router = router();
    let packet = v4(9, 8, |_| {});
    let martians = [
        ("127.0.0.1", FAR_V4),
        ("0.0.0.0", FAR_V4),
        ("224.0.0.1", FAR_V4),
        ("240.0.0.1", FAR_V4),
        ("255.255.255.255", FAR_V4),
        ("10.0.0.255", FAR_V4),
        ("10.1.0.1", FAR_V4),
        ("10.0.0.2", "127.0.0.1"),
        ("10.0.0.2", "240.0.0.1"),
        ("10.0.0.2", "0.1.2.3"),
    ];
    for (src, dst) in martians {
        let refused = router.refused(&from_to(&packet, src, dst));
        assert_eq!(refused, (DropReason::Martian, None), "{src} to {dst}");
    }
    let packet = v6(9, IpProtocol::UDP, &[0; 8]);
    for (src, dst) in [("::", FAR_V6), ("::1", FAR_V6), ("ff02::1", FAR_V6), ("fd00::2", "::1")] {
        let refused = router.refused(&from_to(&packet, src, dst));
        assert_eq!(refused, (DropReason::Martian, None), "{src} to {dst}");
    }
    // A unicast packet in a frame to a group.
    let bytes = frame(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &v4(9, 8, |_| {}));
    assert_eq!(router.refusal(&bytes), Some(DropReason::Martian));
    // Packets to a group are not forwarded.
    let refused = router.refused(&from_to(&v4(9, 8, |_| {}), "10.0.0.2", "239.1.1.1"));
    assert_eq!(refused, (DropReason::NotJoined, None));
}

#[test]
fn sources_are_checked_as_strictly_as_is_wanted() {
    let packet = |src| from_to(&v4(9, 8, |_| {}), src, FAR_V4);
    let fate = |check, src| {
        let mut router = router_with(Forwarding { source_check: check }, NONE);
        router.transit(&packet(src));
        router.net.take_dropped().map(|dropped| dropped.reason)
    };
    let refused = Some(DropReason::TransitSource);
    // The source is on the link, behind the other link, or has no route.
    let cases = [
        (SourceCheck::Off, [None, None, None]),
        (SourceCheck::Loose, [None, None, refused]),
        (SourceCheck::Strict, [None, refused, refused]),
    ];
    for (check, fates) in cases {
        let found = ["10.0.0.2", "192.0.2.7", "198.51.100.7"].map(|src| fate(check, src));
        assert_eq!(found, fates, "{check:?}");
    }
}

#[test]
fn what_is_too_big_is_told_with_the_mtu_of_the_link() {
    let mut router = router();
    let (reason, error) = router.refused(&v4(9, 1281, |header| header.dont_fragment = true));
    let told = error.unwrap();
    assert_eq!(reason, DropReason::TransitTooBig);
    assert_eq!((&told[..2], &told[4..]), (&[3, 4][..], &[0, 0, 5, 20][..]));
    let (reason, error) = router.refused(&v6(9, IpProtocol::UDP, &pattern(1261)));
    let told = error.unwrap();
    assert_eq!(reason, DropReason::TransitTooBig);
    assert_eq!((&told[..2], &told[4..]), (&[2, 0][..], &[0, 0, 5, 20][..]));
    router.transit(&v4(9, 1280, |header| header.dont_fragment = true));
    router.transit(&v6(9, IpProtocol::UDP, &pattern(1260)));
    assert_eq!(router.out().len(), 2);
}

#[test]
fn the_mtu_of_a_route_is_told_like_that_of_a_link() {
    let mut router = router();
    let narrow = |to: &str, hop: &str, mtu| {
        let (next_hop, mtu) = (Some(ip(hop)), Some(mtu));
        // The router's existing routes have this metric.
        let metric = Some(0);
        let spec = RouteSpec { next_hop, mtu, metric, ..RouteSpec::to(prefix(to)) };
        Change::SetRoute(spec, How::Replace)
    };
    let changes =
        [narrow("192.0.2.0/24", "10.1.0.2", 900), narrow("2001:db8::/32", "fd01::2", 1290)];
    router.net.apply(router.now, &changes).unwrap();
    let (reason, error) = router.refused(&v4(9, 881, |header| header.dont_fragment = true));
    assert_eq!((reason, &error.unwrap()[4..]), (DropReason::TransitTooBig, &[0, 0, 3, 132][..]));
    let (reason, error) = router.refused(&v6(9, IpProtocol::UDP, &pattern(1251)));
    assert_eq!((reason, &error.unwrap()[4..]), (DropReason::TransitTooBig, &[0, 0, 5, 10][..]));
    router.transit(&v4(9, 880, |header| header.dont_fragment = true));
    router.transit(&v6(9, IpProtocol::UDP, &pattern(1250)));
    assert_eq!(router.out().len(), 2);
    router.transit(&v4(9, 1200, |_| {}));
    let fragments = router.out();
    assert_eq!((fragments.len(), joined(&fragments)), (2, pattern(1200)));
    assert!(fragments.iter().all(|packet| packet.len() <= 900));
    // Segments of a large packet are limited by the route's MTU, too, not only by the segment size.
    let mut router = router_with(Forwarding::default(), ALL);
    router.net.apply(router.now, &changes).unwrap();
    let packet = large_tcp(&mut router, false, 1000, 3000, false);
    assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
    let sent = router.out();
    assert!(sent.len() > 3 && sent.iter().all(|packet| packet.len() <= 900));
}

/// Reassembles fragments by their offsets, and checks the headers.
fn joined(fragments: &[Packet]) -> Vec<u8> {
    let mut whole = Vec::new();
    for (n, packet) in fragments.iter().enumerate() {
        let bytes = bytes_of(packet);
        let (header, at) = ipv4::Header::parse_quoted(&bytes).unwrap();
        assert!(ipv4::checksum_ok(&bytes[..at]) && bytes.len() <= TUN_MTU as usize);
        assert_eq!((usize::from(header.total_len), header.ident), (bytes.len(), 77));
        assert_eq!(header.more_fragments, n + 1 < fragments.len());
        assert_eq!(usize::from(header.fragment_offset), whole.len());
        whole.extend_from_slice(&bytes[at..]);
    }
    whole
}

#[test]
fn packets_that_may_be_cut_are() {
    let mut router = router();
    router.transit(&v4(9, 1400, |_| {}));
    let fragments = router.out();
    assert_eq!(fragments.len(), 2);
    assert_eq!(joined(&fragments), pattern(1400));
    // Fragments of a middle fragment keep their offset in the packet, and MF.
    router.transit(&v4(9, 1400, |header| {
        (header.fragment_offset, header.more_fragments) = (800, true);
    }));
    let headers: Vec<_> = router
        .out()
        .iter()
        .map(|packet| {
            let (header, _) = ipv4::Header::parse_quoted(packet.linear()).unwrap();
            (header.fragment_offset, header.more_fragments)
        })
        .collect();
    assert_eq!(headers, [(800, true), (800 + 1280, true)]);
    assert_eq!(router.net.counters().data.fragmented, 2);
}

#[test]
fn options_go_into_the_fragments_that_they_belong_to() {
    let mut router = router();
    // A security option, which is copied, and a record of the route, which is not.
    let options = [0x82, 4, 1, 2, 7, 7, 4, 0, 0, 0, 0, 0];
    router.transit(&v4(9, 1400, |header| {
        header.options = ipv4::Options::new(&options).unwrap();
    }));
    let fragments = router.out();
    assert_eq!(joined(&fragments), pattern(1400));
    let first = fragments[0].linear()[20..32].to_vec();
    assert_eq!(first, [0x82, 4, 1, 2, 7, 7, 8, 10, 1, 0, 1, 0]);
    assert_eq!(fragments[1].linear()[20..32], [0x82, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn source_routes_and_malformed_options_are_refused() {
    let mut router = router();
    let with = |options: &[u8]| {
        let options = ipv4::Options::new(options).unwrap();
        v4(9, 8, |header| header.options = options)
    };
    let loose = with(&[0x83, 7, 4, 10, 1, 0, 2, 0]);
    assert_eq!(router.refused(&loose), (DropReason::IpSourceRoute, None));
    let (reason, error) = router.refused(&with(&[7, 30, 4, 0]));
    assert_eq!((reason, &error.unwrap()[..2]), (DropReason::IpMalformed, &[12, 0][..]));
}

#[test]
fn of_extension_headers_a_router_reads_hop_by_hop_options_alone() {
    let mut router = router();
    let payload = pattern(16);
    let after = |header: [u8; 8]| [&header[..], &payload].concat();
    // Headers that only the destination parses: a route with segments left, an unknown option, and
    // a length beyond the packet.
    let others = [
        (IpProtocol::ROUTING, [17, 0, 9, 1, 0, 0, 0, 0]),
        (IpProtocol::DESTINATION_OPTIONS, [17, 0, 0xbe, 4, 0, 0, 0, 0]),
        (IpProtocol::DESTINATION_OPTIONS, [17, 200, 1, 4, 0, 0, 0, 0]),
    ];
    for (next, header) in others {
        router.transit(&v6(9, next, &after(header)));
        assert_eq!(router.only_out()[40..48], header);
    }
    let alert = after([17, 0, 5, 2, 0, 0, 1, 0]);
    router.transit(&v6(9, IpProtocol::HOP_BY_HOP, &alert));
    assert_eq!(router.only_out()[40..], alert);
    let unknown = after([17, 0, 0xbe, 4, 0, 0, 0, 0]);
    let (reason, error) = router.refused(&v6(9, IpProtocol::HOP_BY_HOP, &unknown));
    let told = error.unwrap();
    assert_eq!((reason, &told[..2]), (DropReason::IpMalformed, &[4, 2][..]));
    assert_eq!(told[7], 42, "the place of the option");
    let silent = after([17, 0, 0x7e, 4, 0, 0, 0, 0]);
    assert_eq!(router.refused(&v6(9, IpProtocol::HOP_BY_HOP, &silent)).1, None);
}

#[test]
fn a_neighbour_that_does_not_answer_is_told_after_the_wait() {
    let mut router = router();
    for (dst, told) in [("10.0.0.77", [3, 1]), ("fd00::77", [1, 3])] {
        let src = if dst.contains(':') { "2001:db8::5" } else { "192.0.2.5" };
        let packet = match ip(dst) {
            IpAddr::V4(_) => from_to(&v4(9, 8, |_| {}), src, dst),
            IpAddr::V6(_) => from_to(&v6(9, IpProtocol::UDP, &[0; 8]), src, dst),
        };
        let received = router.packet(&packet);
        assert!(router.net.receive(router.now, TUN, received, &mut router.pool).is_none());
        assert_eq!((router.out().len(), router.net.data.next_hops.waiting()), (0, 1));
        router.pass(Duration::from_secs(5));
        router.net.take_error();
        let error = router.only_out();
        let at = if error[0] >> 4 == 4 { 20 } else { 40 };
        assert_eq!(error[at..at + 2], told);
        assert!(router.net.take_error().is_none(), "it is no error of this host's own");
        router.sent();
    }
    assert_eq!(router.drops(DropReason::NeighborUnreachable), 2);
}

#[test]
fn a_packet_waits_for_its_neighbour_and_leaves() {
    let mut router = router();
    let packet = from_to(&v4(9, 8, |_| {}), "192.0.2.5", "10.0.0.2");
    let received = router.packet(&packet);
    assert!(router.net.receive(router.now, TUN, received, &mut router.pool).is_none());
    let left = only(router.sent());
    let (header, at) = ethernet::Header::parse(&left).unwrap();
    assert_eq!((header.dst, header.src, left[at + 8]), (MAC_B, MAC_A, 8));
}

/// Creates a large TCP packet as a device delivers it, with link header and partial checksum.
pub(super) fn large_tcp(
    router: &mut Host,
    v6: bool,
    size: u16,
    len: usize,
    dont_fragment: bool,
) -> Packet {
    let (ip_len, protocol) = if v6 { (40, Protocol::Tcp6) } else { (20, Protocol::Tcp4) };
    let mut tcp = vec![0; 20 + len];
    tcp[..4].copy_from_slice(&[4, 0, 0, 80]);
    (tcp[12], tcp[13]) = (5 << 4, 0x18);
    tcp[20..].copy_from_slice(&pattern(len));
    let (src, dst) = if v6 { ("fd00::2", FAR_V6) } else { ("10.0.0.2", FAR_V4) };
    let pseudo = match (ip(src), ip(dst)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            towpath_wire::checksum::pseudo_v4(src, dst, IpProtocol::TCP, tcp.len() as u16)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            towpath_wire::checksum::pseudo_v6(src, dst, IpProtocol::TCP, tcp.len() as u32)
        }
        _ => unreachable!(),
    };
    let sum = towpath_wire::checksum::fold(pseudo);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let packet = match v6 {
        true => ipv6_packet(src, dst, IpProtocol::TCP, 9, &tcp),
        false => {
            let mut packet = self::v4(9, 0, |header| {
                (header.protocol, header.dont_fragment) = (IpProtocol::TCP, dont_fragment);
            });
            packet[2..4].copy_from_slice(&((20 + tcp.len()) as u16).to_be_bytes());
            let mut packet = from_to(&packet, src, dst);
            packet.extend_from_slice(&tcp);
            packet
        }
    };
    let ethertype = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut packet = router.packet(&frame(MAC_A, MAC_B, ethertype, &packet));
    let start = 14 + ip_len;
    packet.meta.checksum = Checksum::Partial { start, offset: 16 };
    packet.meta.segmentation = Some(Segmentation { protocol, size, header_len: start + 20 });
    packet
}

#[test]
fn large_packets_pass_whole_where_the_device_cuts_them() {
    for v6 in [false, true] {
        let mut router = router_with(Forwarding::default(), ALL);
        let packet = large_tcp(&mut router, v6, 1000, 5000, true);
        assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
        let left = only(router.out());
        let ip_len = if v6 { 40 } else { 20 };
        assert_eq!(left.len(), usize::from(ip_len) + 20 + 5000);
        assert_eq!(left.meta.checksum, Checksum::Partial { start: ip_len, offset: 16 });
        let protocol = if v6 { Protocol::Tcp6 } else { Protocol::Tcp4 };
        let cut = Segmentation { protocol, size: 1000, header_len: ip_len + 20 };
        assert_eq!(left.meta.segmentation, Some(cut));
    }
}

/// Receives packets as their destination host would, and returns them.
fn received_by_far_end(packets: Vec<Packet>, v6: bool) -> Vec<Local> {
    let own = if v6 { format!("{FAR_V6}/32") } else { format!("{FAR_V4}/24") };
    let mut far = Host::new(MAC_B, &[&own], |config| config.link = LinkType::Ip);
    let deliver = |packet: Packet| {
        let copy = far.packet(&bytes_of(&packet));
        far.net.receive(far.now, ETH, copy, &mut far.pool).map(local)
    };
    packets.into_iter().filter_map(deliver).collect()
}

#[test]
fn large_packets_are_cut_by_software_where_the_device_cannot() {
    for v6 in [false, true] {
        let mut router = router();
        let packet = large_tcp(&mut router, v6, 1000, 2500, true);
        assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
        let segments = received_by_far_end(router.out(), v6);
        assert_eq!(segments.iter().map(|local| local.len).collect::<Vec<_>>(), [1020, 1020, 520]);
        assert!(segments.iter().all(verify_transport));
        let payload: Vec<u8> =
            segments.iter().flat_map(|local| local.body()[20..].to_vec()).collect();
        assert_eq!(payload, pattern(2500));
    }
}

#[test]
fn segments_that_do_not_fit_the_next_link_are_told_or_cut_into_fragments() {
    let mut router = router_with(Forwarding::default(), ALL);
    for v6 in [false, true] {
        let packet = large_tcp(&mut router, v6, 1460, 2920, true);
        assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
        assert_eq!(router.out().len(), 0);
        assert_eq!(only(router.sent())[14..].len(), if v6 { 1280 } else { 576 });
    }
    assert_eq!(router.drops(DropReason::TransitTooBig), 2);
    let packet = large_tcp(&mut router, false, 1460, 2920, false);
    assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
    let fragments = router.out();
    assert_eq!(fragments.len(), 4);
    let segments = received_by_far_end(fragments, false);
    assert_eq!(segments.iter().map(|local| local.len).collect::<Vec<_>>(), [1480, 1480]);
    assert!(segments.iter().all(verify_transport));
}

#[test]
fn a_checksum_left_to_a_device_that_cannot_is_computed() {
    for v6 in [false, true] {
        let mut router = router();
        let mut packet = large_tcp(&mut router, v6, 1000, 500, true);
        packet.meta.segmentation = None;
        assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
        let segments = received_by_far_end(router.out(), v6);
        assert!(verify_transport(&only(segments)));
    }
}

#[test]
fn errors_are_limited_but_for_those_about_sizes() {
    let mut router = router();
    for _ in 0..100 {
        router.transit(&v4(1, 8, |_| {}));
    }
    let errors = router.sent().len() as u64;
    assert_eq!(errors, limits::ICMP_HOST_BURST);
    assert_eq!(router.net.counters().data.icmp_errors_limited_host, 100 - errors);
    router.transit(&v4(9, 1400, |header| header.dont_fragment = true));
    assert_eq!(router.sent().len(), 1, "the path MTU is told all the same");
}

/// Other errors use up their rate limit first.
#[test]
fn reports_of_sizes_have_a_limit_of_their_own() {
    let mut router = router();
    let to_v6 = |n: u16| format!("fd00::{n:x}");
    for n in 2..=255 {
        router.transit(&from_to(&v4(1, 8, |_| {}), &format!("10.0.0.{n}"), FAR_V4));
        let expired = v6(1, IpProtocol::UDP, &pattern(8));
        router.transit(&from_to(&expired, &format!("fd{n:02x}::2"), FAR_V6));
    }
    assert!(router.net.counters().data.icmp_errors_limited > 100);
    router.sent();
    let before = router.net.counters().data.icmp_errors_sent;
    for n in 0..100 {
        let long = v4(9, 1400, |header| header.dont_fragment = true);
        router.transit(&from_to(&long, &format!("10.0.0.{}", 2 + n), FAR_V4));
        router.transit(&from_to(&v6(9, IpProtocol::UDP, &pattern(1400)), &to_v6(2 + n), FAR_V6));
    }
    let counters = router.net.counters().data;
    assert_eq!(counters.icmp_errors_sent - before, 200);
    // Path MTU reports have a limit, too.
    for _ in 0..limits::ICMP_TOO_BIG_BURST {
        router.transit(&v4(9, 1400, |header| header.dont_fragment = true));
    }
    assert_eq!(router.net.counters().data.icmp_too_big_limited, 200);
}

#[test]
fn changes_of_routes_take_effect_together_or_not_at_all() {
    let mut router = router();
    let add = |to: &str, hop: Option<&str>, iface| {
        let (next_hop, iface) = (hop.map(ip), Some(iface));
        Change::SetRoute(RouteSpec { next_hop, iface, ..RouteSpec::to(prefix(to)) }, How::Add)
    };
    let before: Vec<_> = router.net.routes().collect();
    let refusals = [
        (add("198.51.100.0/24", None, IfaceId(9)), Fault::NoInterface),
        (add("198.51.100.0/24", Some("fd01::2"), TUN), Fault::Invalid),
    ];
    for (bad, why) in refusals {
        let changes = [add("203.0.113.0/24", Some("10.1.0.3"), TUN), bad];
        assert_eq!(router.net.apply(router.now, &changes), Err(Refused { at: 1, why }));
        assert_eq!(router.net.routes().collect::<Vec<_>>(), before);
    }
    let generation = router.net.route_generation();
    let remove = Change::RemoveRoute(RouteSpec::to(prefix("192.0.2.0/24")));
    let changes = [remove, add("203.0.113.0/24", Some("10.1.0.3"), TUN)];
    router.net.apply(router.now, &changes).unwrap();
    assert!(router.net.route_generation() > generation);
    router.transit(&from_to(&v4(9, 8, |_| {}), "10.0.0.2", "203.0.113.1"));
    assert_eq!(router.out().len(), 1);
    assert_eq!(router.refused(&v4(9, 8, |_| {})).0, DropReason::TransitNoRoute);
}

/// A list may add any number of routes through existing routers, because only new routers count.
#[test]
fn a_list_of_more_routes_than_there_may_be_routers_is_made() {
    let mut router = router();
    let count = limits::GATEWAYS_MAX as u32 + 1000;
    let add = |n: u32, hop: IpAddr| {
        let prefix = Prefix::new(IpAddr::from((0x1400_0000 + (n << 8)).to_be_bytes()), 24).unwrap();
        let (next_hop, iface, on_link) = (Some(hop), Some(TUN), true);
        let route = RouteSpec { next_hop, iface, on_link, ..RouteSpec::to(prefix) };
        Change::SetRoute(route, How::Append)
    };
    let before = router.net.routes().count();
    let changes: Vec<_> =
        (0..count).map(|n| add(n, IpAddr::from([10, 1, 0, 10 + (n % 4) as u8]))).collect();
    router.net.apply(router.now, &changes).unwrap();
    assert_eq!(router.net.routes().count(), before + count as usize);
    router.transit(&from_to(&v4(9, 8, |_| {}), "10.0.0.2", "21.3.7.1"));
    assert_eq!(router.out().len(), 1);
    // A list with a router per route exceeds the limit, and no route is added.
    let changes: Vec<_> =
        (0..count).map(|n| add(n, IpAddr::from((0x0a02_0000 + n).to_be_bytes()))).collect();
    let refused = router.net.apply(router.now, &changes).unwrap_err();
    assert_eq!(refused.why, Fault::Full);
    // Six routers are in use already: four of this test, and one of each family.
    assert_eq!(refused.at, limits::GATEWAYS_MAX - 6);
    assert_eq!(router.net.routes().count(), before + count as usize);
}

#[test]
fn a_router_has_as_many_neighbours_as_its_settings_say() {
    for neighbors_max in [4, 3000] {
        let forwarding = Some(Forwarding::default());
        let config = NetConfig { forwarding, neighbors_max, ..NetConfig::default() };
        let now = Instant(1);
        let mut net = Net::new(config, Keys::derive(&[7; 32]), now);
        let mut pool = Pool::default();
        let eth = eth0(&["10.0.0.1/16"]);
        net.add_interface(now, eth);
        for n in 0..2000u32 {
            let sender_ip = Ipv4Addr::from_bits(0x0a00_0100 + n);
            let key = (ETH, IpAddr::V4(sender_ip));
            net.data.next_hops.at(key);
            let question = arp::ArpPacket {
                op: arp::ArpOp::Request,
                sender_mac: MAC_B,
                sender_ip,
                target_mac: MacAddr::UNSPECIFIED,
                target_ip: [10, 0, 0, 1].into(),
            };
            let mut body = vec![0; arp::PACKET_LEN];
            question.emit(&mut body);
            let bytes = frame(MacAddr::BROADCAST, MAC_B, EtherType::ARP, &body);
            let mut packet = pool.take(bytes.len());
            packet.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
            net.receive(now, ETH, packet, &mut pool);
            net.output(ETH).hand_over(|batch| batch.clear());
        }
        let displaced = net.counters().data.next_hops_displaced;
        assert_eq!(displaced, if neighbors_max == 4 { 1996 } else { 0 });
    }
}
