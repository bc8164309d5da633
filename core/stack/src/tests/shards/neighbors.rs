//! Tests that each shard reaches neighbours, and that a neighbour is solicited once for all shards.

use towpath_wire::Prefix;

use super::frames::{STRANGER, answer, gratuitous, questions, receivers};
use super::hosts::{Hosts, Sock, for_each_ethernet, mac};
use crate::net::NeighborState;
use crate::{BindOptions, DropReason, Family, IfaceId, SocketError, SocketEvent, SocketKind};

/// Creates a datagram socket in each shard of host 0.
fn clients(w: &mut Hosts, family: Family) -> Vec<Sock> {
    let shards = 0..w.count();
    shards.map(|shard| w.open_in(0, shard, SocketKind::Datagram, family)).collect()
}

fn server(w: &mut Hosts, addr: &str) -> Sock {
    w.bound(1, SocketKind::Datagram, addr, BindOptions::default())
}

fn send_all(w: &mut Hosts, clients: &[Sock], to: &str) {
    for client in clients {
        w.send_to(*client, Some(to), b"x").expect("sent");
    }
}

/// Returns the state of a neighbour at host 0, which must be equal in all shards.
fn state(w: &Hosts, addr: &str) -> Option<NeighborState> {
    let addr: std::net::IpAddr = addr.parse().expect("an address");
    let states = w.sides[0].iter().map(|node| {
        let mut neighbors = node.stack.net.neighbors();
        neighbors.find(|neighbor| neighbor.addr == addr).map(|neighbor| neighbor.state)
    });
    let mut states: Vec<_> = states.collect();
    states.dedup();
    assert_eq!(states.len(), 1);
    states[0]
}

#[test]
fn each_shard_reaches_a_neighbour_which_is_asked_for_once() {
    for_each_ethernet(|w| {
        for (addr, to) in [("10.0.0.2", "10.0.0.2:53"), ("fd00::2", "[fd00::2]:53")] {
            let family = if addr.contains(':') { Family::V6 } else { Family::V4 };
            let (server, clients) = (server(w, to), clients(w, family));
            send_all(w, &clients, to);
            w.run(20);
            assert_eq!(w.datagrams(server).len(), clients.len());
            assert_eq!(questions(w, addr).len(), 1, "of {} shards", clients.len());
            assert_eq!(state(w, addr), Some(NeighborState::Reachable));
            // All shards know the neighbour now, so their first packets need not wait.
            send_all(w, &clients, to);
            w.run(1);
            assert_eq!(w.datagrams(server).len(), clients.len());
            assert_eq!(questions(w, addr), []);
        }
        assert_eq!(w.sides[0].iter().map(|node| node.stack.net.waiting()).sum::<usize>(), 0);
    });
}

#[test]
fn one_that_does_not_answer_fails_connects_of_each_shard_after_three_questions() {
    for_each_ethernet(|w| {
        for (addr, to) in [("10.0.0.9", "10.0.0.9:80"), ("fd00::9", "[fd00::9]:80")] {
            w.take_seen();
            let family = if addr.contains(':') { Family::V6 } else { Family::V4 };
            let ends: Vec<_> = (0..w.count())
                .map(|shard| {
                    let sock = w.open_in(0, shard, SocketKind::Stream, family);
                    w.connect_sock(sock, to).expect("connect")
                })
                .collect();
            w.run(2990);
            assert_eq!(questions(w, addr).len(), 3);
            assert!(ends.iter().all(|end| w.events(end.sock).is_empty()));
            w.run(20);
            for end in &ends {
                let failed = [SocketEvent::Error(SocketError::HostUnreachable)];
                assert_eq!(w.events(end.sock), failed, "shard {}", end.sock.shard);
                w.close(end.sock);
            }
            assert_eq!(state(w, addr), None);
            assert_eq!(questions(w, addr), []);
        }
        let control = w.sides[0].iter().map(|node| node.stack.net.counters().control);
        assert_eq!(control.map(|counters| counters.neighbors_failed).sum::<u64>(), 2);
        assert!(w.drops(0, DropReason::NeighborUnreachable) >= 2 * w.count() as u64);
        w.assert_ends_empty();
    });
}

/// Progress of a connection in any shard confirms its neighbour every second, so no solicitation is
/// needed.
#[test]
fn what_connections_hear_spares_questions() {
    for_each_ethernet(|w| {
        let listener = w.listen(1, "10.0.0.2:80", 64);
        let sock = w.open_in(0, w.count() - 1, SocketKind::Stream, Family::V4);
        let end = w.connect_sock(sock, "10.0.0.2:80").expect("connect");
        w.wait(1000, "accept", |w| w.queued(listener) == 1);
        w.take_seen();
        for _ in 0..120 {
            w.write(&end, b"x");
            w.run(1000);
        }
        assert_eq!(questions(w, "10.0.0.2"), []);
        assert_eq!(state(w, "10.0.0.2"), Some(NeighborState::Reachable));
    });
}

