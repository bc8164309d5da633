//! Tests of socket filters, and of merged datagrams.

use std::sync::Arc;

use towpath_cbpf::{INSTRUCTIONS_MAX, Instruction, Program};

use super::datagram::{bound, send};
use super::world::{World, WorldConfig};
use crate::limits::{FILTER_STEPS_A_TURN, WAITING_DELIVERIES_MAX};
use crate::{DatagramOut, DropReason, Family, OptionError, SocketKind, SocketOption};

/// Creates a program from tuples of (code, jt, jf, k).
fn program(code: &[(u16, u8, u8, u32)]) -> Option<Arc<Program>> {
    let code = code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
    Some(Arc::new(Program::check(&code.collect::<Vec<_>>()).unwrap()))
}

/// Filter that accepts payload starting with "a", and keeps as many bytes as its second byte says.
const CUT: &[(u16, u8, u8, u32)] = &[
    (0x30, 0, 0, 8),
    (0x15, 0, 3, b'a' as u32),
    (0x30, 0, 0, 9),
    (0x04, 0, 0, 8),
    (0x16, 0, 0, 0),
    (0x06, 0, 0, 0),
];

/// Sends a segmented datagram over loopback, which does not divide it.
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

/// Returns a filter of maximum length that accepts all datagrams.
fn longest() -> Option<Arc<Program>> {
    let mut code = vec![(0x00, 0, 0, 0); INSTRUCTIONS_MAX - 1];
    code.push((0x06, 0, 0, u32::MAX));
    program(&code)
}

/// Runs a turn of host b. Returns the number of executed filter instructions.
fn steps_of_turn(w: &mut World) -> u64 {
    let before = w.b.stack.counters().filter_steps;
    w.b.turn();
    w.b.stack.counters().filter_steps - before
}

/// Maximum number of instructions in a turn, because the limit is checked before each datagram.
const STEPS_MAX: u64 = (FILTER_STEPS_A_TURN + INSTRUCTIONS_MAX) as u64;

/// Sends 64 datagrams of one byte, numbered from 0, in one packet.
fn send_64(w: &mut World, to: &str) {
    let (client, _) = w.b.open(SocketKind::Datagram, Family::V4);
    w.b.stack.set_option(client, SocketOption::Broadcast(true)).unwrap();
    let out = DatagramOut {
        remote: Some(to.parse().unwrap()),
        segment_size: Some(1),
        ..DatagramOut::default()
    };
    let bytes: Vec<u8> = (0..64).collect();
    let payload = towpath_ring::Payload::new(&bytes, Default::default());
    w.b.stack.send_datagram(w.b.now, client, &out, &payload, &mut w.b.pool).unwrap();
}

/// Delivery of a packet to many sockets takes several turns, and keeps the order of its datagrams.
#[test]
fn a_packet_with_many_receivers_and_segments_takes_many_turns() {
    let mut w = World::new(WorldConfig::default());
    let servers: Vec<_> = (0..10).map(|_| bound(&mut w.b, "0.0.0.0:53")).collect();
    for (server, _) in &servers {
        w.b.stack.set_filter(*server, longest()).unwrap();
    }
    for _ in 0..2 {
        send_64(&mut w, "127.255.255.255:53");
    }
    let datagrams = 2 * 64 * servers.len();
    let mut turns = 0;
    while w.b.host.datagrams.len() < datagrams {
        let steps = steps_of_turn(&mut w);
        assert!((1..=STEPS_MAX).contains(&steps), "{steps}");
        turns += 1;
    }
    assert!(turns >= datagrams / 5, "{turns}");
    assert_eq!(steps_of_turn(&mut w), 0);
    let expected: Vec<u8> = (0..64).chain(0..64).collect();
    for (_, user) in servers {
        let datagrams = w.b.host.datagrams.iter().filter(|(whose, ..)| *whose == user);
        assert_eq!(datagrams.map(|(.., bytes)| bytes[0]).collect::<Vec<_>>(), expected);
    }
}

