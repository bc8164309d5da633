//! Tests that a host is in a group as long as a socket of any shard is, and reports the group once.

use std::net::IpAddr;

use super::hosts::{Hosts, Sock, for_each_ethernet, for_each_link};
use crate::net::limits::GROUPS_MAX;
use crate::{BindOptions, DropReason, Family, IfaceId, OptionError, SocketKind, StackConfig};

const ETH: Option<IfaceId> = Some(IfaceId(1));
const GROUP: [u8; 4] = [239, 1, 2, 3];

fn group() -> IpAddr {
    GROUP.into()
}

/// Creates a socket in each shard of host 0, all on the same port.
fn members(w: &mut Hosts) -> Vec<Sock> {
    let options = BindOptions { reuse_addr: true, ..Default::default() };
    let shards = 0..w.count();
    let member = |shard| {
        let sock = w.open_in(0, shard, SocketKind::Datagram, Family::V4);
        w.bind(sock, "0.0.0.0:5353", options).expect("bind");
        sock
    };
    shards.map(member).collect()
}

fn join(w: &mut Hosts, sock: Sock, group: IpAddr, from: Option<IpAddr>) -> Result<(), OptionError> {
    let now = w.now();
    w.node(sock).stack.join_group(now, sock.id, group, ETH, from)
}

fn leave(w: &mut Hosts, sock: Sock) {
    let now = w.now();
    w.node(sock).stack.leave_group(now, sock.id, group(), ETH, None).expect("a member");
}

/// Sends a datagram from host `side`. Returns the number of datagrams that each member received.
fn heard(w: &mut Hosts, members: &[Sock], side: usize) -> Vec<usize> {
    let sender = w.open(side, SocketKind::Datagram, Family::V4);
    w.send_to(sender, Some("239.1.2.3:5353"), b"to all").expect("sent");
    w.run(10);
    w.close(sender);
    members.iter().map(|member| w.datagrams(*member).len()).collect()
}

/// Returns the IGMPv3 records about the group since the last call: types and sources, in order.
fn reports(w: &mut Hosts) -> Vec<(u8, Vec<[u8; 4]>)> {
    let frames = w.take_seen();
    let reports = frames.iter().filter_map(|frame| {
        // Reports to 224.0.0.22 have an IP header with an option, and one record.
        let record = frame.get(14 + 24 + 8..)?;
        let is_report = frame[23] == 2 && frame[30..34] == [224, 0, 0, 22];
        if !is_report || record[4..8] != GROUP {
            return None;
        }
        let count = usize::from(u16::from_be_bytes([record[2], record[3]]));
        let sources = record[8..].as_chunks::<4>().0;
        Some((record[0], sources[..count].to_vec()))
    });
    reports.collect()
}

#[test]
fn a_socket_of_any_shard_makes_the_host_a_member() {
    for_each_link(|w| {
        let members = members(w);
        let n = members.len();
        assert_eq!(heard(w, &members, 1), vec![0; n]);
        assert!(w.drops(0, DropReason::NotJoined) > 0);
        for member in &members {
            join(w, *member, group(), None).expect("joined");
        }
        // Joins take effect before the next turn, for datagrams of another host and of this one.
        assert_eq!(heard(w, &members, 0), vec![1; n]);
        assert_eq!(heard(w, &members, 1), vec![1; n]);
        for member in &members[1..] {
            leave(w, *member);
        }
        assert_eq!(heard(w, &members, 1)[0], 1);
        w.close(members[0]);
        let before = w.drops(0, DropReason::NotJoined);
        assert_eq!(heard(w, &members[1..], 1), vec![0; n - 1]);
        assert!(w.drops(0, DropReason::NotJoined) > before);
        members[1..].iter().for_each(|member| w.close(*member));
        w.assert_ends_empty();
    });
}

#[test]
fn joins_are_reported_once_by_the_host() {
    const TO_INCLUDE: u8 = 3;
    const TO_EXCLUDE: u8 = 4;
    const ALLOW_NEW: u8 = 5;
    for_each_ethernet(|w| {
        let members = members(w);
        for member in &members {
            join(w, *member, group(), None).expect("joined");
        }
        w.run(3000);
        assert_eq!(reports(w), vec![(TO_EXCLUDE, vec![]); 2]);
        for member in &members[1..] {
            leave(w, *member);
        }
        w.run(3000);
        assert_eq!(reports(w), []);
        leave(w, members[0]);
        w.run(3000);
        assert_eq!(reports(w), vec![(TO_INCLUDE, vec![]); 2]);
        // Each member joins another source, and the host requests all of them.
        for (member, n) in members.iter().zip(1..) {
            join(w, *member, group(), Some([10, 0, 0, 100 + n].into())).expect("joined");
        }
        w.run(3000);
        let mut told: Vec<_> = reports(w);
        assert!(told.iter().all(|(kind, _)| *kind == ALLOW_NEW));
        told.sort();
        let wanted = (1..=members.len() as u8).map(|n| vec![[10, 0, 0, 100 + n]]);
        let twice: Vec<_> = wanted.flat_map(|sources| [sources.clone(), sources]).collect();
        assert_eq!(told.into_iter().map(|(_, sources)| sources).collect::<Vec<_>>(), twice);
    });
}

#[test]
fn the_limit_is_the_hosts_whichever_shards_join() {
    let w = &mut Hosts::new(4, 1, StackConfig::default());
    let nth = |n: usize| IpAddr::from([239, 9, (n >> 8) as u8, n as u8]);
    for n in 0..GROUPS_MAX {
        let sock = w.open_in(0, n % 4, SocketKind::Datagram, Family::V4);
        assert_eq!(join(w, sock, nth(n), None), Ok(()));
    }
    for shard in 0..4 {
        let sock = w.open_in(0, shard, SocketKind::Datagram, Family::V4);
        assert_eq!(join(w, sock, nth(GROUPS_MAX), None), Err(OptionError::TooMany));
        assert_eq!(join(w, sock, nth(shard), None), Ok(()), "others are in it");
    }
}

/// The first shard, which sends the reports, sleeps and has no own work.
#[test]
fn a_join_elsewhere_wakes_the_first_shard() {
    let w = &mut Hosts::ethernet(2, 1, StackConfig::default(), false);
    w.run(10_000);
    w.take_seen();
    let sock = w.open_in(0, 1, SocketKind::Datagram, Family::V4);
    join(w, sock, group(), None).expect("joined");
    let node = &mut w.sides[0][1];
    assert_eq!(node.stack.next_timeout(), Some(crate::Instant::ZERO), "it has to say so");
    let (now, budget) = (node.now, Default::default());
    let turn = node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget);
    assert_eq!(turn.mail, 1);
    assert!(w.sides[0][0].stack.next_timeout() <= Some(now));
    w.sides[0][0].turn();
    assert_eq!(reports(w).len(), 1);
}
