//! Tests of UDP and echo sockets in several shards.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::hosts::{Hosts, Sock, for_each_link};
use crate::{BindOptions, DropReason, Family, SocketError, SocketEvent, SocketKind, SocketOption};

const PLAIN: BindOptions = BindOptions::PLAIN;
const ADDR: BindOptions = BindOptions { reuse_addr: true, ..PLAIN };
const PORT: BindOptions = BindOptions { reuse_port: true, ..PLAIN };

fn bound(w: &mut Hosts, side: usize, addr: &str, options: BindOptions) -> Sock {
    w.bound(side, SocketKind::Datagram, addr, options)
}

fn connect(w: &mut Hosts, sock: Sock, remote: &str) {
    let now = w.now();
    w.node(sock).stack.connect_datagram(now, sock.id, remote.parse().unwrap()).expect("connect");
}

fn local(w: &mut Hosts, sock: Sock) -> SocketAddr {
    w.node(sock).info(sock.id).and_then(|info| info.local).expect("bound")
}

/// Returns the payloads that a socket received.
fn got(w: &mut Hosts, sock: Sock) -> Vec<Vec<u8>> {
    w.datagrams(sock).into_iter().map(|(_, bytes)| bytes).collect()
}

/// Sorts payloads, because packets may overtake each other on their ways through the shards.
fn sorted(mut bytes: Vec<Vec<u8>>) -> Vec<u8> {
    bytes.sort();
    bytes.concat()
}

#[test]
fn questions_and_answers_of_all_shards() {
    for_each_link(|w| {
        for (side, address, remote) in [
            (1, "0.0.0.0:53", "10.0.0.2:53"),
            (1, "[fd00::2]:53", "[fd00::2]:53"),
            (0, "127.0.0.1:53", "127.0.0.1:53"),
        ] {
            let server = bound(w, side, address, PLAIN);
            let family = if remote.starts_with('[') { Family::V6 } else { Family::V4 };
            let clients: Vec<Sock> =
                (0..8).map(|_| w.open(0, SocketKind::Datagram, family)).collect();
            for (n, client) in clients.iter().enumerate() {
                // Every second socket is connected.
                let to = match n % 2 {
                    0 => Some(remote),
                    _ => {
                        connect(w, *client, remote);
                        None
                    }
                };
                w.send_to(*client, to, &[n as u8]).expect("sent");
            }
            w.run(10);
            let asked = w.datagrams(server);
            assert_eq!(asked.len(), clients.len());
            for (from, bytes) in asked {
                w.send_to(server, Some(&from.to_string()), &[bytes[0] + 100]).expect("sent");
            }
            w.run(10);
            for (n, client) in clients.iter().enumerate() {
                assert_eq!(got(w, *client), [[n as u8 + 100]]);
                w.close(*client);
            }
            w.close(server);
        }
        w.assert_ends_empty();
    });
}

#[test]
fn nobody_is_there() {
    for_each_link(|w| {
        let client = w.open(0, SocketKind::Datagram, Family::V4);
        connect(w, client, "10.0.0.2:53");
        w.send_to(client, None, b"?").expect("sent");
        w.run(10);
        assert_eq!(w.events(client), [SocketEvent::Error(SocketError::PortUnreachable)]);
        assert_eq!(w.drops(1, DropReason::UdpNoSocket), 1);
        w.node(client).stack.set_option(client.id, SocketOption::Broadcast(true)).unwrap();
        w.send_to(client, Some("10.0.0.255:53"), b"?").expect("sent");
        w.run(10);
        assert_eq!(w.drops(1, DropReason::UdpNoSocket), 2);
        w.close(client);
        w.assert_ends_empty();
    });
}

/// Packets of a sender always reach the same member, and every member gets some senders.
#[test]
fn members_of_a_group_share_the_senders() {
    for_each_link(|w| {
        let members: Vec<Sock> = (0..8).map(|_| bound(w, 1, "0.0.0.0:53", PORT)).collect();
        let senders: Vec<Sock> =
            (0..64).map(|_| w.open(0, SocketKind::Datagram, Family::V4)).collect();
        let mut met = BTreeMap::new();
        for _ in 0..3 {
            for sender in &senders {
                w.send_to(*sender, Some("10.0.0.2:53"), b"x").expect("sent");
            }
            w.run(10);
            let mut count = 0;
            for (n, member) in members.iter().enumerate() {
                for (from, _) in w.datagrams(*member) {
                    assert_eq!(*met.entry(from).or_insert(n), n, "{from} met another");
                    count += 1;
                }
            }
            assert_eq!(count, senders.len());
        }
        let share = |n| met.values().filter(|member| **member == n).count();
        assert!((0..members.len()).all(|n| share(n) >= 1), "{met:?}");
        members.into_iter().chain(senders).for_each(|sock| w.close(sock));
        w.assert_ends_empty();
    });
}

