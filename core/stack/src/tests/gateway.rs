//! Tests of any-address interfaces, where the owner decides about every flow.

use std::net::SocketAddr;

use towpath_ring::Payload;

use super::world::{Recv, Send, World, WorldConfig};
use crate::net::EchoOut;
use crate::{
    BindOptions, DatagramFrom, DatagramOut, DropReason, Family, Refusal, SocketError, SocketEvent,
    SocketKind, StackConfig,
};

fn gateway() -> World {
    World::with(WorldConfig::default(), StackConfig::default(), true)
}

#[test]
fn an_accepted_syn_becomes_a_connection() {
    for to in ["93.184.216.34:80", "10.0.0.2:80"] {
        let mut w = gateway();
        let client = w.a.connect(to);
        w.run(50);
        let (pending, local, remote) = w.b.host.syns.pop().expect("asked");
        assert_eq!(local, to.parse().unwrap());
        assert!(!w.a.host.has(client.user, SocketEvent::Connected), "nothing is answered yet");
        // Retransmitted SYNs are not reported to the owner again.
        w.run(3000);
        assert!(w.b.host.syns.is_empty());
        assert!(w.b.drops(DropReason::PendingDuplicate) > 0);
        let (recv, send) = (Recv::new(65536, 65536), Send::new(65536));
        let now = w.b.now;
        let id =
            w.b.stack.accept_pending(now, pending, 5, recv.clone(), send.clone(), &mut w.b.pool);
        let id = id.expect("accepted");
        assert_eq!(
            w.b.stack.accept_pending(now, pending, 6, recv.clone(), send.clone(), &mut w.b.pool),
            None
        );
        w.wait(5000, "handshake", |w| w.b.host.has(5, SocketEvent::Connected));
        assert!(w.a.host.has(client.user, SocketEvent::Connected));
        assert_eq!(w.b.info(id).unwrap().remote, Some(remote));
        send.write(b"hello from anywhere");
        w.b.stack.send_ready(id);
        w.run(50);
        assert_eq!(w.a.read(&client), b"hello from anywhere");
        w.a.write(&client, b"and back");
        w.run(50);
        assert_eq!(recv.read(100), b"and back");
        w.a.close(client.id);
        w.b.close(id);
        w.assert_ends_empty();
    }
}

/// The owner has sent all bytes and the FIN before the peer has answered the SYN-ACK.
#[test]
fn what_is_sent_and_ended_before_the_handshake_is_over_arrives() {
    let mut w = gateway();
    let client = w.a.connect("93.184.216.34:80");
    w.run(50);
    let (pending, ..) = w.b.host.syns.pop().expect("asked");
    let (recv, send) = (Recv::new(65536, 65536), Send::new(65536));
    let now = w.b.now;
    let id = w.b.stack.accept_pending(now, pending, 5, recv, send.clone(), &mut w.b.pool);
    let id = id.expect("accepted");
    send.write(b"that is all");
    w.b.stack.send_ready(id);
    w.b.stack.shutdown_send(id);
    w.wait(1000, "the end", |w| w.a.host.has(client.user, SocketEvent::PeerClosed));
    assert_eq!(w.a.read(&client), b"that is all");
    w.a.close(client.id);
    w.b.close(id);
    w.assert_ends_empty();
}

#[test]
fn a_refused_syn_is_answered_as_wanted() {
    for (refusal, expected) in
        [(Refusal::Reset, Some(SocketError::Refused)), (Refusal::Ignore, None)]
    {
        let mut w = gateway();
        let client = w.a.connect("93.184.216.34:80");
        w.run(50);
        let (pending, ..) = w.b.host.syns.pop().expect("asked");
        w.b.stack.refuse_pending(w.b.now, pending, refusal, &mut w.b.pool);
        w.run(50);
        let events = w.a.host.take_events(client.user);
        assert_eq!(events, Vec::from_iter(expected.map(SocketEvent::Error)), "{refusal:?}");
        w.a.abort(client.id);
        w.assert_ends_empty();
    }
}

