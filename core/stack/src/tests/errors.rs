//! Tests of ICMP errors: their effect on connections and datagram sockets, and checks of forged
//! ones.

use std::net::Ipv6Addr;

use towpath_ring::Payload;
use towpath_wire::{IpProtocol, icmpv4, icmpv6, ipv4, ipv6};

use super::world::{Conn, World, WorldConfig};
use crate::{
    BindOptions, DatagramFrom, DatagramOut, DropReason, Family, IfaceId, MtuDiscovery, SendError,
    SocketError, SocketEvent, SocketId, SocketKind, SocketOption, StackConfig,
};

/// A router that sends errors to host b.
const ROUTER: &str = "10.0.0.9";
const ROUTER_V6: &str = "fd00::9";

/// Creates an ICMP error about `quote`, an IP packet sent by b, in the IP version of `quote`.
/// `word` follows the checksum.
fn error_about(quote: &[u8], kind: u8, code: u8, word: u32) -> Vec<u8> {
    let v4 = quote[0] >> 4 == 4;
    let quote = &quote[..quote.len().min(if v4 { 548 } else { 1232 })];
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(word.to_be_bytes());
    icmp.extend(quote);
    let mut packet = vec![0; if v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }];
    let len = icmp.len();
    if v4 {
        icmpv4::fill_checksum(&mut icmp);
        ipv4::Header {
            tos: 0,
            total_len: (ipv4::HEADER_LEN + len) as u16,
            ident: 7,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: IpProtocol::ICMP,
            src: ROUTER.parse().unwrap(),
            dst: [10, 0, 0, 2].into(),
            options: ipv4::Options::EMPTY,
        }
        .emit(&mut packet);
    } else {
        let (src, dst) = (ROUTER_V6.parse::<Ipv6Addr>().unwrap(), "fd00::2".parse().unwrap());
        icmpv6::fill_checksum(&mut icmp, src, dst);
        ipv6::Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
            next_header: IpProtocol::ICMPV6,
            hop_limit: 64,
            src,
            dst,
        }
        .emit(&mut packet);
    }
    packet.extend(icmp);
    packet
}

/// Creates a path MTU report in the IP version of the quoted packet.
fn too_big(quote: &[u8], mtu: u32) -> Vec<u8> {
    let (kind, code) = if quote[0] >> 4 == 4 { (3, 4) } else { (2, 0) };
    error_about(quote, kind, code, mtu)
}

/// Creates a UDP datagram from b that b never sent.
fn forged_udp(src_port: u16) -> Vec<u8> {
    let mut packet = vec![0; ipv4::HEADER_LEN];
    ipv4::Header {
        tos: 0,
        total_len: 1500,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        src: [10, 0, 0, 2].into(),
        dst: [10, 0, 0, 1].into(),
        options: ipv4::Options::EMPTY,
    }
    .emit(&mut packet);
    packet.extend(src_port.to_be_bytes());
    packet.extend([0x12, 0x34, 5, 0xc8, 0, 0]);
    packet
}

/// Returns the IP packets from b on the link since the last call, except ICMP messages.
fn seen_of_b(w: &mut World) -> Vec<Vec<u8>> {
    let of_b = |packet: &Vec<u8>| match packet[0] >> 4 {
        4 => packet[12..16] == [10, 0, 0, 2] && packet[9] != 1,
        _ => packet[23] == 2 && packet[6] != 58,
    };
    w.take_seen().into_iter().filter(of_b).collect()
}

fn dont_fragment(packet: &[u8]) -> bool {
    packet[6] & 0x40 != 0
}

/// Returns a connection whose end at b has bytes in flight: both ends, and the first packet with
/// bytes.
fn in_flight(remote: &str, len: usize) -> (World, Conn, Conn, Vec<u8>) {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("[::]:80", 8);
    let (client, server) = w.connected(listener, remote);
    w.run(500);
    w.keep_seen();
    w.b.write(&server, &vec![7; len]);
    w.b.turn();
    let first = seen_of_b(&mut w).into_iter().next().expect("bytes on the link");
    (w, client, server, first)
}