/// Sockets share a port by SO_REUSEADDR. The newest receives, unless a socket is connected to the
/// sender or bound to the address. Datagrams of a closed socket go to the next one.
#[test]
fn who_takes_a_datagram_is_as_with_one_shard() {
    for_each_link(|w| {
        let sender = bound(w, 0, "10.0.0.1:1000", PLAIN);
        let stranger = bound(w, 0, "10.0.0.1:1001", PLAIN);
        let old = bound(w, 1, "0.0.0.0:53", ADDR);
        let new = bound(w, 1, "0.0.0.0:53", ADDR);
        let peer = bound(w, 1, "0.0.0.0:53", ADDR);
        connect(w, peer, "10.0.0.1:1000");
        let takers = |w: &mut Hosts| {
            w.send_to(sender, Some("10.0.0.2:53"), b"x").expect("sent");
            w.send_to(stranger, Some("10.0.0.2:53"), b"y").expect("sent");
            w.run(10);
            [old, new, peer].map(|sock| sorted(got(w, sock)))
        };
        assert_eq!(takers(w), [&b""[..], b"y", b"x"]);
        w.node(peer).stack.disconnect(peer.id);
        assert_eq!(takers(w), [&b""[..], b"", b"xy"], "it is the newest now");
        w.close(peer);
        assert_eq!(takers(w)[..2], [&b""[..], b"xy"]);
        let exact = bound(w, 1, "10.0.0.2:53", ADDR);
        assert_eq!(takers(w), [b""; 3]);
        assert_eq!(sorted(got(w, exact)), b"xy");
        w.close(exact);
        w.close(new);
        assert_eq!(takers(w)[0], b"xy");
        [old, sender, stranger].into_iter().for_each(|sock| w.close(sock));
        w.assert_ends_empty();
    });
}

#[test]
fn every_member_of_a_multicast_group_has_a_copy() {
    for_each_link(|w| {
        let group = "239.1.2.3".parse().unwrap();
        let members: Vec<Sock> = [0, 0, 0, 1, 1, 1]
            .into_iter()
            .map(|side| {
                let sock = bound(w, side, "0.0.0.0:5353", ADDR);
                let now = w.now();
                let iface = Some(crate::IfaceId(1));
                w.node(sock).stack.join_group(now, sock.id, group, iface, None).expect("joined");
                sock
            })
            .collect();
        let sender = w.open(0, SocketKind::Datagram, Family::V4);
        w.run(100);
        w.send_to(sender, Some("239.1.2.3:5353"), b"to all").expect("sent");
        w.run(10);
        for member in &members {
            assert_eq!(got(w, *member), [b"to all"]);
        }
        let broadcasts = bound(w, 1, "0.0.0.0:5353", ADDR);
        w.node(sender).stack.set_option(sender.id, SocketOption::Broadcast(true)).unwrap();
        w.send_to(sender, Some("10.0.0.255:5353"), b"to the link").expect("sent");
        w.run(10);
        for sock in members.iter().chain([&broadcasts]) {
            assert_eq!(got(w, *sock), [b"to the link"]);
        }
        members.into_iter().chain([sender, broadcasts]).for_each(|sock| w.close(sock));
        w.assert_ends_empty();
    });
}

#[test]
fn fragments_come_together() {
    for_each_link(|w| {
        let server = bound(w, 1, "0.0.0.0:53", PLAIN);
        let family = Family::V4;
        let clients: Vec<Sock> = (0..6).map(|_| w.open(0, SocketKind::Datagram, family)).collect();
        let datagram = |n: usize| vec![n as u8; 4000 + n];
        for (n, client) in clients.iter().enumerate() {
            w.send_to(*client, Some("10.0.0.2:53"), &datagram(n)).expect("sent");
        }
        w.run(10);
        let mut all = got(w, server);
        all.sort();
        assert_eq!(all, (0..6).map(datagram).collect::<Vec<_>>());
        clients.into_iter().chain([server]).for_each(|sock| w.close(sock));
        w.assert_ends_empty();
    });
}

#[test]
fn pings_are_answered() {
    for_each_link(|w| {
        for (family, remote, kind) in
            [(Family::V4, "10.0.0.2:0", 8), (Family::V6, "[fd00::2]:0", 128)]
        {
            let pings: Vec<Sock> = (0..6).map(|_| w.open(0, SocketKind::Echo, family)).collect();
            for (n, ping) in pings.iter().enumerate() {
                let request = [kind, 0, 0, 0, 0, 0, 0, n as u8, 1, 2, 3];
                w.send_to(*ping, Some(remote), &request).expect("sent");
            }
            w.run(10);
            for (n, ping) in pings.iter().enumerate() {
                let ident = local(w, *ping).port();
                let answers = got(w, *ping);
                assert_eq!(answers.len(), 1);
                assert_eq!(answers[0][4..8], [ident.to_be_bytes(), [0, n as u8]].concat());
                w.close(*ping);
            }
        }
        w.assert_ends_empty();
    });
}