#[test]
fn a_refusal_by_icmp_quotes_the_syn() {
    for (refusal, expected) in [
        (Refusal::HostUnreachable, SocketError::HostUnreachable),
        (Refusal::NetUnreachable, SocketError::NetUnreachable),
        (Refusal::AdminProhibited, SocketError::HostUnreachable),
    ] {
        let mut w = gateway();
        let client = w.a.connect("93.184.216.34:80");
        w.run(50);
        let (pending, ..) = w.b.host.syns.pop().expect("asked");
        w.b.stack.refuse_pending(w.b.now, pending, refusal, &mut w.b.pool);
        w.run(50);
        assert_eq!(w.a.drops(DropReason::IcmpErrorStray), 0, "it names a segment in flight");
        assert_eq!(w.a.host.take_events(client.user), [SocketEvent::Error(expected)]);
        w.a.close(client.id);
        w.assert_ends_empty();
    }
}

#[test]
fn undecided_syns_expire_and_are_bounded() {
    let config = StackConfig { pending_max: 2, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, true);
    let clients: Vec<_> = (0..3).map(|_| w.a.connect("93.184.216.34:80")).collect();
    w.run(50);
    let asked: Vec<_> = w.b.host.syns.iter().map(|syn| syn.0).collect();
    assert_eq!((asked.len(), w.b.stack.handshakes.pending.len()), (3, 2));
    assert_eq!(w.b.host.forgotten, [asked[0]]);
    assert_eq!(w.b.drops(DropReason::PendingFull), 1);
    for client in clients {
        w.a.abort(client.id);
    }
    w.run(80_000);
    assert_eq!(w.b.host.forgotten, asked, "each is given up, and the owner is told");
    assert_eq!(w.b.stack.handshakes.pending.len(), 0);
    w.assert_ends_empty();
}

/// A client that gave up sends nothing, which is the only way to recognise it.
#[test]
fn abandoned_syns_make_room_before_those_that_are_repeated() {
    let config = StackConfig { pending_max: 12, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, true);
    let patient = w.a.connect("93.184.216.34:80");
    w.run(50);
    let (pending, ..) = w.b.host.syns[0];
    for _ in 0..20 {
        let client = w.a.connect("93.184.216.34:80");
        w.run(400);
        w.a.abort(client.id);
    }
    assert_eq!(w.b.drops(DropReason::PendingFull), 21 - 12);
    assert!(!w.b.host.forgotten.contains(&pending));
    // A SYN stays undecided as long as it is retransmitted.
    w.run(95_000);
    let (recv, send) = (Recv::new(65536, 65536), Send::new(65536));
    let id = w.b.stack.accept_pending(w.b.now, pending, 5, recv, send, &mut w.b.pool).unwrap();
    w.wait(5000, "handshake", |w| w.a.host.has(patient.user, SocketEvent::Connected));
    w.b.abort(id);
    w.a.close(patient.id);
    w.assert_ends_empty();
}