fn all_arrives(w: &mut World, client: &Conn, len: usize) {
    let mut got = 0;
    w.wait(10_000, "all bytes", |w| {
        got += w.a.read(client).len();
        got >= len
    });
    assert_eq!(got, len);
}

fn send(w: &mut World, id: SocketId, to: &str, len: usize) -> Result<(), SendError> {
    let out = DatagramOut { remote: Some(to.parse().unwrap()), ..Default::default() };
    let bytes = vec![3; len];
    let payload = Payload::new(&bytes, Default::default());
    w.b.stack.send_datagram(w.b.now, id, &out, &payload, &mut w.b.pool)
}

#[test]
fn below_the_least_path_mtu_routers_may_fragment() {
    for mtu in [551, 296, 68, 0] {
        let (mut w, client, server, first) = in_flight("10.0.0.2:80", 6000);
        assert!(first.len() == 1500 && dont_fragment(&first));
        w.inject(&too_big(&first, mtu));
        all_arrives(&mut w, &client, 6000);
        w.b.write(&server, &[7; 3000]);
        all_arrives(&mut w, &client, 3000);
        let after = seen_of_b(&mut w);
        assert!(after.len() > 15);
        for packet in &after {
            assert!(packet.len() <= 552 && !dont_fragment(packet), "{mtu}: {}", packet.len());
        }
        // Routers may fragment the packets, so each needs its own identification (RFC 6864 §4.2).
        let mut idents: Vec<_> = after.iter().map(|packet| [packet[4], packet[5]]).collect();
        idents.sort_unstable();
        idents.dedup();
        assert_eq!(idents.len(), after.len(), "{mtu}");
    }
    let (mut w, client, _, first) = in_flight("10.0.0.2:80", 6000);
    w.inject(&too_big(&first, 552));
    all_arrives(&mut w, &client, 6000);
    let after = seen_of_b(&mut w);
    assert!(after.iter().all(|packet| packet.len() <= 552 && dont_fragment(packet)));
}

#[test]
fn an_ipv6_path_mtu_below_the_minimum_is_discarded() {
    for (mtu, believed) in [(0, false), (1000, false), (1279, false), (1280, true)] {
        let (mut w, client, server, first) = in_flight("[fd00::2]:80", 6000);
        let before = w.b.drops(DropReason::IcmpIgnored);
        w.inject(&too_big(&first, mtu));
        all_arrives(&mut w, &client, 6000);
        seen_of_b(&mut w);
        w.b.write(&server, &[7; 6000]);
        all_arrives(&mut w, &client, 6000);
        let longest = seen_of_b(&mut w).iter().map(Vec::len).max();
        assert_eq!(longest, Some(if believed { 1280 } else { 1500 }), "{mtu}");
        let ignored = w.b.drops(DropReason::IcmpIgnored) - before;
        assert_eq!(ignored, u64::from(!believed), "{mtu}");
    }
}

#[test]
fn what_is_said_about_datagrams_is_nothing_to_connections() {
    let (mut w, client, server, _) = in_flight("10.0.0.2:80", 6000);
    let (udp, _) = w.b.open(SocketKind::Datagram, Family::V4);
    w.b.stack.bind(udp, "10.0.0.2:53".parse().unwrap(), Default::default()).unwrap();
    w.inject(&too_big(&forged_udp(53), 600));
    all_arrives(&mut w, &client, 6000);
    assert_eq!(w.b.drops(DropReason::IcmpErrorStray), 0, "the socket of the port believes it");
    seen_of_b(&mut w);
    // Neither this connection nor a later one uses the forged path MTU.
    w.b.write(&server, &[7; 6000]);
    all_arrives(&mut w, &client, 6000);
    let (listener, _) = w.a.listen("0.0.0.0:81", 8);
    let next = w.b.connect("10.0.0.1:81");
    w.wait(1000, "accept", |w| !w.a.host.accepted.is_empty());
    let end = w.a.accept(listener).unwrap();
    w.b.write(&next, &[7; 6000]);
    all_arrives(&mut w, &end, 6000);
    let longest = seen_of_b(&mut w).iter().map(Vec::len).max();
    assert_eq!(longest, Some(1500));
    assert_eq!(w.b.stack.counters().tcp_retransmits, 0);
    // Datagrams do use the path MTU.
    send(&mut w, udp, "10.0.0.1:9", 1400).unwrap();
    w.run(10);
    let longest = seen_of_b(&mut w).iter().map(Vec::len).max();
    assert!(longest <= Some(600), "{longest:?}");
}

