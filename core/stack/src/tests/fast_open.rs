//! Tests of TCP Fast Open (RFC 7413) between two hosts.

use towpath_tcp::{Config, FastOpenKeys, FastOpenModes, Flags, Instant};
use towpath_wire::fast_open::FastOpen;
use towpath_wire::{ipv4, tcp};

use super::scale::{syn, without_cookies};
use super::world::{Conn, MS, World, WorldConfig};
use crate::limits::FAST_OPEN_SERVERS_MAX;
use crate::settings::StreamSettings;
use crate::tables::flow::Flow;
use crate::tcp::fast_open::Beginning;
use crate::{DropReason, SocketError, SocketEvent, SocketId, SocketOption, StackConfig};

const SERVER: &str = "10.0.0.2:80";

/// Creates hosts with a listener on b, which accepts `places` Fast Open children whose handshakes
/// are incomplete.
fn world(places: u32, config: StackConfig) -> (World, SocketId) {
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 100);
    w.b.stack.set_option(listener, SocketOption::FastOpenQueue(places)).expect("a listener");
    (w, listener)
}

/// Connects to request a cookie, and closes both ends.
fn fetch_cookie(w: &mut World, listener: SocketId) {
    let (client, waits) = w.a.connect_fast(SERVER);
    assert!(!waits, "there is no cookie yet");
    w.wait(1000, "connect", |w| w.a.host.has(client.user, SocketEvent::Connected));
    w.wait(1000, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).expect("accepted");
    w.a.close(client.id);
    w.b.close(server.id);
    w.run(100);
}

/// Connects with `bytes` in the SYN.
fn open_with(w: &mut World, bytes: &[u8]) -> Conn {
    let (client, waits) = w.a.connect_fast(SERVER);
    assert!(waits, "there is a cookie");
    w.a.write(&client, bytes);
    client
}

/// Returns flags, Fast Open option and payload length of the SYNs on the link.
fn syns(w: &mut World) -> Vec<(Flags, Option<FastOpen>, usize)> {
    let seen = w.take_seen().into_iter().filter_map(|packet| {
        let (_, payload) = ipv4::Header::parse(&packet).ok()?;
        let segment = &packet[payload];
        let header = tcp::Header::parse(segment).ok()?;
        let len = segment.len() - usize::from(header.header_len);
        header.flags.contains(Flags::SYN).then(|| (header.flags, FastOpen::find(segment), len))
    });
    seen.collect()
}

#[test]
fn the_second_connection_has_its_bytes_in_the_syn() {
    let (mut w, listener) = world(10, StackConfig::default());
    w.keep_seen();
    fetch_cookie(&mut w, listener);
    let first = syns(&mut w);
    assert_eq!(first[0], (Flags::SYN, Some(FastOpen::Request), 0));
    let Some(FastOpen::Cookie(cookie)) = first[1].1 else { panic!("{first:?}") };
    let client = open_with(&mut w, b"question");
    // The bytes arrive after one delay of the link, before the handshake is complete.
    w.wait(1, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).expect("accepted");
    assert_eq!(w.b.read(&server), b"question");
    assert!(!w.a.host.has(client.user, SocketEvent::Connected));
    w.b.write(&server, b"answer");
    w.wait(1, "answer", |w| w.a.host.has(client.user, SocketEvent::Connected));
    w.run(1);
    assert_eq!(w.a.read(&client), b"answer");
    let second = syns(&mut w);
    assert_eq!(second[0], (Flags::SYN, Some(FastOpen::Cookie(cookie)), 8));
    assert_eq!(second[1], (Flags::SYN | Flags::ACK, None, 0));
    w.run(50);
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 1);
    let events = w.b.host.take_events(server.user);
    assert!(!events.contains(&SocketEvent::Connected), "accepted is connected: {events:?}");
    let info = w.a.info(client.id).and_then(|info| info.tcp).expect("open");
    assert!(info.fast_open.data_acked);
    w.a.close(client.id);
    w.b.close(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn a_listener_without_the_option_gives_no_cookie() {
    let (mut w, listener) = world(0, StackConfig::default());
    for _ in 0..2 {
        fetch_cookie(&mut w, listener);
    }
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 0);
}

