//! Tests of SYN cookies: the options they preserve, the ACKs they accept, and when a listener sends
//! them.

use towpath_tcp::{Config, EcnMode, Flags, SeqNum, SynCookies};
use towpath_wire::tcp;

use super::listen::{header, hops_and_class, is_syn_ack};
use super::scale::{packet, segment, syn};
use super::world::{MS, World, WorldConfig};
use crate::{DropReason, SocketError, SocketEvent, SocketOption, StackConfig};

/// Address of a client that sends no options.
const PLAIN: u32 = 0x0b00_0001;

/// Creates a listener without free places for half-open connections.
fn flooded(cookies: SynCookies) -> (World, crate::SocketId) {
    let config = StackConfig {
        syn_cache_max: 8,
        tcp: Config { syn_cookies: cookies, ..Config::default() },
        ..StackConfig::default()
    };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("[::]:80", 511);
    for n in 0..4 {
        w.inject(&syn(0x0b01_0000 + n, 80));
    }
    w.b.turn();
    assert_eq!(w.b.stack.handshakes.half_open.len(), 4);
    w.keep_seen();
    (w, listener)
}

fn always() -> StackConfig {
    let tcp = Config { syn_cookies: SynCookies::Always, ..Config::default() };
    StackConfig { tcp, ..StackConfig::default() }
}

/// Sends a SYN of the client without options. Returns the sequence number of the SYN-ACK.
fn cookie(w: &mut World) -> SeqNum {
    w.take_seen();
    w.inject(&syn(PLAIN, 80));
    w.b.turn();
    let seen = w.take_seen();
    let syn_ack = header(seen.last().expect("an answer"));
    assert_eq!((syn_ack.flags, syn_ack.ack), (Flags::SYN | Flags::ACK, SeqNum(78)));
    assert_eq!(syn_ack.options.window_scale, None);
    assert!(!syn_ack.options.sack_permitted);
    syn_ack.seq
}

fn acknowledge(w: &mut World, src: u32, seq: SeqNum, ack: SeqNum) {
    w.inject(&segment(src, 80, Flags::ACK, seq, ack));
    w.b.turn();
}

#[test]
fn a_connection_by_cookie_has_the_options_of_its_handshake() {
    for remote in ["10.0.0.2:80", "[fd00::2]:80"] {
        let (mut w, listener) = flooded(SynCookies::UnderPressure);
        let (client, server) = w.connected(listener, remote);
        let counters = *w.b.stack.counters();
        assert_eq!((counters.tcp_syn_cookies_sent, counters.tcp_syn_cookies_valid), (1, 1));
        assert_eq!(w.b.stack.handshakes.half_open.len(), 4, "a cookie takes no place");
        let theirs = w.a.info(client.id).unwrap().tcp.unwrap();
        let ours = w.b.info(server.id).unwrap().tcp.unwrap();
        assert!(ours.timestamps && ours.sack && ours.window_scaling);
        assert!(theirs.timestamps && theirs.sack && theirs.window_scaling);
        assert_eq!(ours.snd_wscale, theirs.rcv_wscale);
        assert_eq!(ours.rcv_wscale, theirs.snd_wscale);
        assert_eq!(ours.snd_mss, theirs.advmss);
        let (mut sent, mut got) = (0, 0);
        w.wait(10_000, "transfer", |w| {
            sent += w.a.write(&client, &vec![1; 300_000 - sent]);
            got += w.b.read(&server).len();
            got == 300_000
        });
        assert_eq!(w.a.stack.counters().tcp_retransmits, 0);
    }
}

#[test]
fn the_mss_of_a_cookie_is_rounded_down() {
    for (announced, kept) in [(100, 64), (1300, 1220), (1459, 1440), (1460, 1460)] {
        let (mut w, listener) = flooded(SynCookies::UnderPressure);
        let (client, _) = w.a.open(crate::SocketKind::Stream, crate::Family::V4);
        w.a.stack.set_option(client, SocketOption::MaxSegment(announced)).unwrap();
        let buffers = (super::world::Recv::new(4096, 4096), super::world::Send::new(4096));
        let now = w.now();
        w.a.stack
            .connect(now, client, "10.0.0.2:80".parse().unwrap(), buffers.0, buffers.1)
            .unwrap();
        w.wait(100, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).unwrap();
        let mss = w.b.info(server.id).unwrap().tcp.unwrap().snd_mss;
        assert_eq!(mss, kept - 12, "{announced}");
    }
}

