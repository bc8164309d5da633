//! Tests of TCP: connecting, echoing, transfers with loss, refusing, closing.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_pool::{LinkType, Offloads};
use towpath_tcp::{Flags, State};
use towpath_wire::tcp;

use super::output::fill;
use crate::limits::TX_OUTPUT_PACKETS;
use crate::net::IfaceId;

use super::world::{Conn, Dice, Node, World, WorldConfig};
use crate::{
    BindError, BindOptions, ConnectError, DropReason, Family, KeepAliveConfig, ListenError,
    SocketError, SocketEvent, SocketKind, SocketOption, SocketState, StackConfig,
};

fn ethernet() -> WorldConfig {
    WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() }
}

fn offloading() -> WorldConfig {
    let offloads = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
    WorldConfig { offloads, ..WorldConfig::default() }
}

/// Connects, sends both ways, closes both ways.
fn echo_over(link: WorldConfig, listen: &str, connect: &str) {
    let mut w = World::new(link);
    let (listener, _) = w.b.listen(listen, 8);
    let (client, server) = w.connected(listener, connect);
    assert_eq!(server.remote.ip(), w.a.info(client.id).unwrap().local.unwrap().ip());
    w.a.write(&client, b"hello");
    w.wait(1000, "request", |w| w.b.host.has(server.user, SocketEvent::Readable));
    let request = w.b.read(&server);
    assert_eq!(request, b"hello");
    w.b.write(&server, b"world");
    w.wait(1000, "answer", |w| w.a.host.has(client.user, SocketEvent::Readable));
    assert_eq!(w.a.read(&client), b"world");
    w.a.stack.shutdown_send(client.id);
    w.wait(1000, "end of file", |w| w.b.host.has(server.user, SocketEvent::PeerClosed));
    w.b.close(server.id);
    w.wait(1000, "close", |w| w.b.host.has(server.user, SocketEvent::Closed));
    w.a.close(client.id);
    w.run(100);
    assert!(w.a.host.has(client.user, SocketEvent::Closed), "the socket goes before its TIME-WAIT");
    assert_eq!(w.a.stack.time_waits.len(), 1);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn echo_v4_over_ip() {
    echo_over(WorldConfig::default(), "0.0.0.0:7", "10.0.0.2:7");
}

#[test]
fn echo_v6_over_ip() {
    echo_over(WorldConfig::default(), "[::]:7", "[fd00::2]:7");
}

#[test]
fn echo_v4_to_dual_stack_listener() {
    echo_over(WorldConfig::default(), "[::]:7", "10.0.0.2:7");
}

#[test]
fn echo_v4_over_ethernet_with_arp() {
    echo_over(ethernet(), "10.0.0.2:7", "10.0.0.2:7");
}

#[test]
fn echo_v6_over_ethernet_with_ndp() {
    echo_over(ethernet(), "[fd00::2]:7", "[fd00::2]:7");
}

#[test]
fn echo_with_offloads() {
    echo_over(offloading(), "0.0.0.0:7", "10.0.0.2:7");
}

/// Transfers bytes in both directions at once; all of them must arrive.
fn transfer(w: &mut World, client: &Conn, server: &Conn, len: usize, ms: u64) {
    let mut dice = Dice::new(7, 0);
    let up: Vec<u8> = (0..len).map(|_| dice.next_u64() as u8).collect();
    let down: Vec<u8> = (0..len).map(|_| dice.next_u64() as u8).collect();
    let (mut sent_up, mut sent_down) = (0, 0);
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    w.wait(ms, "transfer", |w| {
        sent_up += w.a.write(client, &up[sent_up..]);
        sent_down += w.b.write(server, &down[sent_down..]);
        got_up.extend(w.b.read(server));
        got_down.extend(w.a.read(client));
        got_up.len() == len && got_down.len() == len
    });
    assert!(got_up == up && got_down == down, "bytes were changed on the way");
}

#[test]
fn big_transfer_both_ways_through_loss() {
    for link in [WorldConfig::default(), offloading(), ethernet()] {
        let mut w = World::new(WorldConfig { loss: 20, ..link });
        let (listener, _) = w.b.listen("[::]:80", 8);
        let client = w.a.connect("10.0.0.2:80");
        w.wait(60_000, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).unwrap();
        transfer(&mut w, &client, &server, 2_000_000, 120_000);
        assert!(w.a.stack.counters().tcp_retransmits > 0, "the link lost packets");
        for (id, node) in [(client.id, &mut w.a), (server.id, &mut w.b)] {
            node.close(id);
        }
        w.b.close(listener);
        w.set_loss(0);
        w.assert_ends_empty();
    }
}

#[test]
fn a_big_window_fills_a_long_path() {
    let mut w = World::new(WorldConfig { delay_ns: 20_000_000, ..WorldConfig::default() });
    w.b.host.capacity = (65536, 4 << 20);
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let client = w.a.connect_with("10.0.0.2:80", 4 << 20, 4 << 20);
    w.wait(1000, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).unwrap();
    let bytes = vec![5; 16 << 20];
    let (mut sent, mut got) = (0, 0);
    let start = w.now();
    w.wait(10_000, "transfer", |w| {
        sent += w.a.write(&client, &bytes[sent..]);
        got += w.b.read(&server).len();
        got == bytes.len()
    });
    // A window of 64 KiB per round trip of 40 ms would take 10 s.
    let took = w.now().since(start);
    assert!(took.as_millis() < 1500, "autotuning did not open the window: {took:?}");
}

/// A device is slower than the windows allow: connections wait for it, and no packet is lost.
#[test]
fn a_slow_device_holds_connections_back() {
    let mut w = World::new(WorldConfig { rate: Some(20), ..WorldConfig::default() });
    w.b.host.capacity = (4 << 20, 4 << 20);
    let (listener, _) = w.b.listen("0.0.0.0:80", 64);
    let ends: Vec<_> = (0..8)
        .map(|_| {
            let client = w.a.connect_with("10.0.0.2:80", 4 << 20, 4 << 20);
            w.wait(1000, "accept", |w| !w.b.host.accepted.is_empty());
            (client, w.b.accept(listener).unwrap())
        })
        .collect();
    let bytes: Vec<u8> = (0..2_000_000u32).map(|n| (n / 7) as u8).collect();
    for (client, _) in &ends {
        assert_eq!(w.a.write(client, &bytes), bytes.len());
    }
    let mut got = vec![Vec::new(); ends.len()];
    w.wait(60_000, "all of it", |w| {
        for ((_, server), got) in ends.iter().zip(&mut got) {
            got.extend(w.b.read(server));
        }
        got.iter().all(|got| got.len() == bytes.len())
    });
    assert!(got.iter().all(|got| *got == bytes), "bytes were changed on the way");
    assert!(w.a.stack.counters().tcp_waits_for_share > 0, "the device kept up");
    assert_eq!(w.a.drops(DropReason::OutputFull), 0);
    for (client, server) in ends {
        w.a.close(client.id);
        w.b.close(server.id);
    }
    w.b.close(listener);
    w.assert_ends_empty();
}

/// Connections that wait for a device send nothing, but still report received bytes, and end by a
/// timeout or an abort.
#[test]
fn who_waits_for_a_device_hears_and_ends() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let (hears, speaks) = w.connected(listener, "10.0.0.2:80");
    let (patient, server) = w.connected(listener, "10.0.0.2:80");
    let (aborted, peer) = w.connected(listener, "10.0.0.2:80");
    let timeout = SocketOption::UserTimeout(Some(Duration::from_secs(3)));
    w.a.stack.set_option(patient.id, timeout).unwrap();
    w.a.stack.set_option(patient.id, SocketOption::NoDelay(true)).unwrap();
    w.b.stack.set_option(speaks.id, SocketOption::NoDelay(true)).unwrap();
    w.set_stuck(true);
    w.a.write(&patient, b"in flight");
    w.settle();
    fill(&mut w, TX_OUTPUT_PACKETS);
    w.a.host.events.clear();
    w.a.write(&patient, b"more");
    w.a.abort(aborted.id);
    w.b.write(&speaks, b"news");
    w.run(10);
    assert!(w.a.host.has(hears.user, SocketEvent::Readable), "it is told what arrived");
    assert_eq!(w.a.read(&hears), b"news");
    assert_eq!(w.a.state(aborted.id), None, "it is over, whether its peer hears of it or not");
    w.b.write(&speaks, b"late");
    w.run(10);
    assert_eq!(w.a.read(&hears), b"late");
    assert!(w.a.stack.counters().tcp_waits_for_output > 0);
    w.wait(4_000, "the user timeout", |w| {
        w.a.host.has(patient.user, SocketEvent::Error(SocketError::TimedOut))
    });
    w.set_stuck(false);
    w.a.write(&hears, b"answer");
    w.wait(1_000, "the answer", |w| w.b.read(&speaks) == b"answer");
    for id in [hears.id, patient.id] {
        w.a.close(id);
    }
    for id in [speaks.id, server.id, peer.id, listener] {
        w.b.close(id);
    }
    w.assert_ends_empty();
}

