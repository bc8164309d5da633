//! Filters of sockets, and datagrams that come merged.

use std::sync::Arc;

use towpath_cbpf::{Instruction, Program};

use super::datagram::{bound, send};
use super::world::{World, WorldConfig};
use crate::{DatagramOut, DropReason, Family, OptionError, SocketKind};

/// Programs of (code, jt, jf, k).
fn program(code: &[(u16, u8, u8, u32)]) -> Option<Arc<Program>> {
    let code = code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
    Some(Arc::new(Program::check(&code.collect::<Vec<_>>()).unwrap()))
}

/// Payload from "a" on is kept as far as its second byte says; all else is dropped.
const CUT: &[(u16, u8, u8, u32)] = &[
    (0x30, 0, 0, 8),
    (0x15, 0, 3, b'a' as u32),
    (0x30, 0, 0, 9),
    (0x04, 0, 0, 8),
    (0x16, 0, 0, 0),
    (0x06, 0, 0, 0),
];

/// Sends over the loopback, which leaves merged datagrams merged.
fn send_train(w: &mut World, port: u16, bytes: &[u8], size: u16) {
    let (id, _) = w.b.open(SocketKind::Datagram, Family::V4);
    let out = DatagramOut {
        remote: Some(([127, 0, 0, 1], port).into()),
        segment_size: Some(size),
        ..DatagramOut::default()
    };
    let payload = towpath_ring::Payload::new(bytes, Default::default());
    w.b.stack.send_datagram(w.b.now, id, &out, &payload, &mut w.b.pool).unwrap();
    w.run(10);
}

fn taken(w: &mut World) -> Vec<(Vec<u8>, u16)> {
    let all = std::mem::take(&mut w.b.host.datagrams);
    all.into_iter().map(|(_, meta, bytes)| (bytes, meta.segment_size)).collect()
}

/// The longest filters there may be take one packet a turn, and lose nothing.
#[test]
fn long_filters_are_charged_to_the_turn() {
    let mut w = World::new(WorldConfig::default());
    let (server, _) = bound(&mut w.b, "127.0.0.1:53");
    let mut code = vec![(0x00, 0, 0, 0); 4095];
    code.push((0x16, 0, 0, 0));
    w.b.stack.set_filter(server, program(&code)).unwrap();
    let (client, _) = w.b.open(SocketKind::Datagram, Family::V4);
    let out = DatagramOut {
        remote: Some(([127, 0, 0, 1], 53).into()),
        segment_size: Some(1),
        ..DatagramOut::default()
    };
    let payload = towpath_ring::Payload::new(&[7; 64], Default::default());
    for _ in 0..5 {
        w.b.stack.send_datagram(w.b.now, client, &out, &payload, &mut w.b.pool).unwrap();
    }
    let mut given = Vec::new();
    while w.b.turn() {
        given.push(w.b.host.datagrams.len() + w.b.host.filtered.len());
    }
    assert_eq!(w.b.drops(DropReason::UdpFiltered), 5, "packets");
    assert_eq!(given[..5], [64, 128, 192, 256, 320]);
}

#[test]
fn a_filter_drops_and_cuts() {
    for to in ["10.0.0.2:53", "[fd00::2]:53"] {
        let mut w = World::new(WorldConfig::default());
        w.run(3_000);
        let (server, user) = bound(&mut w.b, "[::]:53");
        w.b.stack.set_filter(server, program(CUT)).unwrap();
        let family = if to.starts_with('[') { Family::V6 } else { Family::V4 };
        let (client, _) = w.a.open(SocketKind::Datagram, family);
        for text in [&b"a\x03cdef"[..], b"b\x03cdef", b"a", b"a\x00c"] {
            send(&mut w.a, client, Some(to), text).unwrap();
        }
        w.run(10);
        assert_eq!(taken(&mut w), [(b"a\x03c".to_vec(), 0), (Vec::new(), 0)]);
        assert_eq!(w.b.drops(DropReason::UdpFiltered), 2);
        assert_eq!(std::mem::take(&mut w.b.host.filtered), [user, user]);
        assert_eq!(w.b.stack.net.counters().data.icmp_errors_sent, 0);
        w.b.stack.set_filter(server, None).unwrap();
        send(&mut w.a, client, Some(to), b"b").unwrap();
        w.run(10);
        assert_eq!(taken(&mut w), [(b"b".to_vec(), 0)]);
    }
    let mut w = World::new(WorldConfig::default());
    let (stream, _) = w.a.open(SocketKind::Stream, Family::V4);
    let set = w.a.stack.set_filter(stream, program(CUT));
    assert_eq!(set, Err(OptionError::NotApplicable));
}

#[test]
fn datagrams_that_come_merged_are_judged_alone() {
    let mut w = World::new(WorldConfig::default());
    let (server, user) = bound(&mut w.b, "0.0.0.0:53");
    w.b.host.merged = true;
    w.b.stack.set_filter(server, program(CUT)).unwrap();
    send_train(&mut w, 53, b"a\x02xa\x03yb\x03za\x01", 3);
    let expected = [b"a\x02".to_vec(), b"a\x03y".to_vec(), b"a".to_vec()];
    assert_eq!(taken(&mut w), expected.map(|bytes| (bytes, 0)));
    assert_eq!(w.b.drops(DropReason::UdpFiltered), 1);
    assert_eq!(w.b.host.filtered, [user]);
    // All of a packet: it is lost as a whole, and counted as one packet.
    send_train(&mut w, 53, b"xxxyyy", 3);
    assert_eq!(taken(&mut w), []);
    assert_eq!((w.b.drops(DropReason::UdpFiltered), w.b.host.filtered.len()), (2, 3));
}

#[test]
fn merged_datagrams_come_so_to_who_wants_them() {
    let mut w = World::new(WorldConfig::default());
    bound(&mut w.b, "0.0.0.0:53");
    let text: Vec<u8> = (0..100).collect();
    send_train(&mut w, 53, &text, 30);
    let parts: Vec<_> = text.chunks(30).map(|part| (part.to_vec(), 0)).collect();
    assert_eq!(taken(&mut w), parts);
    w.b.host.merged = true;
    send_train(&mut w, 53, &text, 30);
    assert_eq!(taken(&mut w), [(text.clone(), 30)]);
    send_train(&mut w, 53, &text, 100);
    assert_eq!(taken(&mut w), [(text, 0)]);
}
