//! Tests of listeners: options of half-open connections, floods, and segments other than SYNs.

use std::net::SocketAddr;
use std::num::NonZeroU8;

use towpath_tcp::{Flags, SeqNum};
use towpath_wire::{ipv4, ipv6, tcp};

use super::scale::{segment, syn, without_cookies};
use super::world::{Conn, MS, World, WorldConfig};
use crate::net::{IfaceId, InterfaceConfig};
use crate::{DropReason, Linger, SocketError, SocketEvent, SocketOption, StackConfig};

/// Returns the TCP header of an IP packet.
pub fn header(packet: &[u8]) -> tcp::Header {
    let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
    tcp::Header::parse(&packet[at..]).expect("TCP")
}

pub fn is_syn_ack(packet: &[u8]) -> bool {
    header(packet).flags == Flags::SYN | Flags::ACK
}

/// Returns the hop limit and traffic class of an IP packet.
pub fn hops_and_class(packet: &[u8]) -> (u8, u8) {
    if packet[0] >> 4 == 4 {
        let (header, _) = ipv4::Header::parse(packet).expect("IPv4");
        return (header.ttl, header.tos);
    }
    let (header, _) = ipv6::Header::parse(packet).expect("IPv6");
    (header.hop_limit, header.traffic_class)
}

/// A peer may drop packets that crossed a router (RFC 5082), so every segment must have the
/// configured TTL.
#[test]
fn segments_without_a_connection_leave_as_the_listener_says() {
    for (listen, connect) in [("0.0.0.0:80", "10.0.0.2:80"), ("[::]:80", "[fd00::2]:80")] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen(listen, 10);
        for option in [
            SocketOption::Ttl(NonZeroU8::new(255)),
            SocketOption::UnicastHops(Some(255)),
            SocketOption::Tos(0xb8),
            SocketOption::TrafficClass(0xb8),
            SocketOption::MaxSegment(1000),
        ] {
            w.b.stack.set_option(listener, option).unwrap();
        }
        w.keep_seen();
        let client = w.a.connect(connect);
        w.wait(1000, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).unwrap();
        w.run(10);
        // The server closes first and keeps the TIME-WAIT, and the client's FIN arrives there
        // again.
        w.b.close(server.id);
        w.run(10);
        w.a.close(client.id);
        w.run(10);
        let mine = if listen.starts_with('0') { [10, 0, 0, 2].to_vec() } else { vec![0, 2] };
        let seen = w.take_seen();
        let (from_b, from_a): (Vec<_>, Vec<_>) = seen.into_iter().partition(|packet| {
            let end = if packet[0] >> 4 == 4 { 16 } else { 24 };
            packet[..end].ends_with(&mine)
        });
        let syn_ack = from_b.iter().find(|packet| is_syn_ack(packet)).expect("a SYN-ACK");
        assert_eq!(header(syn_ack).options.mss, Some(1000));
        assert!(from_b.iter().all(|packet| hops_and_class(packet) == (255, 0xb8)), "{from_b:x?}");
        assert_eq!(w.b.stack.time_waits.len(), 1);
        let fin = from_a.iter().find(|packet| header(packet).flags.contains(Flags::FIN));
        w.inject(fin.expect("a FIN"));
        w.run(10);
        let answer = w.take_seen().swap_remove(0);
        assert_eq!(header(&answer).flags, Flags::ACK);
        assert_eq!(hops_and_class(&answer), (255, 0xb8), "from TIME-WAIT");
    }
}