#[test]
fn loopback_within_one_stack() {
    for (listen, connect) in
        [("127.0.0.1:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("0.0.0.0:80", "10.0.0.1:80")]
    {
        let mut w = World::new(WorldConfig::default());
        w.keep_seen();
        let (listener, _) = w.a.listen(listen, 8);
        let client = w.a.connect(connect);
        w.wait(10, "accept", |w| !w.a.host.accepted.is_empty());
        let server = w.a.accept(listener).unwrap();
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        // The transfer takes no time, because neither Nagle's algorithm nor a delayed ACK holds
        // back segments.
        w.wait(1, "transfer", |w| {
            sent += w.a.write(&client, &bytes[sent..]);
            got.extend(w.a.read(&server));
            got.len() == bytes.len()
        });
        assert!(got == bytes);
        assert!(w.take_seen().is_empty(), "loopback left the host");
        for id in [client.id, server.id, listener] {
            w.a.close(id);
        }
        w.assert_ends_empty();
    }
}

#[test]
fn refused_by_reset() {
    let mut w = World::new(WorldConfig::default());
    let client = w.a.connect("10.0.0.2:81");
    w.run(100);
    let events = w.a.host.take_events(client.user);
    assert_eq!(events, [SocketEvent::Error(SocketError::Refused)]);
    assert_eq!(w.b.drops(DropReason::TcpNoSocket), 1);
    w.a.close(client.id);
    w.run(1);
    assert_eq!(w.a.host.take_events(client.user), [SocketEvent::Closed]);
    w.assert_ends_empty();
}

#[test]
fn nobody_answers() {
    let mut w = World::new(WorldConfig { loss: 1000, ..WorldConfig::default() });
    let client = w.a.connect("10.0.0.2:81");
    w.run(400_000);
    assert_eq!(w.a.host.take_events(client.user), [SocketEvent::Error(SocketError::TimedOut)]);
    w.a.close(client.id);
    w.assert_ends_empty();
}

#[test]
fn accept_queue_holds_backlog_plus_one_and_recovers() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 1);
    let clients: Vec<Conn> = (0..5).map(|_| w.a.connect("10.0.0.2:80")).collect();
    w.run(500);
    assert_eq!(w.b.host.accepted.len(), 2);
    assert!(w.b.drops(DropReason::AcceptOverflow) > 0, "final ACKs were dropped");
    let late = w.a.connect("10.0.0.2:80");
    w.run(500);
    assert!(w.b.drops(DropReason::ListenOverflow) > 0, "SYNs were dropped");
    let mut servers = Vec::new();
    w.wait(60_000, "everyone gets in", |w| {
        servers.extend(w.b.accept(listener));
        servers.len() == 6
    });
    w.run(1000);
    for client in clients.iter().chain([&late]) {
        assert!(w.a.host.has(client.user, SocketEvent::Connected));
        w.a.close(client.id);
    }
    for server in servers {
        w.b.close(server.id);
    }
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn no_room_at_the_owner_drops_the_final_ack() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    w.b.host.no_room = true;
    let client = w.a.connect("10.0.0.2:80");
    w.run(100);
    assert!(w.b.drops(DropReason::AcceptOverflow) > 0);
    w.b.host.no_room = false;
    w.a.write(&client, b"x");
    w.wait(5000, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).unwrap();
    w.wait(5000, "data", |w| w.b.host.has(server.user, SocketEvent::Readable));
    w.a.abort(client.id);
    w.b.abort(server.id);
    w.b.abort(listener);
    w.assert_ends_empty();
}

