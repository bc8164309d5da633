//! Tests a node that accepts packets to every address, decides about SYNs, and answers strays.

use towpath_direct::{
    BufferSizes, DirectConfig, NodeConfig, NodeEvent, PendingSyn, SetUpError, Stray,
};
use towpath_ring::RecvBuffer;
use towpath_stack::net::{EchoOut, Fragmenting, Unreachable};
use towpath_stack::{DatagramFrom, DropReason, Refusal, SocketError, SocketOption};

use crate::world::{Pair, events};

fn any() -> Pair {
    Pair::with([NodeConfig::default(), NodeConfig::default()], true)
}

/// SYN reported by `b`.
fn syn(pair: &mut Pair) -> PendingSyn {
    match events(&mut pair.b)[..] {
        [NodeEvent::Syn(syn)] => syn,
        ref other => panic!("one SYN was sent, and told: {other:?}"),
    }
}

#[test]
fn an_accepted_syn_becomes_a_connection() {
    let mut pair = any();
    let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    assert_eq!(syn.local, ([192, 0, 2, 7], 80).into());
    assert_eq!(events(&mut pair.a), [], "nothing is answered before the decision");
    let server = pair.b.accept_syn(syn.id).unwrap();
    pair.run(10);
    assert_eq!(events(&mut pair.a), [NodeEvent::Connected(client)]);
    assert_eq!(events(&mut pair.b), [NodeEvent::Connected(server)]);
    pair.b.send(server, b"hello").unwrap();
    pair.run(10);
    assert_eq!(pair.a.discard(client, 64), Ok(5));
    assert_eq!(pair.b.accept_syn(syn.id), Err(SetUpError::SynForgotten));
}

#[test]
fn a_refused_syn_is_told_to_its_sender() {
    for (refusal, error) in [
        (Refusal::Reset, SocketError::Refused),
        (Refusal::HostUnreachable, SocketError::HostUnreachable),
    ] {
        let mut pair = any();
        let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
        pair.run(10);
        let syn = syn(&mut pair);
        pair.b.refuse_syn(syn.id, refusal);
        pair.run(300_000);
        let failed = events(&mut pair.a);
        assert!(matches!(failed[..], [NodeEvent::Failed(of, _)] if of == client), "{failed:?}");
        if refusal == Refusal::Reset {
            assert_eq!(failed, [NodeEvent::Failed(client, error)]);
        }
    }
}

#[test]
fn a_reset_during_the_handshake_is_the_error_of_reading() {
    let mut pair = any();
    let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    // The client has no socket for the SYN-ACK, and resets it.
    pair.a.abort(client);
    pair.run(10);
    let server = pair.b.accept_syn(syn.id).unwrap();
    pair.run(10);
    assert_eq!(events(&mut pair.b), [NodeEvent::Failed(server, SocketError::Reset)]);
    let error = pair.b.recv(server, &mut [0]).unwrap_err();
    assert_eq!(error, towpath_direct::ReadError::Failed(SocketError::Reset));
}

#[test]
fn a_syn_that_is_given_up_is_told_once_it_was_told() {
    let mut pair = any();
    let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    pair.a.abort(client);
    pair.run(200_000);
    assert_eq!(events(&mut pair.b), [NodeEvent::SynForgotten(syn.id)]);

    // A SYN that was not polled is dropped without an event.
    let client = pair.a.connect(([192, 0, 2, 8], 80).into()).unwrap();
    pair.run(10);
    pair.a.abort(client);
    pair.run(200_000);
    assert_eq!(events(&mut pair.b), []);
}

#[test]
fn a_flood_of_syns_displaces_itself() {
    let mut few = NodeConfig::default();
    few.stack.pending_max = 4;
    let mut pair = Pair::with([NodeConfig::default(), few], true);
    pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let other = syn(&mut pair);
    for port in 1..=20 {
        let from = ([198, 51, 100, 9], port).into();
        pair.a.connect_from(from, ([192, 0, 2, 7], 80).into()).unwrap();
    }
    pair.run(10);
    let events = events(&mut pair.b);
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(!events.contains(&NodeEvent::SynForgotten(other.id)));
}