/// Routes lead to the client by another interface, but the socket is bound to a device.
#[test]
fn a_syn_ack_leaves_by_the_listeners_device() {
    for bound in [true, false] {
        let mut w = World::new(WorldConfig::default());
        let now = w.b.now;
        let config = InterfaceConfig {
            name: "eth1".to_string(),
            link: towpath_pool::LinkType::Ip,
            mac: towpath_wire::MacAddr::default(),
            mtu: 1280,
            offloads: towpath_pool::Offloads::default(),
            addresses: vec!["10.1.0.2/24".parse().unwrap()],
            slaac: false,
            any_address: false,
            kernel_cuts: false,
            in_process: false,
        };
        let other = w.b.stack.net.add_interface(now, config);
        w.b.stack.net.add_route("11.0.0.0/8".parse().unwrap(), None, other, 1);
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        if bound {
            w.b.stack.set_option(listener, SocketOption::Device(Some(IfaceId(1)))).unwrap();
        }
        w.keep_seen();
        w.inject(&syn(0x0b00_0001, 80));
        w.b.turn();
        let seen = w.take_seen();
        assert_eq!(seen.iter().filter(|packet| is_syn_ack(packet)).count(), usize::from(bound));
        assert_eq!(w.b.stack.net.output(other).len(), usize::from(!bound));
        // The MSS is that of the link on which the SYN-ACK is sent.
        if bound {
            assert_eq!(header(&seen[0]).options.mss, Some(1460));
        }
    }
}

#[test]
fn the_mtu_of_a_route_is_in_both_segment_sizes_of_a_connection() {
    let mut w = World::new(WorldConfig::default());
    let to = "11.0.0.0/8".parse().unwrap();
    let (iface, mtu) = (Some(IfaceId(1)), Some(900));
    let route = crate::net::RouteSpec { iface, mtu, ..crate::net::RouteSpec::to(to) };
    let change = crate::net::Change::SetRoute(route, crate::net::How::Add);
    let now = w.now();
    w.b.stack.net.apply(now, &[change]).unwrap();
    w.b.listen("0.0.0.0:80", 10);
    w.keep_seen();
    w.inject(&syn(0x0b00_0001, 80));
    w.b.turn();
    let seen = w.take_seen();
    let answer = seen.iter().find(|packet| is_syn_ack(packet)).expect("an answer");
    assert_eq!(header(answer).options.mss, Some(860));
}

#[test]
fn a_listener_says_how_often_its_syn_acks_are_sent() {
    for retries in [1, 3] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        w.b.stack.set_option(listener, SocketOption::SynRetries(retries)).unwrap();
        w.keep_seen();
        w.inject(&syn(0x0b00_0001, 80));
        w.run(100_000);
        let sent = w.take_seen().iter().filter(|packet| is_syn_ack(packet)).count();
        assert_eq!(sent, 1 + usize::from(retries));
        assert_eq!(w.b.stack.counters().tcp_half_open_timeouts, 1);
    }
}

/// SO_RCVBUF on a listener applies to its children.
#[test]
fn a_syn_ack_offers_no_more_than_there_will_be() {
    for capacity in [2304, 8192, 65_536] {
        let mut w = World::new(WorldConfig::default());
        w.b.host.capacity = (capacity, capacity);
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        w.keep_seen();
        let (client, server) = w.connected(listener, "10.0.0.2:80");
        let seen = w.take_seen();
        let syn_ack = seen.iter().find(|packet| is_syn_ack(packet)).expect("a SYN-ACK");
        assert_eq!(usize::from(header(syn_ack).window), capacity.min(65_535));
        let len = 300_000;
        let (mut sent, mut got) = (0, 0);
        w.wait(5000, "transfer", |w| {
            sent += w.a.write(&client, &vec![1; len - sent]);
            got += w.b.read(&server).len();
            got == len
        });
        assert_eq!(w.a.stack.counters().tcp_retransmits, 0, "what was invited was taken");
    }
}

/// The stack requests a notification of the next read when the peer waits for it. Bulk data over a
/// link without delay therefore never waits for a window probe.
#[test]
fn a_slow_reader_over_loopback_does_not_stall() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.a.listen("127.0.0.1:80", 8);
    let client = w.a.connect("127.0.0.1:80");
    w.wait(10, "accept", |w| !w.a.host.accepted.is_empty());
    let server = w.a.accept(listener).unwrap();
    let len = 1 << 20;
    let (mut sent, mut got) = (0, 0);
    let mut records = [5, 16_406].into_iter().cycle();
    let start = w.now();
    while got < len {
        sent += w.a.write(&client, &vec![1; len - sent]);
        match w.a.read_some(&server, records.next().unwrap()).len() {
            0 => w.run(1),
            read => {
                got += read;
                w.settle();
            }
        }
    }
    let took = w.now().since(start);
    assert!(took.as_millis() < 10, "{took:?}");
}