#[test]
fn beyond_the_limit_connections_open_as_ever() {
    let (mut w, listener) = world(1, StackConfig::default());
    fetch_cookie(&mut w, listener);
    let clients = [b"one", b"two"].map(|bytes| open_with(&mut w, bytes));
    w.run(100);
    let mut got: Vec<Vec<u8>> = clients
        .iter()
        .map(|_| {
            let server = w.b.accept(listener).expect("accepted");
            w.b.read(&server)
        })
        .collect();
    got.sort();
    assert_eq!(got, [b"one", b"two"]);
    let counters = w.b.stack.counters();
    assert_eq!((counters.tcp_fast_opens, counters.tcp_fast_open_overflows), (1, 1));
    // The first handshake is complete, so that the listener has room again.
    open_with(&mut w, b"three");
    w.run(100);
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 2);
}

#[test]
fn an_old_cookie_costs_a_round_trip_and_brings_a_new_one() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    set_keys(&mut w, listener, FastOpenKeys { primary: [7, 8], backup: None });
    for (fast, len) in [(0, 20), (1, 3_000)] {
        let bytes = vec![b'x'; len];
        let client = open_with(&mut w, &bytes);
        w.wait(100, "bytes", |w| !w.b.host.accepted.is_empty());
        w.run(100);
        let server = w.b.accept(listener).expect("accepted");
        assert_eq!(w.b.read(&server), bytes);
        assert_eq!(w.b.stack.counters().tcp_fast_opens, fast);
        w.a.close(client.id);
        w.b.close(server.id);
        w.run(100);
    }
}

fn set_keys(w: &mut World, listener: SocketId, keys: FastOpenKeys) {
    w.b.stack.set_option(listener, SocketOption::FastOpenKeys(keys)).expect("a listener");
    assert_eq!(w.b.stack.fast_open_keys(listener), Some(keys));
}

#[test]
fn a_cookie_of_the_backup_key_opens_at_once_and_is_replaced() {
    let (mut w, listener) = world(10, StackConfig::default());
    let keys = |primary, backup| FastOpenKeys { primary, backup };
    set_keys(&mut w, listener, keys([1, 2], None));
    fetch_cookie(&mut w, listener);
    for (fast, keys) in [(1, keys([3, 4], Some([1, 2]))), (2, keys([3, 4], None))] {
        set_keys(&mut w, listener, keys);
        let client = open_with(&mut w, b"bytes");
        w.wait(100, "accept", |w| !w.b.host.accepted.is_empty());
        w.run(100);
        let server = w.b.accept(listener).expect("accepted");
        assert_eq!(w.b.stack.counters().tcp_fast_opens, fast);
        w.a.close(client.id);
        w.b.close(server.id);
        w.run(100);
    }
}

#[test]
fn a_lost_syn_with_the_option_is_the_last_for_a_minute() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    w.set_loss(1000);
    let client = open_with(&mut w, b"bytes");
    w.run(500);
    w.set_loss(0);
    w.wait(1000, "connect", |w| w.a.host.has(client.user, SocketEvent::Connected));
    w.run(100);
    let server = w.b.accept(listener).expect("accepted");
    assert_eq!(w.b.read(&server), b"bytes");
    w.keep_seen();
    let (plain, waits) = w.a.connect_fast(SERVER);
    assert!(!waits);
    w.wait(100, "connect", |w| w.a.host.has(plain.user, SocketEvent::Connected));
    assert_eq!(syns(&mut w)[0], (Flags::SYN, None, 0));
    w.run(61_000);
    open_with(&mut w, b"again");
    w.run(100);
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 1);
}

#[test]
fn a_server_that_never_answers_is_remembered() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    w.set_loss(1000);
    let client = open_with(&mut w, b"bytes");
    let timed_out = SocketEvent::Error(SocketError::TimedOut);
    w.wait(400_000, "timeout", |w| w.a.host.has(client.user, timed_out));
    assert!(!w.a.connect_fast(SERVER).1);
}

