//! Tests of wake-ups: a shard sleeps until its next deadline, and must be woken for work from other
//! shards.

use std::sync::{Arc, Mutex, OnceLock};

use towpath_wire::ndp::{Message, Preference, RouterAdvert};
use towpath_wire::{Prefix, addr};

use super::frames::{STRANGER, discovery, gratuitous, questions};
use super::hosts::{Hosts, mac};
use crate::shards::Common;
use crate::{
    Budget, Family, IfaceId, ReceiverChange, ReceiverWatch, ShardId, SocketKind, StackConfig,
};

/// Turns a shard of host 0. Returns the shards that got mail, as a bit set.
fn turn(w: &mut Hosts, shard: usize) -> u16 {
    let node = &mut w.sides[0][shard];
    let (now, budget) = (node.now, Budget::default());
    node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget).mail
}

/// Counts the changes that shard 1 can see when a receiver is opened or closed.
#[derive(Debug, Default)]
struct Visible {
    common: OnceLock<Arc<Common>>,
    at_open: Mutex<Vec<usize>>,
    at_close: Mutex<Vec<usize>>,
}

impl ReceiverWatch for Visible {
    fn on_change(&self, change: &ReceiverChange) {
        let Some(common) = self.common.get() else { return };
        let changes = common.changes(ShardId(1), u64::MAX).unwrap_or_default();
        let list = if change.takes.is_some() { &self.at_open } else { &self.at_close };
        list.lock().expect("one thread").push(changes.len());
    }
}

/// Clients can use a published port as soon as the watch reports the listener. Another shard may
/// receive their packets, and would refuse them if it did not know the listener.
#[test]
fn peer_shards_know_a_listener_before_its_port_opens_and_until_it_closes() {
    let watch = Arc::new(Visible::default());
    let config = StackConfig { receivers: Some(watch.clone()), ..StackConfig::default() };
    let w = &mut Hosts::new(2, 1, config);
    let member = w.sides[0][0].stack.shards.member.as_ref().expect("one of two");
    watch.common.set(Arc::clone(&member.common)).expect("unset");
    let sock = w.open_in(0, 0, SocketKind::Stream, Family::V4);
    let addr = std::net::SocketAddr::from(([0, 0, 0, 0], 81));
    w.node(sock).stack.bind(sock.id, addr, crate::BindOptions::PLAIN).expect("free");
    w.node(sock).stack.listen(sock.id, 1).expect("listen");
    w.close(sock);
    assert_eq!(*watch.at_open.lock().expect("one thread"), [1], "announced, then opened");
    assert_eq!(*watch.at_close.lock().expect("one thread"), [0], "closed, then withdrawn");
}

/// The following changes are not sent through a ring. A shard detects them by `has_mail` before it
/// sleeps, and handles them in its next turn.
#[test]
fn a_shard_that_is_about_to_sleep_sees_what_has_changed() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(10_000);
    let has_mail = |w: &Hosts, shard: usize| w.sides[0][shard].stack.has_mail();
    assert!(!has_mail(w, 0) && !has_mail(w, 1));

    // A program of shard 1 joins a group, which the first shard has to report.
    let sock = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    let now = w.now();
    let node = w.node(sock);
    let group = [239, 1, 2, 3].into();
    node.stack.join_group(now, sock.id, group, Some(IfaceId(1)), None).expect("joined");
    assert!(has_mail(w, 0));
    assert_eq!(turn(w, 1), 0b01);
    turn(w, 0);
    w.settle();
    assert!(!has_mail(w, 0) && !has_mail(w, 1));

    // Connections of shard 1 may wait for the device of the old route.
    w.sides[0][0].stack.net.add_route(Prefix::ALL_V4, None, IfaceId(1), 1);
    assert!(has_mail(w, 0) && has_mail(w, 1));
    assert_eq!(turn(w, 0), 0b10);
    turn(w, 1);
    assert!(!has_mail(w, 0) && !has_mail(w, 1));
}

/// The only event is the end of a router's lifetime.
#[test]
fn a_route_that_ends_by_time_alone_ends_in_each_shard() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), true);
    w.run(10_000);
    let advert = RouterAdvert {
        hop_limit: 64,
        managed: false,
        other: false,
        preference: Preference::Medium,
        lifetime_s: 100,
        reachable_ms: 0,
        retrans_ms: 0,
        source_ll: Some(STRANGER),
        mtu: None,
    };
    let message = Message::RouterAdvert(advert);
    w.inject_at(0, 0, &discovery("fe80::99", addr::ALL_NODES, &message, &[]));
    w.run(20_000);
    let far = "2001:db8::1".parse().expect("an address");
    let routed = |w: &mut Hosts, shard: usize| {
        let node = &mut w.sides[0][shard];
        node.stack.net.route(node.now, None, far, None).is_ok()
    };
    assert!(routed(w, 0) && routed(w, 1));
    let end = w.sides[0][0].stack.next_timeout().expect("a lifetime");
    w.sides.iter_mut().flatten().for_each(|node| node.now = end);
    assert_eq!(turn(w, 0), 0b10, "the other shard is woken");
    assert!(!routed(w, 0));
    turn(w, 1);
    assert!(!routed(w, 1));
}

/// Any host may send such frames, at any rate, about a neighbour that all shards use. Frames
/// without changes wake no shard, and a renewed use wakes only the first one, which answers.
#[test]
fn what_is_not_new_wakes_no_other_shard() {
    let w = &mut Hosts::ethernet(8, 1, StackConfig::default(), false);
    w.run(3000);
    let clients: Vec<_> =
        (0..8).map(|shard| w.open_in(0, shard, SocketKind::Datagram, Family::V4)).collect();
    for client in &clients {
        w.send_to(*client, Some("10.0.0.2:53"), b"x").expect("sent");
    }
    w.run(1000);
    for _ in 0..10 {
        w.inject_at(0, 0, &gratuitous("10.0.0.2", mac(1)));
        assert_eq!(turn(w, 0), 0);
    }
    w.inject_at(0, 0, &gratuitous("10.0.0.2", STRANGER));
    assert_eq!(turn(w, 0), 0b1111_1110, "it moved");
    w.run(1000);
    w.send_to(clients[3], Some("10.0.0.2:53"), b"x").expect("sent");
    let woken: Vec<_> = [3, 0, 3].map(|shard| turn(w, shard)).into();
    assert_eq!(woken, [0b1, 0b1000, 0]);
}

/// A message to another owner is sent at the end of the turn, together with messages for control.
#[test]
fn a_notice_leaves_with_the_turn_that_tells_an_owner_something() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(3000);
    let sock = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    w.send_to(sock, Some("10.0.0.2:53"), b"x").expect("sent");
    w.node(sock).stack.tell_owner(ShardId::FIRST, [0; 3]);
    assert_eq!(turn(w, 1), 0b1);
    assert!(!w.sides[0][1].stack.has_mail());
    w.take_seen();
    turn(w, 0);
    assert_eq!(questions(w, "10.0.0.2").len(), 1);
}