/// More clients connect at once than the accept queue has places. Each client with a place
/// completes its handshake, and the SYNs of other clients are dropped.
#[test]
fn a_syn_from_within_the_process_takes_its_place_in_the_queue() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.a.listen("127.0.0.1:80", 3);
    let clients: Vec<_> = (0..10).map(|_| w.a.connect("127.0.0.1:80")).collect();
    w.run(10);
    let mut accepted = 0;
    for round in [4, 4, 2] {
        let connected = |w: &World| {
            clients.iter().filter(|it| w.a.host.has(it.user, SocketEvent::Connected)).count()
        };
        assert_eq!(connected(&w), accepted + round);
        assert_eq!(w.a.stack.handshakes.half_open.len(), 0);
        for _ in 0..round {
            w.a.accept(listener).expect("it is connected");
        }
        accepted += round;
        // Repeat the SYNs now; TCP itself would retransmit them after a second.
        for client in &clients {
            w.a.stack.repeat_syn(client.id);
        }
        w.run(10);
    }
    assert_eq!(w.a.drops(DropReason::ListenOverflow), 6 + 2);
    assert_eq!(w.a.drops(DropReason::AcceptOverflow), 0);
    assert_eq!(w.a.stack.counters().tcp_resets_sent, 0);
}

/// A handshake that is never completed frees its place when it times out. SYNs from other hosts
/// reserve no place.
#[test]
fn places_are_taken_within_the_process_alone_and_given_back() {
    for in_process in [true, false] {
        let link = WorldConfig { in_process, ..WorldConfig::default() };
        let mut w = World::new(link);
        let (listener, _) = w.b.listen("0.0.0.0:80", 3);
        for n in 0..10 {
            w.inject(&syn(0x0b00_0000 + n, 80));
        }
        w.run(10);
        let places = if in_process { 4 } else { 10 };
        assert_eq!(w.b.stack.handshakes.half_open.len(), places);
        assert_eq!(w.b.drops(DropReason::ListenOverflow), 10 - places as u64);
        if in_process {
            w.run(100_000);
            assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
        }
        for _ in 0..4 {
            w.a.connect("10.0.0.2:80");
        }
        w.run(10);
        for _ in 0..4 {
            w.b.accept(listener).expect("there is a place for each");
        }
        assert_eq!(w.b.drops(DropReason::AcceptOverflow), 0);
    }
}

/// A peer without the connection resets it, and closing a listener removes its half-open
/// connections.
#[test]
fn places_of_handshakes_that_fail_are_given_back() {
    let mut w = World::new(WorldConfig { in_process: true, ..WorldConfig::default() });
    let (listener, _) = w.b.listen("0.0.0.0:80", 3);
    for _ in 0..10 {
        // 10.0.0.1, which sent no SYN.
        w.inject(&syn(0x0a00_0001, 80));
        w.run(10);
        assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
    }
    assert_eq!(w.b.drops(DropReason::ListenOverflow), 0);
    for _ in 0..5 {
        w.a.connect("10.0.0.2:80");
    }
    w.run(10);
    for _ in 0..4 {
        w.b.accept(listener).expect("there is a place for each");
    }
    assert_eq!(w.b.drops(DropReason::ListenOverflow), 1);
    w.inject(&syn(0x0b00_0000, 80));
    w.run(10);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 1);
    let now = w.now();
    w.b.stack.close(now, listener, Linger::Abort);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
}

/// Connects `count` clients, one every 100 ms, while `flood` forged SYNs arrive per millisecond.
fn connect_under_flood(w: &mut World, count: usize, flood: u32) -> Vec<Conn> {
    let (mut clients, mut n) = (Vec::new(), 0);
    for ms in 0..100 * count {
        for _ in 0..flood {
            n += 1;
            w.inject(&syn(0x0b00_0000 + n, 80));
        }
        if ms % 100 == 50 {
            clients.push(w.a.connect("10.0.0.2:80"));
        }
        w.run(1);
    }
    clients
}