/// An attacker may open connections with the address of a host that resets them.
#[test]
fn a_reset_handshake_keeps_its_place_for_a_minute() {
    let (mut w, listener) = world(1, StackConfig::default());
    fetch_cookie(&mut w, listener);
    let client = open_with(&mut w, b"x");
    w.a.turn();
    w.a.abort(client.id);
    w.run(100);
    let server = w.b.accept(listener).expect("in the queue");
    assert!(w.b.host.has(server.user, SocketEvent::Error(SocketError::Reset)));
    for (pause, fast) in [(1_000, 1), (60_000, 2)] {
        w.run(pause);
        let client = open_with(&mut w, b"y");
        w.run(100);
        assert_eq!(w.b.stack.counters().tcp_fast_opens, fast);
        w.a.close(client.id);
        let server = w.b.accept(listener).expect("accepted");
        w.b.close(server.id);
        w.run(100);
    }
}

/// The listener's single place becomes free for each next child, whether the program closes the
/// child before or after its handshake.
#[test]
fn children_that_end_leave_their_place() {
    let (mut w, listener) = world(1, StackConfig::default());
    fetch_cookie(&mut w, listener);
    for round in 0..20u64 {
        let client = open_with(&mut w, b"bytes");
        w.wait(1, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).expect("accepted");
        assert_eq!(w.b.stack.counters().tcp_fast_opens, round + 1);
        if round % 2 == 0 {
            w.run(100);
        }
        if round % 3 == 0 {
            w.b.read(&server);
        }
        match round % 4 {
            0 | 1 => w.b.abort(server.id),
            _ => w.b.close(server.id),
        }
        w.run(100);
        w.a.close(client.id);
        w.run(100);
    }
    assert_eq!(w.b.stack.counters().tcp_fast_open_overflows, 0);
    assert!(w.b.stack.fast_opens.opening.is_empty());
}

/// A listener is closed while children are in their handshakes, and another one uses its port.
#[test]
fn places_do_not_outlive_their_listener() {
    let (mut w, mut listener) = world(1, StackConfig::default());
    fetch_cookie(&mut w, listener);
    for round in 0..10u64 {
        let client = open_with(&mut w, b"bytes");
        w.wait(1, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).expect("accepted");
        assert_eq!(w.b.stack.counters().tcp_fast_opens, round + 1);
        w.b.close(listener);
        if round % 2 == 0 {
            w.a.abort(client.id);
        }
        (listener, _) = w.b.listen("0.0.0.0:80", 100);
        w.b.stack.set_option(listener, SocketOption::FastOpenQueue(1)).expect("a listener");
        w.run(50);
        w.b.abort(server.id);
        w.run(100);
    }
    assert_eq!(w.b.stack.counters().tcp_fast_open_overflows, 0);
    assert!(w.b.stack.fast_opens.opening.is_empty());
}

/// A cookie proves the client's address, so its SYN needs no place among half-open connections.
#[test]
fn a_client_with_a_cookie_gets_in_while_the_listener_is_flooded() {
    let config = StackConfig { syn_cache_max: 2, tcp: without_cookies(), ..StackConfig::default() };
    let (mut w, listener) = world(10, config);
    fetch_cookie(&mut w, listener);
    w.inject(&syn(0x0b00_0001, 80));
    w.b.turn();
    let plain = w.a.connect(SERVER);
    let fast = open_with(&mut w, b"fast");
    w.run(100);
    assert!(w.a.host.has(fast.user, SocketEvent::Connected));
    assert!(!w.a.host.has(plain.user, SocketEvent::Connected));
    assert_eq!(w.b.drops(DropReason::SynCacheFull), 1);
    // Beyond the limit of TCP_FASTOPEN, a SYN with a cookie needs a place among half-open
    // connections.
    w.b.stack.set_option(listener, SocketOption::FastOpenQueue(1)).expect("a listener");
    let more = [0; 2].map(|_| open_with(&mut w, b"more"));
    w.run(100);
    let open = more.iter().filter(|conn| w.a.host.has(conn.user, SocketEvent::Connected));
    assert_eq!((open.count(), w.b.drops(DropReason::SynCacheFull)), (1, 2));
    assert!(w.b.stack.handshakes.half_open.len() <= 1);
}