#[test]
fn a_path_mtu_of_datagrams_in_the_name_of_others_is_heeded_if_the_owner_knows_them() {
    for (knows, expected) in [(false, 1448), (true, 1280)] {
        let mut w = World::with(WorldConfig::default(), StackConfig::default(), true);
        w.b.host.knows_strays = knows;
        w.keep_seen();
        let from = DatagramFrom {
            local: "[2001:db8::9]:53".parse().unwrap(),
            remote: "[fd00::1]:4000".parse().unwrap(),
            ttl: None,
            tos: 0,
        };
        let sent = |w: &mut World| {
            let payload = Payload::new(&[7; 1400], Default::default());
            w.b.stack.send_datagram_from(w.b.now, &from, &payload, &mut w.b.pool).unwrap();
            w.run(50);
            let ours = |packet: &Vec<u8>| packet[8..10] == [0x20, 0x01] && packet[6] != 58;
            w.take_seen().into_iter().filter(ours).collect::<Vec<_>>()
        };
        let first = sent(&mut w).swap_remove(0);
        w.inject(&too_big(&first, 1280));
        w.run(10);
        let longest = sent(&mut w).iter().map(Vec::len).max();
        assert!(longest <= Some(expected) && longest > Some(1200), "{knows}: {longest:?}");
        assert_eq!(longest == Some(1448), !knows);
        assert_eq!(w.b.drops(DropReason::IcmpErrorStray) == 0, knows);
    }
}

#[test]
fn what_is_said_about_a_connection_is_nothing_to_others() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    let (other, theirs) = w.connected(listener, "10.0.0.2:80");
    w.run(500);
    w.keep_seen();
    w.b.write(&server, &[7; 6000]);
    w.b.turn();
    let first = seen_of_b(&mut w).swap_remove(0);
    w.inject(&too_big(&first, 600));
    all_arrives(&mut w, &client, 6000);
    assert!(seen_of_b(&mut w).iter().all(|packet| packet.len() <= 600));
    w.b.write(&theirs, &[7; 6000]);
    all_arrives(&mut w, &other, 6000);
    assert_eq!(seen_of_b(&mut w).iter().map(Vec::len).max(), Some(1500));
    let (udp, _) = w.b.open(SocketKind::Datagram, Family::V4);
    send(&mut w, udp, "10.0.0.1:9", 1400).unwrap();
    w.run(10);
    assert_eq!(seen_of_b(&mut w).iter().map(Vec::len).max(), Some(1428));
}

/// Linux's mapping of errors (`icmp_err_convert`, `icmpv6_err_convert`): type, code, reason, and
/// whether a connected datagram socket gets the error by default.
const MEANINGS_V4: [(u8, u8, SocketError, bool); 18] = {
    use SocketError::*;
    [
        (3, 0, NetUnreachable, false),
        (3, 1, HostUnreachable, false),
        (3, 2, ProtocolUnreachable, true),
        (3, 3, PortUnreachable, true),
        (3, 5, SourceRouteFailed, false),
        (3, 6, NetUnreachable, true),
        (3, 7, HostUnknown, true),
        (3, 8, HostIsolated, true),
        (3, 9, NetUnreachable, true),
        (3, 10, HostUnreachable, true),
        (3, 11, NetUnreachable, false),
        (3, 12, HostUnreachable, false),
        (3, 13, HostUnreachable, true),
        (3, 14, HostUnreachable, true),
        (3, 15, HostUnreachable, true),
        (11, 0, HostUnreachable, false),
        (12, 0, BadHeader, true),
        (12, 1, BadHeader, true),
    ]
};
const MEANINGS_V6: [(u8, u8, SocketError, bool); 13] = {
    use SocketError::*;
    [
        (1, 0, NetUnreachable, false),
        (1, 1, Prohibited, true),
        (1, 2, HostUnreachable, false),
        (1, 3, HostUnreachable, false),
        (1, 4, PortUnreachable, true),
        (1, 5, Prohibited, true),
        (1, 6, Prohibited, true),
        (1, 7, BadHeader, true),
        (3, 0, HostUnreachable, false),
        (3, 1, HostUnreachable, false),
        (4, 0, BadHeader, true),
        (4, 1, BadHeader, true),
        (4, 2, BadHeader, true),
    ]
};