/// Clients with round-trip times of 100 ms to 700 ms all connect.
#[test]
fn slow_clients_connect_while_a_listener_is_flooded() {
    for (flood, delay_ms) in [(5, 50), (5, 350), (25, 250)] {
        let link = WorldConfig { delay_ns: delay_ms * MS, ..WorldConfig::default() };
        let mut w = World::new(link);
        let (listener, _) = w.b.listen("0.0.0.0:80", 511);
        // The first second of the flood fills the cache.
        for client in connect_under_flood(&mut w, 20, flood) {
            w.wait(1000, "connect", |w| {
                w.b.accept(listener);
                w.a.host.has(client.user, SocketEvent::Connected)
            });
            w.run(1000);
            assert!(!w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
        }
        assert_eq!(w.b.drops(DropReason::SynCacheFull), 0);
        assert_eq!(w.b.stack.counters().tcp_accepts, 20);
    }
}

/// The client's answer takes longer than [`HALF_OPEN_PATIENCE`](crate::limits::HALF_OPEN_PATIENCE),
/// and its entry was evicted.
#[test]
fn a_client_that_was_displaced_is_not_reset() {
    let config = StackConfig { syn_cache_max: 4, tcp: without_cookies(), ..StackConfig::default() };
    let link = WorldConfig { delay_ns: 600 * MS, ..WorldConfig::default() };
    let mut w = World::with(link, config, false);
    w.b.listen("0.0.0.0:80", 511);
    let client = w.a.connect("10.0.0.2:80");
    w.run(650);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 1);
    w.run(1050);
    for n in 0..10 {
        w.inject(&syn(0x0b00_0000 + n, 80));
    }
    w.b.turn();
    assert_eq!(w.b.stack.counters().tcp_half_open_displaced, 1);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 2, "two of four places are left");
    w.run(5000);
    assert!(w.b.drops(DropReason::HalfOpenDisplaced) > 0);
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 0);
    assert!(!w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
    // Long after the last eviction, a segment without a connection is answered by a RST again.
    w.run(70_000);
    w.inject(&segment(0x0b00_0001, 80, Flags::ACK, SeqNum(78), SeqNum(1)));
    w.b.turn();
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 1);
}

