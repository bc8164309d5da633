//! Tests of TCP settings that change while sockets exist.

use towpath_tcp::{Config, CongestionKind, EcnMode, FastOpenKeys, FastOpenModes, SynCookies};
use towpath_wire::fast_open::FastOpen;

use super::listen::header;
use super::scale::syn;
use super::world::{World, WorldConfig};
use crate::SocketOption;

/// Returns a configuration without the optional features of a handshake.
fn plain() -> Config {
    Config {
        timestamps: false,
        sack: false,
        scaling: false,
        ecn: EcnMode::Off,
        congestion: CongestionKind::NewReno,
        ..Config::default()
    }
}

#[test]
fn existing_listeners_use_new_settings() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (_, before) = w.connected(listener, "10.0.0.2:80");
    w.b.stack.set_tcp(plain());
    let (_, after) = w.connected(listener, "10.0.0.2:80");
    let of = |w: &World, id| w.b.info(id).and_then(|info| info.tcp).expect("a connection");
    let (before, after) = (of(&w, before.id), of(&w, after.id));
    assert!(before.timestamps && before.sack && before.window_scaling);
    assert!(!after.timestamps && !after.sack && !after.window_scaling);
    assert_eq!(before.congestion, CongestionKind::default());
    assert_eq!(after.congestion, CongestionKind::NewReno);
    w.b.stack.set_tcp(Config::default());
    let (_, last) = w.connected(listener, "10.0.0.2:80");
    let last = of(&w, last.id);
    assert!(last.timestamps && last.sack && last.window_scaling);
}

#[test]
fn connections_to_peers_use_new_settings() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    w.a.stack.set_tcp(plain());
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    let client = w.a.info(client.id).and_then(|info| info.tcp).expect("a connection");
    let server = w.b.info(server.id).and_then(|info| info.tcp).expect("a connection");
    assert_eq!(client.congestion, CongestionKind::NewReno);
    assert!(!server.timestamps && !server.sack && !server.window_scaling);
}

#[test]
fn open_handshakes_keep_the_options_of_their_syn_ack() {
    let all = Config::default();
    let small = Config { window_scale: 2, ..all };
    for (before, after) in [(all, plain()), (plain(), all), (all, small), (small, all)] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        w.b.stack.set_tcp(before);
        let client = w.a.connect("10.0.0.2:80");
        w.wait(100, "SYN", |w| w.b.stack.handshakes.half_open.len() == 1);
        w.b.stack.set_tcp(after);
        w.wait(100, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).expect("accepted");
        let ours = w.b.info(server.id).and_then(|info| info.tcp).expect("a connection");
        let theirs = w.a.info(client.id).and_then(|info| info.tcp).expect("a connection");
        assert_eq!((ours.timestamps, ours.sack), (before.timestamps, before.sack));
        assert_eq!((ours.timestamps, ours.sack), (theirs.timestamps, theirs.sack));
        assert_eq!((ours.snd_wscale, ours.rcv_wscale), (theirs.rcv_wscale, theirs.snd_wscale));
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
fn cookies_with_another_window_scale_are_invalid() {
    for (window_scale, valid) in [(7, 1), (3, 0)] {
        let mut w = World::new(WorldConfig::default());
        w.b.listen("0.0.0.0:80", 10);
        let always = Config { syn_cookies: SynCookies::Always, ..Config::default() };
        w.b.stack.set_tcp(always);
        w.a.connect("10.0.0.2:80");
        w.wait(100, "SYN-ACK", |w| w.b.stack.counters().tcp_syn_cookies_sent == 1);
        w.b.stack.set_tcp(Config { window_scale, sack: false, timestamps: false, ..always });
        w.run(10);
        let counters = *w.b.stack.counters();
        let checked = (counters.tcp_syn_cookies_valid, counters.tcp_syn_cookies_invalid);
        assert_eq!(checked, (valid, 1 - valid));
    }
}

#[test]
fn options_of_the_program_override_new_settings() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let option = SocketOption::Congestion(CongestionKind::Vegas);
    w.b.stack.set_option(listener, option).expect("a listener");
    let keys = FastOpenKeys { primary: [1, 2], backup: None };
    w.b.stack.set_option(listener, SocketOption::FastOpenKeys(keys)).expect("a listener");
    let other = FastOpenKeys { primary: [3, 4], backup: None };
    w.b.stack.set_tcp(Config { fast_open_keys: Some(other), ..plain() });
    let (_, server) = w.connected(listener, "10.0.0.2:80");
    let info = w.b.info(server.id).and_then(|info| info.tcp).expect("a connection");
    assert_eq!(info.congestion, CongestionKind::Vegas);
    assert!(!info.sack);
    assert_eq!(w.b.stack.fast_open_keys(listener), Some(keys));
    let (second, _) = w.b.listen("0.0.0.0:81", 10);
    assert_eq!(w.b.stack.fast_open_keys(second), Some(other));
}

#[test]
fn fast_open_of_a_listener_follows_the_setting() {
    let mut w = World::new(WorldConfig::default());
    let off = FastOpenModes::from_word("client").expect("a mode");
    w.b.stack.set_tcp(Config { fast_open: off, ..Config::default() });
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    w.b.stack.set_option(listener, SocketOption::FastOpenQueue(5)).expect("a listener");
    w.keep_seen();
    let cookies = |w: &mut World| {
        let (client, _) = w.a.connect_fast("10.0.0.2:80");
        w.run(50);
        w.a.close(client.id);
        let seen = w.take_seen();
        let options = seen.iter().filter_map(|packet| FastOpen::find(&packet[20..]));
        options.filter(|option| matches!(option, FastOpen::Cookie(_))).count()
    };
    assert_eq!(cookies(&mut w), 0, "the host serves no Fast Open");
    w.b.stack.set_tcp(Config::default());
    assert_eq!(cookies(&mut w), 1, "the queue of the listener was kept");
}

#[test]
fn listeners_answer_by_cookies_as_soon_as_the_setting_asks_for_them() {
    let mut w = World::new(WorldConfig::default());
    w.b.listen("0.0.0.0:80", 10);
    w.b.stack.set_tcp(Config { syn_cookies: SynCookies::Always, ..Config::default() });
    w.keep_seen();
    w.inject(&syn(0x0b00_0001, 80));
    w.b.turn();
    assert_eq!(w.b.stack.counters().tcp_syn_cookies_sent, 1);
    assert_eq!(header(w.take_seen().last().expect("an answer")).ack.0, 78);
}