fn meanings() -> impl Iterator<Item = (&'static str, Family, (u8, u8, SocketError, bool))> {
    let v4 = MEANINGS_V4.into_iter().map(|row| ("10.0.0.1:9", Family::V4, row));
    v4.chain(MEANINGS_V6.into_iter().map(|row| ("[fd00::1]:9", Family::V6, row)))
}

#[test]
fn datagram_sockets_hear_of_what_will_not_pass_and_of_all_if_they_ask() {
    for (peer, family, (kind, code, reason, hard)) in meanings() {
        let mut w = World::new(WorldConfig::default());
        w.keep_seen();
        let (id, user) = w.b.open(SocketKind::Datagram, family);
        w.b.stack.connect_datagram(w.b.now, id, peer.parse().unwrap()).unwrap();
        for asked in [false, true] {
            for option in [SocketOption::RecvErrors(asked), SocketOption::RecvErrorsV6(asked)] {
                w.b.stack.set_option(id, option).unwrap();
            }
            send(&mut w, id, peer, 100).unwrap();
            w.b.turn();
            let sent = seen_of_b(&mut w).swap_remove(0);
            w.inject(&error_about(&sent, kind, code, 0));
            w.b.turn();
            let events = w.b.host.take_events(user);
            let reports = std::mem::take(&mut w.b.host.reports);
            let told: Vec<_> = reports.iter().map(|(_, report)| report.reason).collect();
            if asked {
                assert_eq!((&told[..], &events[..]), (&[reason][..], &[][..]), "{kind}/{code}");
            } else {
                let event = [SocketEvent::Error(reason)];
                let expected = if hard { &event[..] } else { &[] };
                assert_eq!((&told[..], &events[..]), (&[][..], expected), "{kind}/{code}");
            }
        }
    }
}

/// The destination is on the link, but no host has the address.
#[test]
fn a_neighbour_that_does_not_answer_is_no_error_of_a_datagram_socket() {
    let link = towpath_pool::LinkType::Ethernet;
    let mut w = World::new(WorldConfig { link, ..WorldConfig::default() });
    let (id, user) = w.b.open(SocketKind::Datagram, Family::V4);
    w.b.stack.connect_datagram(w.b.now, id, "10.0.0.99:9".parse().unwrap()).unwrap();
    send(&mut w, id, "10.0.0.99:9", 100).unwrap();
    w.run(10_000);
    assert_eq!(w.b.drops(DropReason::NeighborUnreachable), 1);
    assert!(w.b.host.take_events(user).is_empty());
}

#[test]
fn a_connect_fails_for_the_reason_that_is_told() {
    for (peer, _, (kind, code, reason, _)) in meanings() {
        let mut w = World::new(WorldConfig::default());
        w.keep_seen();
        let client = w.b.connect(peer);
        w.b.turn();
        let syn = seen_of_b(&mut w).swap_remove(0);
        w.inject(&error_about(&syn, kind, code, 0));
        w.b.turn();
        let events = w.b.host.take_events(client.user);
        assert_eq!(events, [SocketEvent::Error(reason)], "{peer} {kind}/{code}");
    }
}