#[test]
fn a_listener_of_the_gateway_comes_first() {
    let mut w = gateway();
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    assert!(w.b.host.syns.is_empty());
    w.a.abort(client.id);
    w.b.abort(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn a_flow_the_other_way_comes_from_any_address() {
    let mut w = gateway();
    let (listener, _) = w.a.listen("0.0.0.0:80", 8);
    let (recv, send) = (Recv::new(4096, 4096), Send::new(4096));
    let local: SocketAddr = "192.0.2.7:4321".parse().unwrap();
    let remote: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let id =
        w.b.stack.connect_from(w.b.now, local, remote, 9, recv.clone(), send).expect("connect");
    w.wait(1000, "accept", |w| !w.a.host.accepted.is_empty());
    let server = w.a.accept(listener).unwrap();
    assert_eq!(server.remote, local);
    w.a.write(&server, b"hi");
    w.run(50);
    assert_eq!(recv.read(10), b"hi");
    w.b.close(id);
    w.a.close(server.id);
    w.a.close(listener);
    w.assert_ends_empty();
}

#[test]
fn datagrams_and_echoes_of_strangers() {
    let mut w = gateway();
    let (id, user) = w.a.open(SocketKind::Datagram, Family::V4);
    let out = DatagramOut { remote: Some("8.8.8.8:53".parse().unwrap()), ..Default::default() };
    let query = Payload::new(b"query", Default::default());
    w.a.stack.send_datagram(w.a.now, id, &out, &query, &mut w.a.pool).unwrap();
    w.run(50);
    let (meta, bytes) = w.b.host.strays.pop().expect("a stray datagram");
    assert_eq!((meta.local, &bytes[..]), ("8.8.8.8:53".parse().unwrap(), &b"query"[..]));
    let answer = Payload::new(b"answer", Default::default());
    let from = DatagramFrom { local: meta.local, remote: meta.remote, ttl: Some(9), tos: 0x2b };
    w.b.stack.send_datagram_from(w.b.now, &from, &answer, &mut w.b.pool).unwrap();
    w.run(50);
    let (whose, meta, bytes) = w.a.host.datagrams.pop().expect("an answer");
    assert_eq!((whose, &bytes[..]), (user, &b"answer"[..]));
    assert_eq!((meta.ttl, meta.tos), (9, 0x2b));

    let (ping, ping_user) = w.a.open(SocketKind::Echo, Family::V4);
    let out = DatagramOut { remote: Some("8.8.4.4:0".parse().unwrap()), ..Default::default() };
    let request = Payload::new(&[8, 0, 0, 0, 0, 0, 0, 3, b'x'], Default::default());
    let out = DatagramOut { tos: Some(0x10), ttl: Some(3), ..out };
    w.a.stack.send_datagram(w.a.now, ping, &out, &request, &mut w.a.pool).unwrap();
    w.run(50);
    let (echo, data) = w.b.host.echoes.pop().expect("a stray echo");
    assert_eq!((echo.seq, &data[..]), (3, &b"x"[..]));
    assert_eq!((echo.ttl, echo.tos), (3, 0x10));
    let reply = EchoOut {
        src: echo.local,
        dst: echo.remote,
        reply: true,
        ident: echo.ident,
        seq: echo.seq,
        ttl: Some(33),
        tos: echo.tos,
        fragmenting: crate::net::Fragmenting::Anywhere,
    };
    let data = Payload::new(&data, Default::default());
    w.b.stack.send_echo_from(w.b.now, &reply, &data, &mut w.b.pool).unwrap();
    w.run(50);
    let (whose, meta, bytes) = w.a.host.datagrams.pop().expect("a reply");
    assert_eq!(
        (whose, meta.remote.ip()),
        (ping_user, "8.8.4.4".parse::<std::net::IpAddr>().unwrap())
    );
    assert_eq!((meta.ttl, meta.tos, &bytes[8..]), (33, 0x10, &b"x"[..]));
    w.a.close(id);
    w.a.close(ping);
    w.assert_ends_empty();
}

/// Late segments of the old connection may still arrive, so the new one must use other sequence
/// numbers.
#[test]
fn a_connection_that_follows_one_in_time_wait_begins_beyond_its_numbers() {
    let mut w = gateway();
    w.keep_seen();
    let to: SocketAddr = "93.184.216.34:80".parse().unwrap();
    let mut numbers = Vec::new();
    for user in [5, 6] {
        let (id, client) = w.a.open(SocketKind::Stream, Family::V4);
        let options = BindOptions { reuse_addr: true, ..Default::default() };
        w.a.stack.bind(id, "10.0.0.1:4000".parse().unwrap(), options).unwrap();
        let buffers = (Recv::new(65536, 65536), Send::new(65536));
        w.a.stack.connect(w.a.now, id, to, buffers.0, buffers.1).unwrap();
        w.run(10);
        let (pending, ..) = w.b.host.syns.pop().expect("asked");
        let buffers = (Recv::new(65536, 65536), Send::new(65536));
        let now = w.b.now;
        let server =
            w.b.stack.accept_pending(now, pending, user, buffers.0, buffers.1, &mut w.b.pool);
        w.run(10);
        assert!(w.a.host.has(client, SocketEvent::Connected));
        // The gateway closes its end first, and therefore keeps the TIME-WAIT.
        w.b.close(server.unwrap());
        w.run(10);
        w.a.close(id);
        w.run(10);
        assert_eq!(w.b.stack.time_waits.len(), 1);
        let sent = w.take_seen();
        let from_server = sent.iter().filter(|packet| packet[12..16] == [93, 184, 216, 34]);
        let seq = |packet: &Vec<u8>| u32::from_be_bytes(packet[24..28].try_into().unwrap());
        numbers.push(from_server.map(seq).collect::<Vec<_>>());
    }
    let (last, first) = (*numbers[0].last().unwrap(), numbers[1][0]);
    // Distance beyond any unscaled window (RFC 6191).
    let ahead = first.wrapping_sub(last);
    assert!((65_536..1 << 31).contains(&ahead), "{ahead} after the last one");
    w.assert_ends_empty();
}
