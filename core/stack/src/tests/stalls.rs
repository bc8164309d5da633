//! Tests of a host that ran no turn for a while.

use super::world::{Conn, MS, Node, World, WorldConfig};
use crate::{Budget, Instant, KeepAliveConfig, SocketEvent, SocketOption};

/// Creates a connection over loopback within host a, which is past its first segments, because
/// these are acknowledged without delay.
fn connected(w: &mut World) -> (Conn, Conn) {
    let (listener, _) = w.a.listen("127.0.0.1:80", 8);
    let client = w.a.connect("127.0.0.1:80");
    w.wait(10, "accept", |w| !w.a.host.accepted.is_empty());
    let server = w.a.accept(listener).unwrap();
    for _ in 0..40 {
        for (from, to) in [(&client, &server), (&server, &client)] {
            w.a.write(from, b"before");
            w.wait(100, "what was sent", |w| !w.a.read(to).is_empty());
        }
    }
    w.run(1000);
    (client, server)
}

/// Returns the congestion window and the bytes in flight, both in segments.
fn windows(w: &World, conn: &Conn) -> (u32, u32) {
    let tcp = w.a.info(conn.id).unwrap().tcp.unwrap();
    (tcp.cwnd, tcp.unacked)
}

/// A delayed acknowledgement and the retransmission timer that it stops are both late: the timer
/// must fire after the acknowledgement.
#[test]
fn an_acknowledgement_that_is_late_comes_before_the_timer_for_it() {
    for both_ways in [false, true] {
        for stall in [100, 300, 5_000] {
            let mut w = World::new(WorldConfig::default());
            let (client, server) = connected(&mut w);
            let before = [&client, &server].map(|it| windows(&w, it).0);
            w.a.write(&client, b"request");
            if both_ways {
                w.a.write(&server, b"request too");
            }
            w.settle();
            assert_eq!(windows(&w, &client).1, 1, "it is not acknowledged at once");
            assert_eq!(windows(&w, &server).1, u32::from(both_ways));
            w.a.now = Instant(w.a.now.0 + stall * MS);
            w.b.now = w.a.now;
            w.settle();
            let after = [&client, &server].map(|it| windows(&w, it));
            assert_eq!(after, before.map(|cwnd| (cwnd, 0)), "after {stall} ms, {both_ways}");
            assert_eq!(w.a.stack.counters().tcp_retransmits, 0, "after {stall} ms, {both_ways}");
        }
    }
}

/// Options make the peers of several connections overdue at once.
#[test]
fn timers_that_are_armed_for_the_past_fire_and_hold_up_no_others() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 10);
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(w.connected(listener, "10.0.0.2:80"));
        w.run(10_000);
    }
    let (client, server) = connected(&mut w);
    // The timer wheel has passed all these deadlines.
    w.a.write(&client, b"x");
    w.run(60_000);
    let second = std::time::Duration::from_secs(1);
    for (conn, _) in &silent {
        let keepalive = KeepAliveConfig { idle: second, interval: 75 * second, probes: 9 };
        w.a.stack.set_option(conn.id, SocketOption::KeepAlive(Some(keepalive))).unwrap();
    }
    w.a.write(&client, b"and it goes on");
    for _ in 0..100 {
        w.a.turn();
    }
    let next = w.a.next_timeout();
    assert!(next.is_none_or(|next| next > w.now().0), "it turns without an end: {next:?}");
    let sent = windows(&w, &client).1;
    assert_eq!(sent, 1, "it is not acknowledged at once");
    w.run(100);
    assert_eq!(windows(&w, &client).1, 0, "the acknowledgement that was put off came");
    assert!(!w.a.read(&server).is_empty());
}

/// A turn with an exhausted budget defers the visit of a connection. Its program reads the bytes
/// and waits for more, which arrive before the visit.
#[test]
fn bytes_before_a_visit_that_was_put_off_are_notified_of() {
    let mut w = World::new(WorldConfig::default());
    let (listener, _) = w.b.listen("0.0.0.0:80", 8);
    let (client, server) = w.connected(listener, "10.0.0.2:80");
    w.a.stack.set_option(client.id, SocketOption::NoDelay(true)).unwrap();
    w.run(100);
    w.b.host.take_events(server.user);
    for round in 0..3 {
        w.a.write(&client, b"some");
        w.a.turn();
        w.a.now = Instant(w.a.now.0 + 2 * MS);
        w.b.now = w.a.now;
        let Node { stack, host, pool, ports, now } = &mut w.b;
        let budget = Budget { tx_packets: 0, ..Budget::default() };
        stack.turn(*now, host, ports, pool, budget);
        assert_eq!(w.b.host.take_events(server.user), [SocketEvent::Readable], "{round}");
        assert_eq!(w.b.read(&server), b"some");
    }
}