#[test]
fn strays_are_answered_in_the_name_of_their_address() {
    let mut pair = any();
    let client = pair.a.udp(([10, 0, 0, 1], 4000).into()).unwrap();
    let pinger = pair.a.echo(([10, 0, 0, 1], 0).into()).unwrap();
    pair.a.send_to(client, ([192, 0, 2, 7], 53).into(), b"who").unwrap();
    pair.a.ping(pinger, [192, 0, 2, 8].into(), 5, b"data").unwrap();
    pair.run(5);
    let Some(Stray::Datagram(meta, bytes)) = pair.b.take_stray() else { panic!("a datagram") };
    assert_eq!(bytes, b"who");
    let from = DatagramFrom { local: meta.local, remote: meta.remote, ttl: None, tos: 0 };
    pair.b.send_datagram_from(&from, b"me").unwrap();
    let Some(Stray::Echo(meta, data)) = pair.b.take_stray() else { panic!("an echo request") };
    let out = EchoOut {
        src: meta.local,
        dst: meta.remote,
        reply: true,
        ident: meta.ident,
        seq: meta.seq,
        ttl: None,
        tos: 0,
        fragmenting: Fragmenting::Anywhere,
    };
    pair.b.send_echo_from(&out, &data).unwrap();
    pair.run(5);
    let answer = pair.a.recv_from(client).unwrap();
    assert_eq!((answer.meta.remote, &answer.bytes[..]), (([192, 0, 2, 7], 53).into(), &b"me"[..]));
    assert!(pair.a.recv_from(pinger).unwrap().bytes.ends_with(b"data"));
}

#[test]
fn strays_beyond_the_limit_are_dropped_and_counted() {
    let direct = DirectConfig { strays_max: 3, ..DirectConfig::default() };
    let few = NodeConfig { direct, ..NodeConfig::default() };
    let mut pair = Pair::with([NodeConfig::default(), few], true);
    let client = pair.a.udp(([10, 0, 0, 1], 4000).into()).unwrap();
    for _ in 0..5 {
        pair.a.send_to(client, ([192, 0, 2, 7], 53).into(), b"who").unwrap();
    }
    pair.run(5);
    assert_eq!(std::iter::from_fn(|| pair.b.take_stray()).count(), 3);
    assert_eq!(pair.b.counters().strays_dropped, 2);
}

#[test]
fn a_node_connects_in_the_name_of_others() {
    let mut pair = any();
    let listener = pair.a.listen(([10, 0, 0, 1], 80).into(), 4).unwrap();
    let from = ([192, 0, 2, 7], 1234).into();
    let client = pair.b.connect_from(from, ([10, 0, 0, 1], 80).into()).unwrap();
    pair.run(10);
    assert_eq!(events(&mut pair.b), [NodeEvent::Connected(client)]);
    let server = pair.a.accept(listener).unwrap();
    assert_eq!(pair.a.ends(server).1, Some(from));
}

#[test]
fn an_icmp_error_about_an_answer_is_reported() {
    let mut pair = any();
    let from = DatagramFrom {
        local: ([192, 0, 2, 7], 53).into(),
        remote: ([10, 0, 0, 1], 4000).into(),
        ttl: None,
        tos: 0,
    };
    pair.b.send_datagram_from(&from, b"nobody listens").unwrap();
    pair.run(5);
    let Some(Stray::Error(error)) = pair.b.take_stray() else { panic!("an error") };
    assert_eq!((error.src, error.src_port), ([192, 0, 2, 7].into(), 53));
    assert_eq!((error.dst, error.dst_port), ([10, 0, 0, 1].into(), 4000));
    assert_eq!(error.message, (3, 3), "port unreachable");
}