/// Packets of a device count towards the limit of the turn, too.
#[test]
fn long_filters_are_charged_to_the_turn_for_packets_of_a_device() {
    let mut w = World::new(WorldConfig::default());
    let (server, _) = bound(&mut w.b, "0.0.0.0:53");
    w.b.stack.set_filter(server, longest()).unwrap();
    let (client, _) = w.a.open(SocketKind::Datagram, Family::V4);
    for n in 0..40 {
        send(&mut w.a, client, Some("10.0.0.2:53"), &[n]).unwrap();
    }
    let before = w.b.stack.counters().filter_steps;
    let (mut last, mut turns) = (before, 0);
    while w.b.host.datagrams.len() < 40 {
        w.run(1);
        let steps = w.b.stack.counters().filter_steps;
        turns += u32::from(steps > last);
        last = steps;
    }
    assert_eq!(last - before, 40 * INSTRUCTIONS_MAX as u64);
    assert!(w.b.stack.counters().deliveries_put_off >= 35);
    assert!(turns >= 1);
    let order: Vec<u8> = taken(&mut w).iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

/// Sockets without a filter receive their datagrams in the same turn. Another program's filter runs
/// after one portion.
#[test]
fn long_filters_of_a_program_delay_its_own_sockets_alone() {
    let mut w = World::new(WorldConfig::default());
    for _ in 0..10 {
        let (server, user) = bound(&mut w.b, "0.0.0.0:53");
        w.b.stack.set_filter(server, longest()).unwrap();
        w.b.host.payers.insert(user, 1);
    }
    let (filtered, filtered_user) = bound(&mut w.b, "127.0.0.1:54");
    w.b.stack.set_filter(filtered, program(&[(0x06, 0, 0, u32::MAX)])).unwrap();
    w.b.host.payers.insert(filtered_user, 2);
    let (_, plain_user) = bound(&mut w.b, "127.0.0.1:55");
    let (_, hears_all) = bound(&mut w.b, "0.0.0.0:53");
    for _ in 0..100 {
        send_64(&mut w, "127.255.255.255:53");
    }
    w.b.turn();
    let (client, _) = w.b.open(SocketKind::Datagram, Family::V4);
    let now_there = |w: &mut World, to, user| {
        send(&mut w.b, client, Some(to), b"?").unwrap();
        let has = |w: &World| w.b.host.datagrams.iter().any(|(whose, ..)| *whose == user);
        (1..10).find(|_| {
            assert!(steps_of_turn(w) <= STEPS_MAX);
            has(w)
        })
    };
    assert_eq!(now_there(&mut w, "127.0.0.1:55", plain_user), Some(1));
    assert_eq!(now_there(&mut w, "127.0.0.1:54", filtered_user), Some(2));
    let heard = w.b.host.datagrams.iter().filter(|(whose, ..)| *whose == hears_all);
    assert!(heard.count() > 64, "no filter delays sockets without one");
}

/// If too many packets wait for a program's filters, datagrams are lost; its sockets may close
/// meanwhile.
#[test]
fn packets_that_wait_for_filters_are_bounded() {
    let mut w = World::new(WorldConfig::default());
    let (server, _) = bound(&mut w.b, "127.0.0.1:53");
    w.b.stack.set_filter(server, longest()).unwrap();
    for _ in 0..WAITING_DELIVERIES_MAX + 10 {
        send_64(&mut w, "127.0.0.1:53");
    }
    w.b.turn();
    assert_eq!(w.b.drops(DropReason::UdpFilterBusy), 10);
    w.b.close(server);
    for _ in 0..3 {
        w.b.turn();
    }
    let before = w.b.host.datagrams.len();
    w.run(10);
    assert_eq!(w.b.host.datagrams.len(), before);
    assert_eq!(w.b.stack.next_timeout().filter(|due| *due <= w.b.now), None, "nothing waits");
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
    // The filter drops all datagrams of a packet, which counts as one dropped packet.
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