#[test]
fn an_ack_is_accepted_only_with_the_numbers_and_addresses_of_its_cookie() {
    let (mut w, _) = flooded(SynCookies::UnderPressure);
    let iss = cookie(&mut w);
    let wrong = [
        (PLAIN, SeqNum(78), iss),
        (PLAIN, SeqNum(78), iss + 2),
        (PLAIN, SeqNum(78), iss + 1 + (1 << 31)),
        (PLAIN, SeqNum(79), iss + 1),
        (PLAIN + 1, SeqNum(78), iss + 1),
    ];
    for (n, (src, seq, ack)) in (1..).zip(wrong) {
        acknowledge(&mut w, src, seq, ack);
        assert_eq!(w.b.stack.counters().tcp_syn_cookies_invalid, n);
        assert_eq!(w.b.drops(DropReason::HalfOpenDisplaced), n);
    }
    // Clients whose first segment was lost must not be reset.
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 0);
    assert_eq!(w.b.stack.counters().tcp_accepts, 0);
    acknowledge(&mut w, PLAIN, SeqNum(78), iss + 1);
    assert_eq!(w.b.stack.counters().tcp_accepts, 1);
    let server =
        w.b.stack.connection("10.0.0.2:80".parse().unwrap(), "11.0.0.1:1234".parse().unwrap());
    let info = w.b.info(server.unwrap().0).unwrap().tcp.unwrap();
    assert!(!info.timestamps && !info.sack && !info.window_scaling);
}

#[test]
fn the_timestamp_of_a_cookie_cannot_be_forged() {
    let (mut w, _) = flooded(SynCookies::UnderPressure);
    w.a.connect("10.0.0.2:80");
    w.run(1);
    let seen = w.take_seen();
    let syn_ack = seen.iter().find(|packet| is_syn_ack(packet)).expect("a SYN-ACK");
    let syn_ack = header(syn_ack);
    // The client's ACK is lost, and a forged one claims other options.
    for echo in [None, Some(1), Some(16)] {
        let stamp = syn_ack.options.timestamps.unwrap();
        let timestamps = echo.map(|bit| tcp::Timestamps { value: 0, echo: stamp.value ^ bit });
        let forged = tcp::Header {
            src_port: syn_ack.dst_port,
            dst_port: 80,
            seq: syn_ack.ack,
            ack: syn_ack.seq + 1,
            flags: Flags::ACK,
            options: tcp::Options { timestamps, ..tcp::Options::default() },
            ..syn_ack
        };
        let before = w.b.stack.counters().tcp_syn_cookies_invalid;
        w.inject(&packet(0x0a00_0001, forged));
        w.b.turn();
        assert_eq!(w.b.stack.counters().tcp_syn_cookies_invalid, before + 1);
    }
}

#[test]
fn a_cookie_expires() {
    for (secs, valid) in [(64, true), (129, false)] {
        let (mut w, _) = flooded(SynCookies::UnderPressure);
        let iss = cookie(&mut w);
        // SYNs of other clients keep the listener accepting cookies.
        for n in 0..secs {
            w.run(1000);
            for address in 0..8 {
                w.inject(&syn(0x0b02_0000 + 8 * n + address, 80));
            }
            w.b.turn();
        }
        acknowledge(&mut w, PLAIN, SeqNum(78), iss + 1);
        assert_eq!(w.b.stack.counters().tcp_accepts, u64::from(valid), "{secs}");
        assert_eq!(w.b.stack.counters().tcp_syn_cookies_invalid, u64::from(!valid));
    }
}

#[test]
fn a_listener_without_pressure_resets_a_stray_ack() {
    let (mut w, _) = flooded(SynCookies::UnderPressure);
    let iss = cookie(&mut w);
    w.run(129_000);
    acknowledge(&mut w, PLAIN, SeqNum(78), iss + 1);
    assert_eq!(w.b.stack.counters().tcp_syn_cookies_invalid, 0, "cookies are not tried");
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 1);
}

#[test]
fn cookies_can_be_off_or_without_exception() {
    let (mut w, _) = flooded(SynCookies::Off);
    w.inject(&syn(PLAIN, 80));
    w.b.turn();
    assert_eq!(w.b.drops(DropReason::SynCacheFull), 1);
    assert_eq!(w.b.stack.counters().tcp_syn_cookies_sent, 0);

    let always = always();
    let mut w = World::with(WorldConfig::default(), always, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 4);
    for n in 1..=3 {
        w.connected(listener, "10.0.0.2:80");
        assert_eq!(w.b.stack.counters().tcp_syn_cookies_valid, n);
        assert_eq!(w.b.stack.counters().tcp_syns, 0);
    }
}

/// The client's ACK is lost, so its first bytes complete the handshake.
#[test]
fn the_first_bytes_of_a_client_carry_its_cookie() {
    let (mut w, listener) = flooded(SynCookies::UnderPressure);
    let iss = cookie(&mut w);
    for n in 0..2 {
        let bytes = segment(PLAIN, 80, Flags::ACK | Flags::FIN, SeqNum(78), iss + 1);
        w.inject(&bytes);
        w.b.turn();
        assert_eq!(w.b.stack.counters().tcp_accepts, 1, "{n}");
    }
    let server = w.b.accept(listener).expect("a child");
    assert!(w.b.host.has(server.user, SocketEvent::PeerClosed));
}