#[test]
fn the_program_closes_before_the_handshake_is_over() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    let client = open_with(&mut w, b"last words");
    w.a.close(client.id);
    let (idle, _) = w.a.connect_fast(SERVER);
    w.a.close(idle.id);
    w.run(100);
    let server = w.b.accept(listener).expect("accepted");
    assert_eq!(w.b.read(&server), b"last words");
    assert!(w.b.accept(listener).is_none(), "one without bytes sent no SYN");
    w.b.close(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn a_write_without_bytes_sends_the_syn() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    w.keep_seen();
    let (client, waits) = w.a.connect_fast(SERVER);
    assert!(waits, "there is a cookie");
    w.run(100);
    assert_eq!(syns(&mut w), []);
    w.a.stack.open_without_bytes(client.id);
    w.run(100);
    assert!(w.a.host.has(client.user, SocketEvent::Connected));
    assert_eq!(syns(&mut w)[0].2, 0);
    let server = w.b.accept(listener).expect("accepted");
    w.a.write(&client, b"later");
    w.run(100);
    assert_eq!(w.b.read(&server), b"later");
}

#[test]
fn lossy_links_lose_no_byte() {
    for seed in 0..20u64 {
        let link = WorldConfig { loss: 0, ..WorldConfig::default() };
        let mut w = World::with(link, StackConfig::default(), false);
        let (listener, _) = w.b.listen("0.0.0.0:80", 100);
        w.b.stack.set_option(listener, SocketOption::FastOpenQueue(9)).expect("a listener");
        fetch_cookie(&mut w, listener);
        w.set_loss(100 + seed * 10);
        for n in 0..10 {
            w.run(seed * 3 + n);
            let (client, _) = w.a.connect_fast(SERVER);
            let sent: Vec<u8> = (0..2_000).map(|i| (i * 7 + n) as u8).collect();
            w.a.write(&client, &sent);
            w.wait(120_000, "accept", |w| !w.b.host.accepted.is_empty());
            let server = w.b.accept(listener).expect("accepted");
            w.b.write(&server, &sent);
            let (mut there, mut back) = (Vec::new(), Vec::new());
            w.wait(300_000, "bytes", |w| {
                there.extend(w.b.read(&server));
                back.extend(w.a.read(&client));
                there.len() >= sent.len() && back.len() >= sent.len()
            });
            assert_eq!((&there, &back), (&sent, &sent), "{seed} {n}");
            w.a.abort(client.id);
            w.b.abort(server.id);
            w.run(200);
        }
    }
}

#[test]
fn as_many_servers_are_known_as_the_limit_says() {
    let (mut w, listener) = world(10, StackConfig::default());
    fetch_cookie(&mut w, listener);
    let settings = StreamSettings::new(Config::default());
    let FastOpen::Cookie(cookie) = w.b.stack.fast_opens.cookie_option(&settings, &flow(1)) else {
        panic!("a cookie")
    };
    let mut header = [0; 32];
    header[12] = 0x50;
    assert!(FastOpen::Cookie(cookie).append(&mut header));
    let known = &mut w.a.stack.fast_opens;
    let at = Instant(5000 * MS);
    let count = FAST_OPEN_SERVERS_MAX as u32 + 10;
    for n in 0..count {
        known.opens(9, Beginning::Asking);
        known.on_syn_ack(at, 9, &flow(n), Some(1000), &header, false);
    }
    assert_eq!(known.known(), FAST_OPEN_SERVERS_MAX);
    let modes = FastOpenModes::default();
    let last = known.begin(at, &flow(count - 1), modes);
    assert_eq!(last, Beginning::WithBytes(Some(cookie), 1000));
    assert_eq!(known.begin(at, &flow(0), modes), Beginning::Asking);
}

