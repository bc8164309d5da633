//! Tests conversations of two nodes using events and calls.

use towpath_direct::{
    BufferSizes, DirectConfig, Node, NodeConfig, NodeEvent, ReadError, SetUpError, StreamOptions,
    WriteError,
};
use towpath_stack::{BindError, OptionError, SocketError, SocketOption, SocketState};
use towpath_tcp::{CongestionKind, State};

use crate::world::{Pair, events};

#[test]
fn a_stream_arrives_whole_and_both_tables_end_empty() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    let (client, server) = pair.connected(listener, 80);
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        match pair.a.send(client, &bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) => assert_eq!(error, WriteError::Full),
        }
        pair.run(5);
        let mut part = [0; 50_000];
        match pair.b.recv(server, &mut part) {
            Ok(n) => got.extend_from_slice(&part[..n]),
            Err(error) => assert_eq!(error, ReadError::Empty),
        }
    }
    assert_eq!(got, bytes);
    assert!(events(&mut pair.b).contains(&NodeEvent::Readable(server)));
    events(&mut pair.a);

    pair.a.shutdown(client);
    assert_eq!(pair.a.send(client, b"x"), Err(WriteError::ShutDown));
    pair.run(5);
    assert_eq!(events(&mut pair.b), [NodeEvent::PeerClosed(server)]);
    assert_eq!(pair.b.recv(server, &mut [0; 8]), Ok(0));
    pair.b.close(server);
    pair.b.close(listener);
    pair.run(10);
    pair.a.close(client);
    pair.run(120_000);
    assert!(events(&mut pair.a).ends_with(&[NodeEvent::Closed(client)]));
    let of_b = events(&mut pair.b);
    assert_eq!(of_b, [NodeEvent::Closed(listener), NodeEvent::Closed(server)]);
    for node in [&pair.a, &pair.b] {
        assert_eq!((node.direct.len(), node.stack.usage()), (0, Default::default()));
    }
}

#[test]
fn events_of_a_kind_are_reported_once_until_polled() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    let (client, server) = pair.connected(listener, 80);
    for _ in 0..20 {
        pair.a.send(client, b"word").unwrap();
        // Longer than the delayed ACK that Nagle's algorithm waits for.
        pair.run(50);
    }
    assert_eq!(events(&mut pair.b), [NodeEvent::Readable(server)]);
    assert_eq!(pair.b.peek(server).unwrap().len(), 80);
    assert_eq!(pair.b.discard(server, 50), Ok(50));
    assert_eq!(pair.b.discard(server, 50), Ok(30));
    assert_eq!(pair.b.discard(server, 50), Err(ReadError::Empty));
}

#[test]
fn a_port_without_listener_refuses() {
    let mut pair = Pair::new();
    let client = pair.a.connect(([10, 0, 0, 2], 81).into()).unwrap();
    pair.run(10);
    assert_eq!(events(&mut pair.a), [NodeEvent::Failed(client, SocketError::Refused)]);
    assert_eq!(pair.a.recv(client, &mut [0; 8]), Err(ReadError::Failed(SocketError::Refused)));
    assert_eq!(pair.a.send(client, b"x"), Err(WriteError::Failed(SocketError::Refused)));
    pair.a.close(client);
    pair.run(1);
    assert_eq!(events(&mut pair.a), [NodeEvent::Closed(client)]);
}

#[test]
fn what_came_before_a_reset_can_be_read() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    let (client, server) = pair.connected(listener, 80);
    pair.a.send(client, b"last words").unwrap();
    pair.run(5);
    pair.a.abort(client);
    pair.run(5);
    let wanted = [NodeEvent::Readable(server), NodeEvent::Failed(server, SocketError::Reset)];
    assert_eq!(events(&mut pair.b), wanted);
    assert_eq!(pair.b.recv(server, &mut [0; 64]), Ok(10));
    assert_eq!(pair.b.recv(server, &mut [0; 64]), Err(ReadError::Failed(SocketError::Reset)));
    assert_eq!(events(&mut pair.a), [NodeEvent::Closed(client)]);
}