/// A client that retransmits its SYN gets a cookie first, and then the SYN-ACK of a half-open
/// connection. Its ACK answers the cookie.
#[test]
fn a_cookie_is_valid_beside_a_half_open_connection() {
    let (mut w, _) = flooded(SynCookies::UnderPressure);
    let iss = cookie(&mut w);
    w.inject(&segment(0x0b01_0000, 80, Flags::RST, SeqNum(78), SeqNum(0)));
    w.inject(&syn(PLAIN, 80));
    w.b.turn();
    assert_eq!(w.b.stack.counters().tcp_syns, 5);
    acknowledge(&mut w, PLAIN, SeqNum(78), iss + 1);
    assert_eq!(w.b.stack.counters().tcp_resets_sent, 0);
    assert_eq!(w.b.stack.counters().tcp_accepts, 1);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 3);
}

#[test]
fn a_full_accept_queue_sends_no_cookie() {
    let always = always();
    let mut w = World::with(WorldConfig::default(), always, false);
    w.b.listen("0.0.0.0:80", 0);
    w.a.connect("10.0.0.2:80");
    w.run(10);
    let client = w.a.connect("10.0.0.2:80");
    w.run(10);
    assert_eq!(w.b.drops(DropReason::ListenOverflow), 1);
    assert!(!w.a.host.has(client.user, SocketEvent::Connected));
}

/// Accurate ECN becomes classic ECN, because the cookie has a single bit.
#[test]
fn a_connection_by_cookie_has_ecn() {
    for (mode, expected) in [(EcnMode::Off, false), (EcnMode::On, true), (EcnMode::Accurate, true)]
    {
        let config = always();
        let config = StackConfig { tcp: Config { ecn: mode, ..config.tcp }, ..config };
        let mut w = World::with(WorldConfig::default(), config, false);
        let (listener, _) = w.b.listen("0.0.0.0:80", 4);
        w.keep_seen();
        let (client, server) = w.connected(listener, "10.0.0.2:80");
        let seen = w.take_seen();
        let syn_ack = seen.iter().map(|packet| header(packet).flags);
        let mut syn_ack = syn_ack.filter(|flags| flags.contains(Flags::SYN | Flags::ACK));
        assert_eq!(syn_ack.next().expect("a SYN-ACK").contains(Flags::ECE), expected);
        for (from, to, at_a) in [(&client, &server, true), (&server, &client, false)] {
            let (one, other) = if at_a { (&mut w.a, &from) } else { (&mut w.b, &from) };
            one.write(other, b"x");
            w.run(100);
            let got = if at_a { w.b.read(to) } else { w.a.read(to) };
            assert_eq!(got, b"x");
        }
        let has_ect = |packet: &Vec<u8>| hops_and_class(packet).1 & 3 == 2;
        assert_eq!(w.take_seen().iter().filter(|packet| has_ect(packet)).count() > 0, expected);
    }
}

/// Clients with round-trip times of 1, 100 and 300 ms connect after one round trip, at 100,000 SYNs
/// per second.
#[test]
fn clients_connect_after_one_round_trip_while_a_listener_is_flooded() {
    for rtt in [1, 100, 300] {
        let link = WorldConfig { delay_ns: rtt * MS / 2, ..WorldConfig::default() };
        let config = StackConfig { syn_cache_max: 4_000, ..StackConfig::default() };
        let mut w = World::with(link, config, false);
        let (listener, _) = w.b.listen("0.0.0.0:80", 511);
        let (mut waiting, mut n) = (Vec::new(), 0);
        for ms in 0..800 {
            for _ in 0..100 {
                n += 1;
                w.inject(&syn(0x0b00_0000 + n, 80));
            }
            if (100..400).contains(&ms) && ms % 50 == 0 {
                waiting.push((w.a.connect("10.0.0.2:80"), ms));
            }
            w.run(1);
            while w.b.accept(listener).is_some() {}
            for (client, since) in &waiting {
                let connected = w.a.host.has(client.user, SocketEvent::Connected);
                assert_eq!(connected, ms >= since + rtt - 1, "{rtt} {since} {ms}");
                assert!(!w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
            }
        }
        let counters = w.b.stack.counters();
        assert_eq!((counters.tcp_accepts, counters.tcp_syn_cookies_valid), (6, 6));
        assert_eq!(counters.tcp_half_open_displaced, 0);
        assert_eq!(w.b.drops(DropReason::SynCacheFull), 0);
        assert_eq!(w.b.stack.handshakes.half_open.len(), 2_000);
    }
}