#[test]
fn a_repeated_syn_keeps_its_place() {
    let config = StackConfig { syn_cache_max: 4, tcp: without_cookies(), ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    w.b.listen("0.0.0.0:80", 511);
    for n in [1, 2] {
        w.inject(&syn(0x0b00_0000 + n, 80));
        w.run(600);
    }
    // The first entry is the oldest although its SYN was retransmitted, and the second is too young
    // to be evicted.
    for n in [1, 3, 4] {
        w.inject(&syn(0x0b00_0000 + n, 80));
        w.b.turn();
    }
    let remotes = w.b.stack.handshakes.half_open.iter().map(|entry| entry.flow.remote);
    let mut remotes: Vec<_> = remotes.map(|remote| remote.to_string()).collect();
    remotes.sort();
    assert_eq!(remotes, ["11.0.0.2", "11.0.0.3"]);
    assert_eq!(w.b.drops(DropReason::SynCacheFull), 1);
}

/// Returns a listener on b that has a connection in TIME-WAIT, and the client's port.
fn in_time_wait(w: &mut World) -> (crate::SocketId, u16) {
    let (listener, _) = w.b.listen("0.0.0.0:80", 0);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    let port = w.a.info(client.id).unwrap().local.unwrap().port();
    w.b.close(server.id);
    w.run(50);
    w.a.close(client.id);
    w.run(2000);
    assert_eq!(w.b.stack.time_waits.len(), 1);
    (listener, port)
}

/// Connects from `port` of a, for which b's TIME-WAIT may accept a new connection.
fn reconnect(w: &mut World, port: u16) -> Conn {
    let (id, user) = w.a.open(crate::SocketKind::Stream, crate::Family::V4);
    let local = SocketAddr::from(([0, 0, 0, 0], port));
    let options = crate::BindOptions { reuse_addr: true, ..Default::default() };
    w.a.stack.bind(id, local, options).expect("bind");
    let remote: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let (recv, send) = (super::world::Recv::new(4096, 4096), super::world::Send::new(4096));
    let now = w.a.now;
    w.a.stack.connect(now, id, remote, recv.clone(), send.clone()).expect("connect");
    Conn { id, user, recv, send, remote }
}

#[test]
fn time_wait_stays_when_nobody_takes_the_syn() {
    let mut w = World::new(WorldConfig::default());
    let (listener, port) = in_time_wait(&mut w);
    w.b.close(listener);
    w.run(10);
    let resets = w.b.stack.counters().tcp_resets_sent;
    let client = reconnect(&mut w, port);
    w.run(100);
    assert_eq!(
        w.b.stack.time_waits.len(),
        1,
        "what protects the old connection's peer is still there"
    );
    assert_eq!(w.b.stack.counters().tcp_resets_sent, resets);
    assert!(!w.a.host.has(client.user, SocketEvent::Error(SocketError::Refused)));
}

#[test]
fn time_wait_stays_while_the_listener_is_full() {
    let mut w = World::new(WorldConfig::default());
    let (listener, port) = in_time_wait(&mut w);
    w.a.connect("10.0.0.2:80");
    w.run(100);
    assert_eq!(w.b.host.accepted.len(), 1, "which is all that may wait");
    let client = reconnect(&mut w, port);
    w.run(100);
    assert_eq!(w.b.stack.time_waits.len(), 1);
    assert_eq!(w.b.drops(DropReason::ListenOverflow), 1);
    w.b.accept(listener).unwrap();
    w.wait(5000, "connect", |w| w.a.host.has(client.user, SocketEvent::Connected));
    assert_eq!(w.b.stack.time_waits.len(), 0);
}

#[test]
fn a_listener_is_silent_about_what_means_nothing() {
    let mut w = World::new(WorldConfig::default());
    w.b.listen("0.0.0.0:80", 10);
    let bad = [
        Flags::NONE,
        Flags::FIN,
        Flags::PSH | Flags::URG,
        Flags::FIN | Flags::PSH | Flags::URG,
        Flags::SYN | Flags::FIN,
    ];
    for (n, flags) in (1u64..).zip(bad) {
        w.inject(&segment(0x0b00_0001, 80, flags, SeqNum(77), SeqNum(0)));
        w.b.turn();
        assert_eq!(w.b.drops(DropReason::TcpBadFlags), n, "{flags:?}");
        assert_eq!(w.b.stack.counters().tcp_resets_sent, 0);
        assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
    }
    // Without a listener, each segment is answered by a reset (RFC 9293 section 3.10.7.1), and so
    // is an ACK to the listener.
    for (n, flags) in (1u64..).zip(bad) {
        w.inject(&segment(0x0b00_0001, 81, flags, SeqNum(77), SeqNum(0)));
        w.b.turn();
        assert_eq!(w.b.stack.counters().tcp_resets_sent, n, "{flags:?}");
    }
    w.inject(&segment(0x0b00_0001, 80, Flags::ACK, SeqNum(77), SeqNum(5)));
    w.b.turn();
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 6);
}

#[test]
fn a_peer_that_gives_up_takes_its_pending_syn_back() {
    let mut w = World::with(WorldConfig::default(), StackConfig::default(), true);
    w.inject(&syn(0x0b00_0001, 80));
    w.b.turn();
    let (pending, ..) = w.b.host.syns.pop().expect("asked");
    let reset = |seq| segment(0x0b00_0001, 80, Flags::RST, SeqNum(seq), SeqNum(0));
    for (seq, left) in [(77, 1), (79, 1), (78, 0)] {
        w.inject(&reset(seq));
        w.b.turn();
        assert_eq!(w.b.stack.handshakes.pending.len(), left, "{seq}");
    }
    assert!(w.b.stack.pending_headers(pending).is_empty(), "it is forgotten");
}

#[test]
fn a_connection_keeps_the_segment_size_of_its_handshake() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, _) = w.connected(listener, "10.0.0.2:80");
    let mss = |w: &World| w.a.info(client.id).unwrap().tcp.unwrap().snd_mss;
    let before = mss(&w);
    w.a.stack.set_option(client.id, SocketOption::MaxSegment(500)).unwrap();
    assert_eq!(mss(&w), before);
    // A new route lookup does not apply the option, either.
    w.a.stack.set_option(client.id, SocketOption::Device(Some(IfaceId(1)))).unwrap();
    w.a.write(&client, b"x");
    w.run(100);
    assert_eq!(mss(&w), before);
}