#[test]
fn a_dead_handle_stays_dead_when_its_place_is_used_again() {
    let mut pair = Pair::new();
    let old = pair.a.udp(([10, 0, 0, 1], 5000).into()).unwrap();
    pair.a.close(old);
    pair.run(1);
    assert_eq!(events(&mut pair.a), [NodeEvent::Closed(old)]);
    let new = pair.a.udp(([10, 0, 0, 1], 5000).into()).unwrap();
    assert_eq!(old.index(), new.index());
    assert_ne!(old, new);
    assert!(pair.a.info(old).is_none());
    let option = SocketOption::Broadcast(true);
    assert_eq!(pair.a.set_option(old, option), Err(OptionError::NoSocket));
    assert_eq!(pair.a.set_option(new, option), Ok(()));
    pair.a.close(old);
    pair.run(1);
    assert_eq!(events(&mut pair.a), []);
    assert!(pair.a.info(new).is_some());
}

#[test]
fn a_closed_listener_resets_the_children_that_wait() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    let client = pair.a.connect(([10, 0, 0, 2], 80).into()).unwrap();
    pair.run(10);
    pair.b.close(listener);
    pair.run(10);
    let wanted = [NodeEvent::Connected(client), NodeEvent::Failed(client, SocketError::Reset)];
    assert_eq!(events(&mut pair.a), wanted);
    assert_eq!(events(&mut pair.b), [NodeEvent::Closed(listener)]);
    assert_eq!(pair.b.direct.len(), 0);
}

#[test]
fn a_child_that_fails_in_the_queue_tells_when_it_is_accepted() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    let client = pair.a.connect(([10, 0, 0, 2], 80).into()).unwrap();
    pair.run(10);
    pair.a.abort(client);
    pair.run(10);
    assert_eq!(events(&mut pair.b), [NodeEvent::Incoming(listener)]);
    let server = pair.b.accept(listener).unwrap();
    assert_eq!(events(&mut pair.b), [NodeEvent::Failed(server, SocketError::Reset)]);
    assert_eq!(pair.b.accept(listener), None);
}

#[test]
fn refused_set_ups_leave_nothing_behind() {
    let mut pair = Pair::new();
    let taken = pair.a.listen(([10, 0, 0, 1], 80).into(), 4).unwrap();
    let again = pair.a.listen(([10, 0, 0, 1], 80).into(), 4);
    assert!(matches!(again, Err(SetUpError::Bind(_) | SetUpError::Listen(_))), "{again:?}");
    let foreign = pair.a.udp(([10, 9, 9, 9], 80).into());
    assert_eq!(foreign, Err(SetUpError::Bind(BindError::AddrNotAvailable)));
    let options = StreamOptions { local: Some(([10, 9, 9, 9], 0).into()), ..Default::default() };
    assert!(pair.a.connect_with(([10, 0, 0, 2], 80).into(), &options).is_err());
    pair.run(1);
    assert_eq!(events(&mut pair.a), []);
    assert_eq!(pair.a.direct.len(), 1);
    pair.a.close(taken);
}

#[test]
fn sockets_beyond_the_limit_are_refused_and_counted() {
    let direct = DirectConfig { sockets_max: 2, ..DirectConfig::default() };
    let few = NodeConfig { direct, ..NodeConfig::default() };
    let mut pair = Pair::with([NodeConfig::default(), few], false);
    let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
    pair.connected(listener, 80);
    assert_eq!(pair.b.udp(([10, 0, 0, 2], 9).into()), Err(SetUpError::TooMany(2)));
    let late = pair.a.connect(([10, 0, 0, 2], 80).into()).unwrap();
    pair.run(10);
    assert_eq!(pair.a.state(late), Some(SocketState::Tcp(State::Established)));
    assert_eq!(pair.b.counters().children_refused, 1);
    assert_eq!(pair.b.accept(listener), None);
}