#[test]
fn a_closed_listener_takes_half_open_connections_along() {
    let mut w = World::new(WorldConfig::default());
    let (listener, user) = w.b.listen("0.0.0.0:80", 10);
    let client = w.a.connect("10.0.0.2:80");
    // The SYN has arrived, and the SYN-ACK is in flight.
    w.run(1);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 1);
    w.b.close(listener);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
    w.run(100);
    assert_eq!(w.b.host.take_events(user), [SocketEvent::Closed]);
    assert!(w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
    w.a.close(client.id);
    w.assert_ends_empty();
}

#[test]
fn half_open_connections_time_out() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let client = w.a.connect("10.0.0.2:80");
    w.run(1);
    w.a.abort(client.id);
    w.set_loss(1000);
    w.run(200_000);
    assert_eq!(w.b.stack.handshakes.half_open.len(), 0);
    assert_eq!(w.b.stack.counters().tcp_half_open_timeouts, 1);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn closing_with_unread_bytes_resets() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.a.write(&client, b"unread");
    w.run(10);
    w.b.close(server.id);
    w.run(10);
    assert!(w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
    assert!(w.b.host.has(server.user, SocketEvent::Closed));
    w.a.close(client.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

/// Returns the segments that b sent: flags, payload length, and sequence number relative to the
/// first one.
fn segments_of_b(w: &mut World) -> Vec<(Flags, usize, u32)> {
    let b = [10, 0, 0, 2];
    let headers: Vec<_> = w
        .take_seen()
        .iter()
        .filter(|packet| packet[12..16] == b)
        .map(|packet| {
            let segment = &packet[usize::from(packet[0] & 15) * 4..];
            let header = tcp::Header::parse(segment).expect("a segment of ours");
            (header.flags, segment.len() - usize::from(header.header_len), header.seq)
        })
        .collect();
    headers.iter().map(|&(flags, len, seq)| (flags, len, seq - headers[0].2)).collect()
}

/// The write, the close, and the output to the device happen in one turn of b.
#[test]
fn an_answer_leaves_before_the_reset_of_a_close_with_unread_bytes() {
    for shut in [false, true] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        let (client, server) = w.connected(listener, "10.0.0.2:80");
        w.a.write(&client, b"request");
        w.run(10);
        w.keep_seen();
        w.b.write(&server, b"413 too large");
        if shut {
            w.b.stack.shutdown_send(server.id);
        }
        w.b.close(server.id);
        w.b.turn();
        let data = Flags::ACK | Flags::PSH | if shut { Flags::FIN } else { Flags(0) };
        let end = 13 + u32::from(shut);
        assert_eq!(
            segments_of_b(&mut w),
            [(data, 13, 0), (Flags::ACK | Flags::RST, 0, end)],
            "{shut}"
        );
        assert!(w.b.host.has(server.user, SocketEvent::Closed));
        w.run(10);
        assert_eq!(w.a.read(&client), b"413 too large");
        assert_eq!(w.a.host.has(client.user, SocketEvent::PeerClosed), shut);
        assert!(w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
        w.a.close(client.id);
        w.b.close(listener);
        w.assert_ends_empty();
    }
}

/// The request arrives in the turn of the close.
#[test]
fn an_answer_leaves_before_the_reset_for_bytes_that_come_after_the_close() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.keep_seen();
    w.a.write(&client, b"request");
    w.a.turn();
    w.b.write(&server, b"413 too large");
    w.b.close(server.id);
    w.b.now += Duration::from_millis(1);
    w.b.turn();
    let last = segments_of_b(&mut w).into_iter().map(|(flags, ..)| flags).collect::<Vec<_>>();
    assert_eq!(last, [Flags::ACK | Flags::PSH | Flags::FIN, Flags::ACK | Flags::RST]);
    w.run(10);
    assert_eq!(w.a.read(&client), b"413 too large");
    assert!(w.a.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
    w.a.close(client.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

/// More bytes than one visit sends precede the reset, with SO_LINGER 0 and when the stack ends.
#[test]
fn bytes_leave_before_resets_though_they_take_several_turns() {
    for goes in [false, true] {
        let mut w = World::new(WorldConfig::default());
        w.a.host.capacity = (1 << 20, 1 << 20);
        let (listener, _) = w.a.listen("0.0.0.0:80", 10);
        let ends: Vec<_> = (0..3)
            .map(|_| {
                let client = w.b.connect_with("10.0.0.1:80", 1 << 20, 1 << 20);
                w.wait(10_000, "accept", |w| !w.a.host.accepted.is_empty());
                (client, w.a.accept(listener).unwrap())
            })
            .collect();
        // Let the congestion windows grow beyond one visit, without a pause that would shrink them.
        for _ in 0..8 {
            for (client, server) in &ends {
                assert_eq!(w.a.write(server, &[6; 500_000]), 500_000);
                w.run(20);
                assert_eq!(w.b.read(client).len(), 500_000);
            }
        }
        for (_, server) in &ends {
            assert_eq!(w.a.write(server, &[7; 500_000]), 500_000);
        }
        match goes {
            false => ends.iter().for_each(|(_, server)| w.a.abort(server.id)),
            true => w.a.stack.reset_connections(),
        }
        w.a.turn();
        assert!(!w.a.host.has(ends[0].1.user, SocketEvent::Closed), "one turn is not enough");
        w.run(1000);
        for (client, server) in &ends {
            assert_eq!(w.b.read(client), vec![7; 500_000]);
            assert!(w.b.host.has(client.user, SocketEvent::Error(SocketError::Reset)));
            w.b.close(client.id);
            if goes {
                w.a.close(server.id);
            }
        }
        w.a.close(listener);
        w.assert_ends_empty();
    }
}

#[test]
fn what_was_written_before_close_arrives() {
    let mut w = World::new(WorldConfig { loss: 100, ..WorldConfig::default() });
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let client = w.a.connect("10.0.0.2:80");
    w.wait(60_000, "accept", |w| !w.b.host.accepted.is_empty());
    let server = w.b.accept(listener).unwrap();
    let bytes = vec![9; 60_000];
    assert_eq!(w.a.write(&client, &bytes), bytes.len());
    w.a.close(client.id);
    let mut got = Vec::new();
    w.wait(60_000, "end of file", |w| {
        got.extend(w.b.read(&server));
        w.b.host.has(server.user, SocketEvent::PeerClosed)
    });
    got.extend(w.b.read(&server));
    assert!(got == bytes);
    w.b.close(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn simultaneous_close_leaves_two_time_waits() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.run(100);
    w.a.close(client.id);
    w.b.close(server.id);
    w.run(100);
    assert_eq!((w.a.stack.time_waits.len(), w.b.stack.time_waits.len()), (1, 1));
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn an_orphan_does_not_wait_for_ever() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    // The peer never closes, so FIN-WAIT-2 ends by a timeout.
    w.a.close(client.id);
    w.run(1000);
    assert_eq!(w.a.state(client.id), Some(SocketState::Tcp(State::FinWait2)));
    w.run(120_000);
    assert_eq!(w.a.state(client.id), None);
    w.b.abort(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn a_stack_that_goes_resets_what_is_not_delivered() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (open, first) = w.connected(listener, "10.0.0.2:80");
    let (closed, second) = w.connected(listener, "10.0.0.2:80");
    let (delivered, third) = w.connected(listener, "10.0.0.2:80");
    // Send more than the peer's buffer holds, and close.
    while w.a.write(&closed, &[1; 1000]) > 0 {
        w.run(100);
    }
    w.a.close(closed.id);
    w.a.close(delivered.id);
    w.run(100);
    let state = |w: &World, id| w.a.state(id);
    assert_eq!(state(&w, closed.id), Some(SocketState::Tcp(State::FinWait1)));
    assert_eq!(state(&w, delivered.id), Some(SocketState::Tcp(State::FinWait2)));
    w.a.stack.reset_connections();
    w.run(100);
    let reset = SocketEvent::Error(SocketError::Reset);
    assert!(w.b.host.has(first.user, reset) && w.b.host.has(second.user, reset));
    assert!(!w.b.host.has(third.user, reset) && w.b.host.has(third.user, SocketEvent::PeerClosed));
    w.a.close(open.id);
    for server in [first, second, third] {
        w.b.close(server.id);
    }
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn too_many_orphans_are_aborted() {
    let config = StackConfig { orphans_max: 1, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (first, one) = w.connected(listener, "10.0.0.2:80");
    let (second, two) = w.connected(listener, "10.0.0.2:80");
    w.a.close(first.id);
    w.a.close(second.id);
    w.run(100);
    assert!(w.b.host.has(one.user, SocketEvent::PeerClosed));
    assert!(w.b.host.has(two.user, SocketEvent::Error(SocketError::Reset)));
    assert_eq!(w.a.stack.counters().tcp_orphans_aborted, 1);
    for server in [one, two] {
        w.b.close(server.id);
    }
    w.b.close(listener);
    w.assert_ends_empty();
}

fn connect_from_port(node: &mut Node, port: u16, remote: &str) -> Result<Conn, ConnectError> {
    let (id, user) = node.open(SocketKind::Stream, Family::V4);
    let local = SocketAddr::from(([0, 0, 0, 0], port));
    let options = BindOptions { reuse_addr: true, ..Default::default() };
    node.stack.bind(id, local, options).expect("bind");
    let remote: SocketAddr = remote.parse().unwrap();
    let (recv, send) = (super::world::Recv::new(4096, 4096), super::world::Send::new(4096));
    node.stack.connect(node.now, id, remote, recv.clone(), send.clone())?;
    Ok(Conn { id, user, recv, send, remote })
}

#[test]
fn time_wait_is_reused_by_a_new_connection() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    for round in 0..3 {
        let client = connect_from_port(&mut w.a, 5000, "10.0.0.2:80").expect("connect");
        w.wait(5000, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).unwrap();
        // The server closes first, so that it keeps the TIME-WAIT.
        w.b.close(server.id);
        w.wait(1000, "eof", |w| w.a.host.has(client.user, SocketEvent::PeerClosed));
        w.a.close(client.id);
        w.run(100);
        assert_eq!(w.b.stack.time_waits.len(), 1);
        assert_eq!(w.b.stack.counters().tcp_time_wait_reused, round);
        w.run(1000);
    }
    w.b.close(listener);
    w.assert_ends_empty();
}

/// Sequence numbers of an old connection advance with its bytes, initial sequence numbers with
/// time. After hours without traffic, their distance is arbitrary.
#[test]
fn time_wait_is_reused_after_a_connection_of_any_age() {
    const HOUR: u64 = 3_600_000;
    for server_closes in [true, false] {
        let mut w = World::new(WorldConfig::default());
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        for hours in 0..6 {
            let client = connect_from_port(&mut w.a, 5000, "10.0.0.2:80").expect("connect");
            w.wait(5000, "accept", |w| !w.b.host.accepted.is_empty());
            let server = w.b.accept(listener).unwrap();
            w.run(hours * HOUR);
            // The side that closes first keeps the TIME-WAIT.
            if server_closes {
                w.b.close(server.id);
                w.wait(1000, "eof", |w| w.a.host.has(client.user, SocketEvent::PeerClosed));
                w.a.close(client.id);
            } else {
                w.a.close(client.id);
                w.wait(1000, "eof", |w| w.b.host.has(server.user, SocketEvent::PeerClosed));
                w.b.close(server.id);
            }
            w.run(1500);
            let reused = [&w.a, &w.b].map(|node| node.stack.counters().tcp_time_wait_reused);
            assert_eq!(reused, if server_closes { [0, hours] } else { [hours, 0] });
        }
        w.b.close(listener);
        w.assert_ends_empty();
    }
}

#[test]
fn time_wait_is_bounded_and_expires() {
    let config = StackConfig { time_wait_max: 3, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    for _ in 0..5 {
        let (client, server) = w.connected(listener, "10.0.0.2:80");
        w.a.close(client.id);
        w.run(50);
        w.b.close(server.id);
        w.run(50);
    }
    assert_eq!(w.a.stack.time_waits.len(), 3);
    assert_eq!(w.a.drops(DropReason::TimeWaitFull), 2);
    w.run(61_000);
    assert_eq!(w.a.stack.time_waits.len(), 0);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn binds_follow_the_rules() {
    let mut w = World::new(WorldConfig::default());
    let plain = BindOptions::default();
    let reuse = BindOptions { reuse_addr: true, ..plain };
    let port = BindOptions { reuse_port: true, ..plain };
    let bind = |w: &mut World, family, addr: &str, options| {
        let (id, _) = w.a.open(SocketKind::Stream, family);
        w.a.stack.bind(id, addr.parse().unwrap(), options).map(|_| id)
    };
    let first = bind(&mut w, Family::V6, "[::]:80", plain).unwrap();
    assert_eq!(bind(&mut w, Family::V4, "0.0.0.0:80", plain), Err(BindError::AddrInUse));
    assert_eq!(w.a.stack.bind(first, "[::]:81".parse().unwrap(), plain), Err(BindError::Invalid));
    let only = BindOptions { v6_only: true, ..plain };
    bind(&mut w, Family::V6, "[::]:90", only).unwrap();
    bind(&mut w, Family::V4, "0.0.0.0:90", plain).unwrap();
    assert_eq!(bind(&mut w, Family::V4, "10.9.9.9:80", plain), Err(BindError::AddrNotAvailable));
    bind(&mut w, Family::V4, "10.9.9.9:100", BindOptions { free_bind: true, ..plain }).unwrap();
    bind(&mut w, Family::V6, "[::ffff:10.0.0.1]:101", plain).unwrap();
    assert_eq!(bind(&mut w, Family::V4, "10.0.0.1:101", plain), Err(BindError::AddrInUse));
    // With SO_REUSEADDR, two sockets may bind, but only one may listen.
    let one = bind(&mut w, Family::V4, "0.0.0.0:200", reuse).unwrap();
    let two = bind(&mut w, Family::V4, "0.0.0.0:200", reuse).unwrap();
    assert_eq!(w.a.stack.listen(one, 1), Ok(()));
    assert_eq!(w.a.stack.listen(two, 1), Err(ListenError::AddrInUse));
    // With SO_REUSEPORT, both may listen.
    for _ in 0..2 {
        let id = bind(&mut w, Family::V4, "0.0.0.0:300", port).unwrap();
        assert_eq!(w.a.stack.listen(id, 1), Ok(()));
    }
}

#[test]
fn a_restarted_server_needs_reuseaddr_while_time_wait_lasts() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.b.close(server.id);
    w.run(50);
    w.a.close(client.id);
    w.b.close(listener);
    w.run(50);
    assert_eq!(w.b.stack.time_waits.len(), 1);
    let (id, _) = w.b.open(SocketKind::Stream, Family::V4);
    let addr: SocketAddr = "0.0.0.0:80".parse().unwrap();
    assert_eq!(w.b.stack.bind(id, addr, BindOptions::default()), Err(BindError::AddrInUse));
    let reuse = BindOptions { reuse_addr: true, ..Default::default() };
    assert_eq!(w.b.stack.bind(id, addr, reuse), Ok(addr));
    w.b.close(id);
    w.run(61_000);
    let (id, _) = w.b.open(SocketKind::Stream, Family::V4);
    assert_eq!(w.b.stack.bind(id, addr, BindOptions::default()), Ok(addr));
    w.b.close(id);
    w.assert_ends_empty();
}

#[test]
fn reuseport_listeners_share_connections() {
    let mut w = World::new(WorldConfig::default());
    let options = BindOptions { reuse_port: true, ..Default::default() };
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let (id, _) = w.b.open(SocketKind::Stream, Family::V4);
        w.b.stack.bind(id, "0.0.0.0:80".parse().unwrap(), options).unwrap();
        w.b.stack.listen(id, 100).unwrap();
        listeners.push(id);
    }
    let clients: Vec<Conn> = (0..40).map(|_| w.a.connect("10.0.0.2:80")).collect();
    w.run(1000);
    let waiting = listeners.iter().map(|id| w.b.info(*id).unwrap().recv_queue).collect::<Vec<_>>();
    assert_eq!(waiting.iter().sum::<u32>(), 40);
    assert!(waiting.iter().all(|n| *n > 5), "{waiting:?}");
    for client in clients {
        w.a.abort(client.id);
    }
    let servers: Vec<_> = w.b.host.accepted.drain(..).map(|conn| conn.id).collect();
    for id in servers.into_iter().chain(listeners) {
        w.b.abort(id);
    }
    w.assert_ends_empty();
}

#[test]
fn ephemeral_ports_run_out_and_come_back() {
    let config = StackConfig { ephemeral: 40_000..=40_009, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 100);
    let (other, _) = w.b.listen("0.0.0.0:81", 100);
    let clients: Vec<Conn> = (0..10).map(|_| w.a.connect("10.0.0.2:80")).collect();
    let (id, _) = w.a.open(SocketKind::Stream, Family::V4);
    let (recv, send) = (super::world::Recv::new(4096, 4096), super::world::Send::new(4096));
    let remote: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let refused = w.a.stack.connect(w.a.now, id, remote, recv, send);
    assert_eq!(refused, Err(ConnectError::NoPort));
    w.a.close(id);
    // For another destination port, every local port is free again.
    let elsewhere = w.a.connect("10.0.0.2:81");
    w.run(100);
    assert!(w.a.host.has(elsewhere.user, SocketEvent::Connected));
    for conn in clients.iter().chain([&elsewhere]) {
        w.a.abort(conn.id);
    }
    w.run(100);
    let again = w.a.connect("10.0.0.2:80");
    w.run(100);
    assert!(w.a.host.has(again.user, SocketEvent::Connected));
    w.a.abort(again.id);
    let servers: Vec<_> = w.b.host.accepted.drain(..).map(|conn| conn.id).collect();
    for id in servers.into_iter().chain([listener, other]) {
        w.b.abort(id);
    }
    w.assert_ends_empty();
}

#[test]
fn ports_in_time_wait_are_the_last_choice() {
    let config = StackConfig { ephemeral: 40_000..=40_001, ..StackConfig::default() };
    let mut w = World::with(WorldConfig::default(), config, false);
    let (listener, _) = w.b.listen("0.0.0.0:80", 100);
    for _ in 0..2 {
        let (client, server) = w.connected(listener, "10.0.0.2:80");
        w.a.close(client.id);
        w.run(50);
        w.b.close(server.id);
        w.run(50);
    }
    assert_eq!(w.a.stack.usage().time_wait, 2);
    w.run(1500);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    assert_eq!(w.a.stack.counters().tcp_time_wait_reused, 1);
    w.a.write(&client, b"new");
    w.run(50);
    assert_eq!(w.b.read(&server), b"new");
    w.a.close(client.id);
    w.b.close(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn our_own_time_wait_is_reused_only_when_timestamps_tell_the_two_apart() {
    for timestamps in [true, false] {
        let tcp = towpath_tcp::Config { timestamps, ..Default::default() };
        let config = StackConfig { tcp, ..StackConfig::default() };
        let mut w = World::with(WorldConfig::default(), config, false);
        let (listener, _) = w.b.listen("0.0.0.0:80", 10);
        let client = connect_from_port(&mut w.a, 5000, "10.0.0.2:80").expect("connect");
        w.wait(5000, "accept", |w| !w.b.host.accepted.is_empty());
        let server = w.b.accept(listener).unwrap();
        w.a.close(client.id);
        w.run(50);
        w.b.close(server.id);
        w.run(50);
        assert_eq!(w.a.stack.time_waits.len(), 1);
        let again = connect_from_port(&mut w.a, 5000, "10.0.0.2:80");
        assert_eq!(again.err(), Some(ConnectError::AddrInUse), "a moment ago");
        w.run(1500);
        let again = connect_from_port(&mut w.a, 5000, "10.0.0.2:80");
        assert_eq!(again.is_ok(), timestamps);
        w.run(61_000);
        let last = connect_from_port(&mut w.a, 5000, "10.0.0.2:80");
        assert_eq!(last.is_ok(), !timestamps, "TIME-WAIT is over, or the port in use again");
    }
}

#[test]
fn keepalive_finds_a_dead_peer() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    let second = std::time::Duration::from_secs(1);
    let keepalive = KeepAliveConfig { idle: 10 * second, interval: second, probes: 3 };
    w.a.stack.set_option(client.id, SocketOption::KeepAlive(Some(keepalive))).unwrap();
    w.run(60_000);
    assert!(!w.a.host.has(client.user, SocketEvent::Error(SocketError::TimedOut)));
    w.set_loss(1000);
    w.wait(30_000, "keepalive", |w| {
        w.a.host.has(client.user, SocketEvent::Error(SocketError::TimedOut))
    });
    w.a.close(client.id);
    w.b.abort(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn info_tells_what_ss_wants() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.a.write(&client, &[1; 1000]);
    w.run(50);
    let info = w.b.info(server.id).unwrap();
    assert_eq!(info.recv_queue, 1000);
    assert_eq!(info.state, SocketState::Tcp(State::Established));
    assert_eq!(info.local, Some("10.0.0.2:80".parse().unwrap()));
    assert_eq!(w.b.info(listener).unwrap().state, SocketState::Listening);
    assert_eq!(w.b.stack.sockets(w.b.now).count(), 2);
    let tcp = w.a.info(client.id).unwrap().tcp.unwrap();
    assert!(tcp.rtt.as_millis() >= 2 && tcp.rtt.as_millis() < 50, "{:?}", tcp.rtt);
    assert_eq!(w.a.info(client.id).unwrap().mtu, Some(1500));
}

/// Creates the error "fragmentation needed" about a packet that was sent on the link.
fn too_big(seen: &[u8], mtu: u16) -> Vec<u8> {
    use towpath_wire::checksum;
    let mut bytes = vec![0; 20 + 8 + 40];
    bytes[..20].copy_from_slice(&seen[..20]);
    bytes[2..4].copy_from_slice(&68u16.to_be_bytes());
    bytes[6..12].copy_from_slice(&[0, 0, 64, 1, 0, 0]);
    // The error is sent by a router to the sender of the packet.
    bytes[12..16].copy_from_slice(&[10, 0, 0, 77]);
    bytes[16..20].copy_from_slice(&seen[12..16]);
    let sum = checksum::finish(checksum::sum(&bytes[..20], 0));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes[20..22].copy_from_slice(&[3, 4]);
    bytes[26..28].copy_from_slice(&mtu.to_be_bytes());
    bytes[28..68].copy_from_slice(&seen[..40]);
    let sum = checksum::finish(checksum::sum(&bytes[20..], 0));
    bytes[22..24].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn a_way_that_is_found_anew_has_its_own_mtu() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.run(100);
    w.keep_seen();
    w.b.write(&server, &[3; 5000]);
    w.b.turn();
    let full = w.take_seen().into_iter().find(|packet| packet.len() == 1500).expect("a segment");
    w.inject(&too_big(&full, 1000));
    w.run(100);
    assert_eq!(w.b.info(server.id).unwrap().mtu, Some(1000));
    w.take_seen();
    // After it is bound to a device, the connection forgets its path and path MTU.
    w.b.stack.set_option(server.id, SocketOption::Device(Some(IfaceId(1)))).unwrap();
    w.b.write(&server, &[7; 5000]);
    w.run(2000);
    assert_eq!(w.a.read(&client).len(), 10_000);
    assert_eq!(w.take_seen().iter().map(Vec::len).max(), Some(1500));
    assert_eq!(w.b.drops(DropReason::TooBig), 0);
}

#[test]
fn path_mtu_is_learnt_from_those_who_saw_a_segment() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.run(100);
    w.keep_seen();
    w.b.write(&server, &vec![3; 20_000]);
    w.b.turn();
    let seen =
        w.take_seen().into_iter().find(|packet| packet.len() == 1500).expect("a full segment");
    let mut forged = seen.clone();
    forged[24] ^= 0x40;
    w.inject(&too_big(&forged, 700));
    w.b.turn();
    assert_eq!(w.b.drops(DropReason::IcmpErrorStray), 1, "a sequence number not in flight");
    assert_eq!(w.b.info(server.id).unwrap().mtu, Some(1500));
    w.inject(&too_big(&seen, 1000));
    w.b.turn();
    assert_eq!(w.b.info(server.id).unwrap().mtu, Some(1000));
    let seen = w.take_seen();
    assert!(
        !seen.is_empty() && seen.iter().all(|packet| packet.len() <= 1000),
        "sent again, smaller"
    );
    let mut got = 0;
    w.wait(5000, "data", |w| {
        got += w.a.read(&client).len();
        got == 20_000
    });
    w.a.close(client.id);
    w.b.close(server.id);
    w.b.close(listener);
    w.assert_ends_empty();
}

#[test]
fn an_unreachable_neighbour_fails_the_connect() {
    let mut w = World::new(ethernet());
    let client = w.a.connect("10.0.0.99:80");
    w.run(10_000);
    let events = w.a.host.take_events(client.user);
    assert_eq!(events, [SocketEvent::Error(SocketError::HostUnreachable)]);
    w.a.close(client.id);
    w.assert_ends_empty();
}