#[test]
fn one_in_use_is_asked_whether_it_is_still_there_and_forgotten_if_not() {
    for_each_ethernet(|w| {
        let (server, clients) = (server(w, "10.0.0.2:53"), clients(w, Family::V4));
        send_all(w, &clients, "10.0.0.2:53");
        w.run(50_000);
        questions(w, "10.0.0.2");
        // All shards use the neighbour after its reachable time. A single report leads to a single
        // solicitation.
        send_all(w, &clients, "10.0.0.2:53");
        w.run(6000);
        assert_eq!(questions(w, "10.0.0.2"), [mac(1)]);
        assert_eq!(state(w, "10.0.0.2"), Some(NeighborState::Reachable));

        w.run(50_000);
        w.cut(true);
        w.datagrams(server);
        questions(w, "10.0.0.2");
        send_all(w, &clients, "10.0.0.2:53");
        w.run(4900);
        assert_eq!(state(w, "10.0.0.2"), Some(NeighborState::Delay));
        w.run(4000);
        assert_eq!(questions(w, "10.0.0.2"), [mac(1); 3]);
        assert_eq!(state(w, "10.0.0.2"), None);
        assert!(w.datagrams(server).is_empty());
        // Every shard has removed the neighbour, which is solicited again and found.
        w.cut(false);
        send_all(w, &clients, "10.0.0.2:53");
        w.run(10);
        assert_eq!(w.datagrams(server).len(), clients.len());
    });
}

#[test]
fn one_that_moves_is_followed_by_each_shard() {
    for_each_ethernet(|w| {
        let (_server, clients) = (server(w, "10.0.0.2:53"), clients(w, Family::V4));
        send_all(w, &clients, "10.0.0.2:53");
        w.run(20);
        assert!(receivers(w).iter().all(|to| *to == mac(1)));
        w.inject(0, &gratuitous("10.0.0.2", STRANGER));
        w.run(1);
        send_all(w, &clients, "10.0.0.2:53");
        w.run(1);
        assert_eq!(receivers(w), vec![STRANGER; clients.len()]);
    });
}

/// Any shard that receives a ping answers it, whether it has sent packets before or not.
#[test]
fn pings_are_answered_by_each_shard() {
    for_each_ethernet(|w| {
        for n in 0..8u8 {
            let ping = w.open(0, SocketKind::Echo, Family::V4);
            w.send_to(ping, Some("10.0.0.2:0"), &[8, 0, 0, 0, 0, 0, 0, n]).expect("sent");
            w.run(20);
            assert_eq!(w.datagrams(ping).len(), 1);
            w.close(ping);
        }
    });
}

/// The preferred router does not answer. Each shard uses the second router until any shard receives
/// an answer of the preferred one, which packets probe once a minute.
#[test]
fn a_router_that_does_not_answer_is_passed_over_by_each_shard() {
    for_each_ethernet(|w| {
        let (dead, good) = ([10, 0, 0, 9].into(), [10, 0, 0, 2].into());
        let net = &mut w.sides[0][0].stack.net;
        assert!(net.add_route(Prefix::ALL_V4, Some(dead), IfaceId(1), 1));
        assert!(net.add_route(Prefix::ALL_V4, Some(good), IfaceId(1), 2));
        let clients = clients(w, Family::V4);
        send_all(w, &clients, "192.0.2.1:9");
        w.run(4000);
        assert_eq!(questions(w, "10.0.0.9").len(), 3);
        // New flows use the second router without waiting.
        for (shard, client) in clients.iter().enumerate() {
            w.send_to(*client, Some("192.0.2.1:9"), b"x").expect("sent");
            w.run(10);
            assert_eq!(receivers(w), [mac(1)], "shard {shard}");
        }
        w.run(60_000);
        send_all(w, &clients, "192.0.2.1:9");
        send_all(w, &clients, "192.0.2.1:9");
        w.run(500);
        assert_eq!(questions(w, "10.0.0.9").len(), 1);
        w.inject(0, &answer("10.0.0.9", STRANGER));
        w.run(1);
        w.take_seen();
        send_all(w, &clients, "192.0.2.1:9");
        w.run(10);
        assert_eq!(receivers(w), vec![STRANGER; clients.len()]);
    });
}