#[test]
fn a_refused_datagram_is_an_error_for_its_sender() {
    let ends = [("10.0.0.1:4000", "192.0.2.7:53"), ("[fd00::1]:4000", "[fd00::7]:53")];
    for (from, to) in ends {
        let mut pair = any();
        let client = pair.a.udp(from.parse().unwrap()).unwrap();
        pair.a.set_option(client, SocketOption::RecvErrors(true)).unwrap();
        pair.a.send_to(client, to.parse().unwrap(), &[7; 2000]).unwrap();
        pair.run(5);
        let Some(Stray::Datagram(meta, bytes)) = pair.b.take_stray() else { panic!("a datagram") };
        let answer = DatagramFrom {
            local: meta.local,
            remote: meta.remote,
            ttl: Some(meta.ttl),
            tos: meta.tos,
        };
        pair.b.refuse_datagram(meta.iface, &answer, &bytes, Unreachable::Port);
        pair.run(5);
        let counters = pair.a.stack.net.counters().data;
        assert_eq!(counters.icmp_errors_received, 1);
        // The error names the datagram of the socket.
        assert_eq!(counters.drops.of(DropReason::IcmpErrorStray), 0);
        let other = DatagramFrom {
            local: ([192, 0, 2, 7], 53).into(),
            remote: "[fd00::1]:1".parse().unwrap(),
            ..answer
        };
        pair.b.refuse_datagram(meta.iface, &other, &bytes, Unreachable::Port);
    }
}

#[test]
fn a_refused_datagram_to_a_group_gets_no_error() {
    let mut pair = any();
    for (to, sent) in [([224, 0, 0, 1], 0), ([255; 4], 0), ([192, 0, 2, 7], 1)] {
        let answer = DatagramFrom {
            local: (to, 53).into(),
            remote: ([10, 0, 0, 1], 4000).into(),
            ttl: Some(1),
            tos: 0,
        };
        let iface = towpath_stack::IfaceId(1);
        pair.b.refuse_datagram(iface, &answer, b"query", Unreachable::Port);
        assert_eq!(pair.b.stack.net.counters().data.icmp_errors_sent, sent, "{to:?}");
    }
}

#[test]
fn a_call_after_a_pause_starts_its_timers_at_the_time_set() {
    let mut pair = any();
    pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    let late = towpath_stack::Instant(pair.b.now().0 + 500_000_000);
    pair.b.set_now(late);
    pair.b.accept_syn(syn.id).unwrap();
    // The SYN-ACK is retransmitted after one second.
    let due = pair.b.stack.next_timeout().unwrap();
    assert!(due > late, "{due:?} {late:?}");
}

#[test]
fn the_memory_of_an_idle_connection_is_released() {
    let mut pair = any();
    let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    let buffers = BufferSizes { recv: 32 << 10, recv_max: 64 << 10, ..BufferSizes::default() };
    let server = pair.b.accept_syn_with(syn.id, buffers).unwrap();
    pair.run(10);
    pair.a.send(client, &[7; 10_000]).unwrap();
    pair.run(100);
    pair.b.release_idle(server);
    assert_eq!(pair.b.buffer_bytes(), 10_000, "unread bytes stay");
    assert_eq!(pair.b.discard(server, 10_000), Ok(10_000));
    pair.b.release_idle(server);
    assert_eq!(pair.b.buffer_bytes(), 0);
    pair.a.send(client, &[7; 100]).unwrap();
    pair.run(100);
    assert_eq!(pair.b.discard(server, 10_000), Ok(100));
}

#[test]
fn raised_buffers_grow_beyond_their_first_limit() {
    let mut pair = any();
    let client = pair.a.connect(([192, 0, 2, 7], 80).into()).unwrap();
    pair.run(10);
    let syn = syn(&mut pair);
    let max = 32 << 10;
    let small = BufferSizes { recv: max, recv_max: max, send: max, send_max: max };
    let server = pair.b.accept_syn_with(syn.id, small).unwrap();
    pair.run(10);
    let transfer = |pair: &mut Pair| {
        let mut room = 0;
        for _ in 0..200 {
            while pair.a.send(client, &[7; 8192]).is_ok() {}
            while pair.b.send(server, &[7; 8192]).is_ok() {}
            pair.run(3);
            let _ = pair.a.discard(client, usize::MAX);
            let _ = pair.b.discard(server, usize::MAX);
            room = room.max(pair.b.send_room(server));
        }
        (pair.b.stack.recv_buffer(pair.b.info(server).unwrap().id).unwrap().capacity(), room)
    };
    assert_eq!(transfer(&mut pair).0, max);
    pair.b.raise_buffers(server, 1 << 20, 1 << 20);
    let (recv, send) = transfer(&mut pair);
    assert!(recv > max && recv <= 1 << 20, "{recv}");
    assert!(send > max as usize && send <= 1 << 20, "{send}");
}