fn flow(n: u32) -> Flow {
    let [_, a, b, c] = n.to_be_bytes();
    Flow {
        local: [10, 0, 0, 1].into(),
        remote: [11, a, b, c].into(),
        local_port: 1,
        remote_port: 80,
    }
}

#[test]
fn children_keep_the_headers_of_their_syn_if_the_listener_says_so() {
    let (mut w, listener) = world(10, StackConfig::default());
    w.b.stack.set_option(listener, SocketOption::SaveSyn(true)).expect("a listener");
    fetch_cookie(&mut w, listener);
    for fast in [false, true] {
        let client = match fast {
            false => w.a.connect(SERVER),
            true => open_with(&mut w, b"bytes"),
        };
        w.run(100);
        let server = w.b.accept(listener).expect("accepted");
        assert_eq!(w.b.stack.take_saved_syn(client.id, 100), Ok(None));
        let short = w.b.stack.take_saved_syn(server.id, 10).expect_err("too long");
        let syn = w.b.stack.take_saved_syn(server.id, 100).expect("room").expect("saved");
        assert_eq!(syn.len(), short);
        let (ip, payload) = ipv4::Header::parse_quoted(&syn).expect("IP");
        assert_eq!(ip.src, std::net::Ipv4Addr::new(10, 0, 0, 1));
        let header = tcp::Header::parse(&syn[payload..]).expect("TCP");
        assert_eq!((header.flags, header.dst_port), (Flags::SYN, 80));
        assert_eq!(syn.len(), payload + usize::from(header.header_len));
        assert_eq!(FastOpen::find(&syn[payload..]).is_some(), fast);
        assert_eq!(w.b.stack.take_saved_syn(server.id, 100), Ok(None), "once");
    }
}

fn with_modes(word: &str) -> StackConfig {
    let fast_open = FastOpenModes::from_word(word).expect("modes");
    StackConfig { tcp: Config { fast_open, ..Config::default() }, ..StackConfig::default() }
}

#[test]
fn without_cookies_the_first_syn_has_bytes() {
    // Clients and servers without cookies.
    let (mut w, listener) = world(10, with_modes("0x207"));
    w.keep_seen();
    let client = open_with(&mut w, b"question");
    w.wait(1, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).expect("accepted");
    assert_eq!(w.b.read(&server), b"question");
    w.run(50);
    assert!(w.a.host.has(client.user, SocketEvent::Connected));
    assert_eq!(syns(&mut w)[0], (Flags::SYN, None, 8));
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 1);
}

#[test]
fn a_lost_syn_without_cookie_is_the_last_with_bytes_for_a_minute() {
    let (mut w, _) = world(10, with_modes("0x207"));
    w.set_loss(1000);
    let client = open_with(&mut w, b"bytes");
    w.run(500);
    w.set_loss(0);
    w.wait(1000, "connect", |w| w.a.host.has(client.user, SocketEvent::Connected));
    assert!(!w.a.connect_fast(SERVER).1);
    w.run(61_000);
    assert!(w.a.connect_fast(SERVER).1);
}

#[test]
fn a_server_that_requires_cookies_ignores_bytes_without_one() {
    let (mut w, listener) = world(10, with_modes("7"));
    let client = open_with(&mut w, b"question");
    w.wait(1000, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).expect("accepted");
    w.run(50);
    assert_eq!(w.b.read(&server), b"question");
    assert!(w.a.host.has(client.user, SocketEvent::Connected));
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 0);
}

#[test]
fn a_switched_off_server_gives_no_cookie() {
    let (mut w, listener) = world(10, with_modes("client"));
    for _ in 0..2 {
        fetch_cookie(&mut w, listener);
    }
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 0);
}

#[test]
fn all_listeners_can_use_it_without_the_option() {
    let (mut w, listener) = world(0, with_modes("on"));
    for _ in 0..2 {
        fetch_cookie(&mut w, listener);
    }
    let mut w = World::with(WorldConfig::default(), with_modes("0x403"), false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 100);
    fetch_cookie(&mut w, listener);
    open_with(&mut w, b"question");
    w.run(50);
    assert_eq!(w.b.stack.counters().tcp_fast_opens, 1);
}