#[test]
fn errors_to_groups_and_about_the_other_version_are_nobodys() {
    let (mut w, client, _, first) = in_flight("10.0.0.2:80", 6000);
    let ignored = w.b.drops(DropReason::IcmpIgnored);
    let mut to_all = too_big(&first, 600);
    to_all[16..20].copy_from_slice(&[10, 0, 0, 255]);
    to_all[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&to_all[..20], 0));
    to_all[10..12].copy_from_slice(&sum.to_be_bytes());
    w.inject(&to_all);
    w.b.turn();
    assert_eq!(w.b.drops(DropReason::IcmpIgnored), ignored + 1);
    // An ICMPv4 error that quotes an IPv6 segment.
    let (mut w6, _, _, first_v6) = in_flight("[fd00::2]:80", 6000);
    let mut crossed = too_big(&first, 600);
    crossed.truncate(28);
    crossed.extend(&first_v6[..100]);
    crossed[2..4].copy_from_slice(&128u16.to_be_bytes());
    crossed[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&crossed[..20], 0));
    crossed[10..12].copy_from_slice(&sum.to_be_bytes());
    icmpv4::fill_checksum(&mut crossed[20..]);
    let malformed = w6.b.drops(DropReason::IcmpMalformed);
    w6.inject(&crossed);
    w6.b.turn();
    assert_eq!(w6.b.drops(DropReason::IcmpMalformed), malformed + 1);
    all_arrives(&mut w, &client, 6000);
    assert!(seen_of_b(&mut w).iter().all(|packet| packet.len() > 1000 || packet.len() < 60));
}

/// A connection tries its link's MTU again when its path MTU has expired.
#[test]
fn a_learnt_path_mtu_grows_old() {
    let (mut w, client, server, first) = in_flight("10.0.0.2:80", 6000);
    w.inject(&too_big(&first, 1000));
    all_arrives(&mut w, &client, 6000);
    w.run(300_000);
    w.inject(&too_big(&first, 900));
    assert_eq!(w.b.info(server.id).unwrap().mtu, Some(1000), "nothing is in flight");
    w.run(300_001);
    seen_of_b(&mut w);
    w.b.write(&server, &[7; 6000]);
    all_arrives(&mut w, &client, 6000);
    assert_eq!(seen_of_b(&mut w).iter().map(Vec::len).max(), Some(1500));
}

/// Each mode of IP_MTU_DISCOVER, with a datagram that fits the path, one that fits the link, and a
/// longer one.
#[test]
fn datagrams_are_cut_or_refused_as_the_program_says() {
    use MtuDiscovery::*;
    let over = Err(SendError::TooLong);
    for (discovery, middle, long, df) in [
        (Dont, Ok(2), Ok(2), false),
        (Want, Ok(2), Ok(2), true),
        (Do, over, over, true),
        (Probe, Ok(1), over, true),
        (Interface, Ok(1), over, false),
        (Omit, Ok(1), Ok(2), false),
    ] {
        let mut w = World::new(WorldConfig::default());
        let (id, _) = w.b.open(SocketKind::Datagram, Family::V4);
        w.b.stack.bind(id, "10.0.0.2:53".parse().unwrap(), Default::default()).unwrap();
        w.inject(&too_big(&forged_udp(53), 1000));
        w.b.turn();
        w.b.stack.set_option(id, SocketOption::MtuDiscover(discovery)).unwrap();
        w.b.stack.set_option(id, SocketOption::RecvErrors(true)).unwrap();
        w.keep_seen();
        for (len, expected) in [(900, Ok(1)), (1100, middle), (1600, long)] {
            let remote = Some("10.0.0.1:9".parse().unwrap());
            let out = DatagramOut { remote, ..Default::default() };
            let checked = w.b.stack.check_datagram(w.b.now, id, &out, len as u32);
            assert_eq!(checked, expected.map(|_| ()), "{discovery:?} {len}");
            w.b.turn();
            let told = w.b.host.reports.drain(..).count();
            assert_eq!(told, usize::from(expected.is_err()), "{discovery:?} {len}");
            let sent = send(&mut w, id, "10.0.0.1:9", len);
            assert_eq!(sent, expected.map(|_| ()), "{discovery:?} {len}");
            w.b.turn();
            w.b.host.reports.clear();
            let seen = seen_of_b(&mut w);
            assert_eq!(seen.len(), expected.unwrap_or(0), "{discovery:?} {len}");
            for packet in &seen {
                assert_eq!(dont_fragment(packet), df && seen.len() == 1, "{discovery:?} {len}");
            }
        }
    }
}

