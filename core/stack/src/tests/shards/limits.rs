//! Limits between shards, each reached.

use super::hosts::Hosts;
use crate::limits::{CHANGES_UNSEEN_MAX, MAIL_MAX};
use crate::{BindOptions, Budget, DropReason, Family, SocketKind, StackConfig};

/// Turns one shard; returns whom it has mail for.
fn turn(w: &mut Hosts, side: usize, shard: usize) -> u16 {
    let node = &mut w.sides[side][shard];
    let (now, budget) = (node.now, Budget::default());
    node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget).mail
}

#[test]
fn a_shard_that_does_not_keep_up_loses_packets_and_they_are_counted() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    let server = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    w.bind(server, "127.0.0.1:53", BindOptions::default()).expect("bind");
    let client = w.open_in(0, 0, SocketKind::Datagram, Family::V4);
    let mut woken = 0;
    for _ in 0..MAIL_MAX + 10 {
        w.send_to(client, Some("127.0.0.1:53"), b"x").expect("sent");
        woken |= turn(w, 0, 0);
    }
    assert_eq!(woken, 1 << 1, "it is to be woken");
    assert_eq!(w.drops(0, DropReason::ShardFull), 10);
    w.settle();
    assert_eq!(w.datagrams(server).len(), MAIL_MAX as usize);
    // From now on there is room again.
    w.send_to(client, Some("127.0.0.1:53"), b"x").expect("sent");
    w.settle();
    assert_eq!(w.datagrams(server).len(), 1);
}

/// A shard without packets sleeps while listeners come and go elsewhere.
#[test]
fn a_shard_that_sleeps_is_woken_when_it_has_much_to_learn() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    w.settle();
    let mut changes = 0;
    while turn(w, 0, 0) == 0 {
        let listener = w.open_in(0, 0, SocketKind::Stream, Family::V4);
        w.bind(listener, "127.0.0.1:80", BindOptions::default()).expect("bind");
        w.node(listener).stack.listen(listener.id, 1).expect("listen");
        w.close(listener);
        changes += 2;
    }
    assert_eq!(changes, CHANGES_UNSEEN_MAX);
    turn(w, 0, 1);
    assert_eq!(turn(w, 0, 0), 0, "it has seen them");
    assert_eq!(w.sides[0][1].stack.usage().binds, 0);
}