#[test]
fn options_of_a_connection_hold_from_its_first_segment() {
    let mut pair = Pair::new();
    let buffers = BufferSizes { recv: 25_600, recv_max: 25_600, send: 3_000, send_max: 3_000 };
    let options = StreamOptions {
        local: Some(([10, 0, 0, 1], 7777).into()),
        buffers: Some(buffers),
        congestion: Some(CongestionKind::NewReno),
        nodelay: true,
        ..StreamOptions::default()
    };
    let listener = pair.b.listen_with(
        ([10, 0, 0, 2], 80).into(),
        4,
        &StreamOptions { local: None, ..options },
    );
    let client = pair.a.connect_with(([10, 0, 0, 2], 80).into(), &options).unwrap();
    pair.run(10);
    let server = pair.b.accept(listener.unwrap()).unwrap();
    assert_eq!(pair.b.ends(server).1, Some(([10, 0, 0, 1], 7777).into()));
    for (node, socket) in [(&mut pair.a, client), (&mut pair.b, server)] {
        let tcp = node.info(socket).unwrap().tcp.unwrap();
        assert_eq!((tcp.congestion, tcp.rcv_wnd), (CongestionKind::NewReno, 25_600));
        assert_eq!(node.send_room(socket), 3_000);
        assert_eq!(node.send(socket, &[0; 5_000]), Ok(3_000));
        assert_eq!(node.send(socket, &[0; 1]), Err(WriteError::Full));
    }
}

#[test]
fn datagrams_and_echoes_come_back() {
    let mut pair = Pair::new();
    let server = pair.b.udp(([10, 0, 0, 2], 53).into()).unwrap();
    let client = pair.a.udp(([10, 0, 0, 1], 0).into()).unwrap();
    pair.a.send_to(client, ([10, 0, 0, 2], 53).into(), b"who").unwrap();
    pair.run(5);
    assert_eq!(events(&mut pair.b), [NodeEvent::Readable(server)]);
    let asked = pair.b.recv_from(server).unwrap();
    assert_eq!(asked.bytes, b"who");
    pair.b.send_to(server, asked.meta.remote, b"me").unwrap();

    let pinger = pair.a.echo(([10, 0, 0, 1], 0).into()).unwrap();
    pair.a.ping(pinger, [10, 0, 0, 2].into(), 77, b"data").unwrap();
    let six = pair.a.echo("[fd00::1]:0".parse().unwrap()).unwrap();
    pair.a.ping(six, "fd00::2".parse().unwrap(), 78, b"data").unwrap();
    pair.run(5);
    assert_eq!(pair.a.recv_from(client).unwrap().bytes, b"me");
    for (socket, seq) in [(pinger, 77), (six, 78)] {
        let reply = pair.a.recv_from(socket).unwrap();
        assert_eq!(<Node>::echo_seq(&reply.bytes), Some(seq));
        assert!(reply.bytes.ends_with(b"data"));
        assert_eq!(pair.a.recv_from(socket), None);
    }
}

#[test]
fn datagrams_beyond_the_limit_are_dropped_and_counted() {
    let direct = DirectConfig { datagram_bytes_max: 1_000, ..DirectConfig::default() };
    let few = NodeConfig { direct, ..NodeConfig::default() };
    let mut pair = Pair::with([NodeConfig::default(), few], false);
    let server = pair.b.udp(([10, 0, 0, 2], 53).into()).unwrap();
    let client = pair.a.udp(([10, 0, 0, 1], 0).into()).unwrap();
    for _ in 0..5 {
        pair.a.send_to(client, ([10, 0, 0, 2], 53).into(), &[7; 400]).unwrap();
    }
    pair.run(5);
    let got = std::iter::from_fn(|| pair.b.recv_from(server)).count();
    assert_eq!((got, pair.b.counters().datagrams_refused), (2, 3));
}

#[test]
fn the_same_seed_sends_the_same_bytes() {
    let run = || {
        let mut pair = Pair::new();
        let listener = pair.b.listen(([10, 0, 0, 2], 80).into(), 4).unwrap();
        let (client, _) = pair.connected(listener, 80);
        pair.a.send(client, &[1; 30_000]).unwrap();
        pair.run(1_000);
        pair.seen.take()
    };
    let first = run();
    assert!(first.len() > 30_000);
    assert!(first == run(), "two runs differ");
}