/// As on Linux 6.18, segments of a datagram (UDP_SEGMENT) are not fragmented, and no report states
/// their maximum length.
#[test]
fn parts_of_a_train_that_are_too_long_are_refused() {
    let mut w = World::new(WorldConfig::default());
    let id = w.b.open(SocketKind::Datagram, Family::V4).0;
    w.b.stack.set_option(id, SocketOption::RecvErrors(true)).unwrap();
    let remote = Some("10.0.0.1:9".parse().unwrap());
    for (len, size, expected) in [
        (3000, 1472, Ok(())),
        (3000, 1473, Err(SendError::TooLong)),
        (1472, 1473, Ok(())),
        (1473, 2000, Err(SendError::TooLong)),
    ] {
        let out = DatagramOut { remote, segment_size: Some(size), ..Default::default() };
        assert_eq!(w.b.stack.check_datagram(w.b.now, id, &out, len), expected, "{len} {size}");
        w.b.turn();
        assert_eq!(w.b.host.reports.len(), 0, "{len} {size}");
    }
}

/// IP_MTU is the current path MTU, not that of the last datagram.
#[test]
fn the_path_mtu_of_a_datagram_socket_is_not_yesterdays() {
    let mut w = World::new(WorldConfig::default());
    let (id, user) = w.b.open(SocketKind::Datagram, Family::V4);
    w.b.stack.connect_datagram(w.b.now, id, "10.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(w.b.info(id).unwrap().mtu, Some(1500));
    w.keep_seen();
    send(&mut w, id, "10.0.0.1:9", 1400).unwrap();
    w.b.turn();
    let sent = seen_of_b(&mut w).swap_remove(0);
    w.inject(&too_big(&sent, 1000));
    w.b.turn();
    assert_eq!(w.b.info(id).unwrap().mtu, Some(1000));
    assert_eq!(w.b.host.take_events(user), [SocketEvent::Error(SocketError::MessageTooBig(1000))]);
}

#[test]
fn connecting_to_all_is_no_way() {
    let mut w = World::new(WorldConfig::default());
    for to in ["255.255.255.255:80", "239.1.1.1:80", "10.0.0.255:80"] {
        let (id, _) = w.a.open(SocketKind::Stream, Family::V4);
        let (recv, send) = (super::world::Recv::new(1, 1), super::world::Send::new(4096));
        let refused = w.a.stack.connect(w.a.now, id, to.parse().unwrap(), recv, send);
        assert_eq!(refused, Err(crate::ConnectError::NetUnreachable), "{to}");
    }
}

/// Undefined codes, and the error that a destination could not reassemble fragments.
#[test]
fn some_errors_are_told_to_nobody() {
    for (kind, code) in [(3, 16), (3, 255), (11, 1)] {
        let mut w = World::new(WorldConfig::default());
        w.keep_seen();
        let client = w.b.connect("10.0.0.1:9");
        let (id, user) = w.b.open(SocketKind::Datagram, Family::V4);
        w.b.stack.set_option(id, SocketOption::RecvErrors(true)).unwrap();
        w.b.stack.connect_datagram(w.b.now, id, "10.0.0.1:9".parse().unwrap()).unwrap();
        send(&mut w, id, "10.0.0.1:9", 100).unwrap();
        w.b.turn();
        for sent in seen_of_b(&mut w) {
            w.inject(&error_about(&sent, kind, code, 0));
        }
        w.b.turn();
        assert!(w.b.host.take_events(client.user).is_empty(), "{kind}/{code}");
        assert!(w.b.host.take_events(user).is_empty(), "{kind}/{code}");
        assert!(w.b.host.reports.is_empty(), "{kind}/{code}");
    }
}

/// Creates a datagram socket of b at `addr` with IP_RECVERR. Returns the socket and its user.
fn asks_for_errors(w: &mut World, addr: &str, options: BindOptions) -> (SocketId, u32) {
    let addr: std::net::SocketAddr = addr.parse().unwrap();
    let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
    let (id, user) = w.b.open(SocketKind::Datagram, family);
    w.b.stack.bind(id, addr, options).unwrap();
    for option in [SocketOption::RecvErrors(true), SocketOption::RecvErrorsV6(true)] {
        w.b.stack.set_option(id, option).unwrap();
    }
    (id, user)
}

/// Returns the users of sockets that received error reports, in order.
fn told(w: &mut World) -> Vec<u32> {
    w.b.host.reports.drain(..).map(|(user, _)| user).collect()
}

/// As in Linux's `__udp4_lib_err`, the socket is looked up like that of a datagram from the
/// destination.
#[test]
fn of_those_that_share_a_port_an_error_goes_to_whom_datagrams_of_its_flow_reach() {
    let mut w = World::new(WorldConfig::default());
    w.run(3000);
    for (own, peer) in [("10.0.0.2:900", "10.0.0.1"), ("[fd00::2]:900", "[fd00::1]")] {
        let options = BindOptions { reuse_port: true, ..Default::default() };
        let members = [0; 4].map(|_| asks_for_errors(&mut w, own, options));
        let mut met = std::collections::BTreeSet::new();
        for port in 3000..3040 {
            let remote = format!("{peer}:{port}");
            let (id, _) = super::datagram::bound(&mut w.a, &remote);
            super::datagram::send(&mut w.a, id, Some(own), b"who?").unwrap();
            w.run(10);
            w.a.close(id);
            let (user, ..) = w.b.host.datagrams.pop().expect("a datagram");
            send(&mut w, members[0].0, &remote, 10).unwrap();
            w.run(10);
            assert_eq!(told(&mut w), [user], "{remote}");
            met.insert(user);
        }
        assert_eq!(met.len(), 4, "each of them");
    }
}

/// A socket that is bound to a device gets only errors that arrived there. Errors on other devices
/// reach other sockets.
#[test]
fn errors_pass_by_sockets_of_other_devices() {
    let mut w = World::new(WorldConfig::default());
    w.run(3000);
    for (own, peer) in [("10.0.0.2:900", "10.0.0.1:9"), ("[fd00::2]:900", "[fd00::1]:9")] {
        let options = BindOptions { reuse_addr: true, ..Default::default() };
        let (open, open_user) = asks_for_errors(&mut w, own, options);
        let (away, away_user) = asks_for_errors(&mut w, own, options);
        let (lone, lone_user) = asks_for_errors(&mut w, own, options);
        w.b.stack.connect_datagram(w.b.now, lone, peer.parse().unwrap()).unwrap();
        let mut check = |away_on, lone_on, expected| {
            w.b.stack.set_option(away, SocketOption::Device(away_on)).unwrap();
            w.b.stack.set_option(lone, SocketOption::Device(lone_on)).unwrap();
            send(&mut w, open, peer, 10).unwrap();
            w.run(10);
            assert_eq!(told(&mut w), [expected], "{own} {away_on:?} {lone_on:?}");
        };
        let (here, elsewhere) = (Some(IfaceId(1)), Some(IfaceId::LOOPBACK));
        check(elsewhere, elsewhere, open_user);
        check(here, elsewhere, away_user);
        check(elsewhere, here, lone_user);
        check(here, None, lone_user);
    }
}

/// As on Linux 6.18, an ICMP message about an own address arrives on loopback, an ICMPv6 message on
/// the interface with the address. Each row was verified there.
#[test]
fn errors_about_what_a_host_sends_itself_come_in_where_they_do_on_linux() {
    let (here, loopback) = (Some(IfaceId(1)), Some(IfaceId::LOOPBACK));
    for (own, to, device, hears) in [
        ("10.0.0.2:900", "10.0.0.2:9", None, true),
        ("10.0.0.2:900", "10.0.0.2:9", here, false),
        ("10.0.0.2:900", "10.0.0.2:9", loopback, true),
        ("[fd00::2]:900", "[fd00::2]:9", None, true),
        ("[fd00::2]:900", "[fd00::2]:9", here, true),
    ] {
        let mut w = World::new(WorldConfig::default());
        w.run(3000);
        let (id, user) = asks_for_errors(&mut w, own, BindOptions::default());
        w.b.stack.set_option(id, SocketOption::Device(device)).unwrap();
        send(&mut w, id, to, 10).unwrap();
        w.run(10);
        let expected = if hears { vec![user] } else { Vec::new() };
        assert_eq!(told(&mut w), expected, "{own} {device:?}");
    }
}
