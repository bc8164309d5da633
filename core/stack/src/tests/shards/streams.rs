//! Tests of connections in several shards.

use towpath_tcp::Instant;

use crate::tests::world::USERS_OF_A_SHARD;

use super::hosts::{COUNTS, HandshakeEnd, Hosts, Sock, for_each_count, for_each_link};
use crate::{
    BindError, BindOptions, ConnectError, DropReason, Family, ShardId, SocketError, SocketEvent,
    SocketKind, StackConfig,
};

const PLAIN: BindOptions = BindOptions::PLAIN;
const ADDR: BindOptions = BindOptions { reuse_addr: true, ..PLAIN };
const PORT: BindOptions = BindOptions { reuse_port: true, ..PLAIN };

fn accept(w: &mut Hosts, listener: Sock) -> HandshakeEnd {
    w.wait(10_000, "accept", |w| w.queued(listener) > 0);
    w.accept(listener).expect("queued")
}

/// Transfers bytes in both directions.
fn talk(w: &mut Hosts, client: &HandshakeEnd, server: &HandshakeEnd) {
    for (from, to) in [(client, server), (server, client)] {
        let bytes: Vec<u8> = (0..40_000u32).map(|n| n as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        w.wait(10_000, "transfer", |w| {
            sent += w.write(from, &bytes[sent..]);
            got.extend(w.read(to));
            got.len() == bytes.len()
        });
        assert!(got == bytes);
    }
}

#[test]
fn clients_of_all_shards_talk_to_servers_of_all_shards() {
    for_each_link(|w| {
        for (side, local, remote) in [
            (1, "0.0.0.0:80", "10.0.0.2:80"),
            (1, "[::]:81", "[fd00::2]:81"),
            (1, "[::]:82", "10.0.0.2:82"),
            (0, "127.0.0.1:83", "127.0.0.1:83"),
            (0, "[::]:84", "[::1]:84"),
        ] {
            let listener = w.listen(side, local, 10);
            let clients: Vec<HandshakeEnd> = (0..6).map(|_| w.connect(0, remote)).collect();
            let servers: Vec<HandshakeEnd> = (0..6).map(|_| accept(w, listener)).collect();
            for client in &clients {
                assert!(w.has(client.sock, SocketEvent::Connected));
                let local = w.node(client.sock).info(client.sock.id).expect("alive").local;
                let server = servers.iter().find(|server| Some(server.conn.remote) == local);
                talk(w, client, server.expect("its other end"));
            }
            for end in servers.iter().chain(&clients) {
                w.close(end.sock);
            }
            w.close(listener);
        }
        w.assert_ends_empty();
    });
}

/// Mail between shards is the cost that grows with their number. Established connections cause none
/// if packets arrive at their owners, as on a device with a queue per shard.
#[test]
fn shards_with_flows_of_their_own_exchange_nothing() {
    for_each_count(|w| {
        w.steer();
        let listener = w.listen(1, "10.0.0.2:80", 100);
        let clients: Vec<HandshakeEnd> = (0..16).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        let servers: Vec<HandshakeEnd> = (0..16).map(|_| accept(w, listener)).collect();
        let pairs: Vec<(&HandshakeEnd, &HandshakeEnd)> = clients
            .iter()
            .map(|client| {
                let local = w.node(client.sock).info(client.sock.id).expect("alive").local;
                let server = servers.iter().find(|server| Some(server.conn.remote) == local);
                (client, server.expect("its other end"))
            })
            .collect();
        w.run(10_000);
        let before = [0, 1].map(|side| w.exchanged(side));
        for (client, server) in pairs {
            talk(w, client, server);
        }
        assert_eq!([0, 1].map(|side| w.exchanged(side)), before, "{} shards", w.count());
    });
}

/// Programs may connect as soon as `listen` has returned, before any shard has run a turn.
#[test]
fn a_listener_is_known_at_once_and_forgotten_at_once() {
    for_each_link(|w| {
        for round in 0..4 {
            let listener = w.listen(0, "127.0.0.1:80", 10);
            let client = w.connect(0, "127.0.0.1:80");
            w.settle();
            assert!(w.has(client.sock, SocketEvent::Connected), "{round}");
            let server = accept(w, listener);
            w.close(listener);
            let refused = w.connect(0, "127.0.0.1:80");
            w.settle();
            assert!(w.has(refused.sock, SocketEvent::Error(SocketError::Refused)), "{round}");
            for sock in [client.sock, server.sock, refused.sock] {
                w.close(sock);
            }
            w.run(100);
        }
        w.assert_ends_empty();
    });
}

/// The index of a socket may be reused at once, while changes by other shards arrive.
#[test]
fn listeners_come_and_go_in_all_shards_at_once() {
    for_each_count(|w| {
        let mut listeners: Vec<Sock> = Vec::new();
        for round in 0..40u16 {
            if listeners.len() > 4 {
                let at = w.dice.below(listeners.len() as u64) as usize;
                let listener = listeners.swap_remove(at);
                w.close(listener);
            }
            listeners.push(w.listen(0, &format!("127.0.0.1:{}", 100 + round), 1));
            if round % 16 == 0 {
                w.settle();
            }
        }
        listeners.drain(..).for_each(|listener| w.close(listener));
        w.assert_ends_empty();
    });
}

/// The listener's note is known in the shards that create its connections, which may hold children
/// back.
#[test]
fn children_wait_until_their_owner_offers_them() {
    for_each_count(|w| {
        w.sides[1].iter_mut().for_each(|node| node.host.keeps = Some(Vec::new()));
        let listener = w.listen(1, "10.0.0.2:80", 10);
        w.node(listener).stack.set_note(listener.id, [7; 10]);
        let clients: Vec<HandshakeEnd> = (0..12).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        w.run(500);
        let now = w.now();
        let mut servers = Vec::new();
        while let Some(server) = w.accept(listener) {
            servers.push(server);
        }
        let mut kept = 0;
        for shard in 0..w.count() {
            let children = w.sides[1][shard].host.keeps.take();
            for (n, (to, child, tag)) in children.into_iter().flatten().enumerate() {
                assert_eq!((to.user, to.note), (listener.user, [7; 10]));
                kept += 1;
                if n % 3 == 2 {
                    // The child is aborted while it is held back.
                    w.sides[1][shard].abort(child);
                    w.settle();
                    assert!(!w.sides[1][shard].stack.offer_to(now, to.name, child, tag));
                    w.node(listener).host.children.borrow_mut().remove(&!tag);
                } else {
                    assert!(w.sides[1][shard].stack.offer_to(now, to.name, child, tag));
                    w.settle();
                    servers.push(w.accept(listener).expect("it is there"));
                }
            }
        }
        assert_eq!(kept == 0, w.count() == 1);
        assert!(w.node(listener).host.children.borrow().is_empty());
        for end in servers.iter().chain(&clients) {
            w.node(end.sock).abort(end.sock.id);
        }
        w.close(listener);
        w.assert_ends_empty();
    });
}

/// Rings are read in the order of shards, which differs from the order of the offers in them.
#[test]
fn children_come_in_the_order_in_which_they_were_offered() {
    for_each_count(|w| {
        w.sides[1].iter_mut().for_each(|node| node.host.keeps = Some(Vec::new()));
        let listener = w.listen(1, "10.0.0.2:80", 100);
        let clients: Vec<HandshakeEnd> = (0..24).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        w.run(500);
        let mut servers = Vec::new();
        while let Some(server) = w.accept(listener) {
            servers.push(server);
        }
        let mut kept = Vec::new();
        for (shard, node) in w.sides[1].iter_mut().enumerate() {
            kept.extend(node.host.keeps.take().into_iter().flatten().map(|child| (shard, child)));
        }
        for at in (1..kept.len()).rev() {
            kept.swap(at, w.dice.below(at as u64 + 1) as usize);
        }
        let now = w.now();
        for (&(shard, (to, child, tag)), n) in kept.iter().zip(0..) {
            assert!(w.sides[1][shard].stack.offer_to(Instant(now.0 + n), to.name, child, tag));
        }
        // All shards publish their offers before the listener's shard reads them.
        for (shard, node) in w.sides[1].iter_mut().enumerate() {
            if shard != listener.shard {
                let budget = Default::default();
                node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget);
            }
        }
        w.settle();
        let before = servers.len();
        while let Some(server) = w.accept(listener) {
            servers.push(server);
        }
        let came = servers[before..].iter().map(|server| server.sock.user);
        assert!(came.eq(kept.iter().map(|(_, (_, _, tag))| !tag)), "{kept:?}");
        for end in servers.iter().chain(&clients) {
            w.node(end.sock).abort(end.sock.id);
        }
        w.close(listener);
        w.assert_ends_empty();
    });
}

#[test]
fn owners_hear_from_each_other_in_order() {
    for_each_count(|w| {
        let count = w.count();
        for n in 0..3000 {
            for shard in 0..count {
                let to = ShardId((n as usize % count) as u8);
                w.sides[0][shard].stack.tell_owner(to, [n, shard as u64, 7]);
            }
        }
        w.settle();
        for (shard, node) in w.sides[0].iter_mut().enumerate() {
            let told = std::mem::take(&mut node.host.told);
            for from in (0..count).filter(|from| *from != shard) {
                let its = told.iter().filter(|(shard, _)| shard.index() == from);
                let expected = (shard as u64..3000).step_by(count);
                assert!(its.map(|(_, words)| *words).eq(expected.map(|n| [n, from as u64, 7])));
            }
        }
    });
}

#[test]
fn nobody_listens() {
    for_each_link(|w| {
        let client = w.connect(0, "10.0.0.2:80");
        w.run(100);
        assert_eq!(w.events(client.sock), [SocketEvent::Error(SocketError::Refused)]);
        w.close(client.sock);
        w.assert_ends_empty();
    });
}

/// The queue never exceeds the backlog, and every client is served at the end without a reset.
#[test]
fn a_full_queue_makes_clients_wait() {
    for (backlog, clients) in [(0, 5), (2, 8)] {
        for_each_link(|w| {
            let listener = w.listen(1, "10.0.0.2:80", backlog);
            let clients: Vec<HandshakeEnd> =
                (0..clients).map(|_| w.connect(0, "10.0.0.2:80")).collect();
            w.run(3000);
            assert_eq!(w.queued(listener), backlog as usize + 1);
            let mut servers = Vec::new();
            w.wait(200_000, "all are served", |w| {
                assert!(w.queued(listener) <= backlog as usize + 1);
                while let Some(server) = w.accept(listener) {
                    servers.push(server);
                    w.settle();
                    assert!(w.queued(listener) <= backlog as usize + 1);
                }
                servers.len() == clients.len()
            });
            w.run(1000);
            for client in &clients {
                assert_eq!(w.events(client.sock), [SocketEvent::Connected]);
            }
            for end in servers.iter().chain(&clients) {
                w.close(end.sock);
            }
            w.close(listener);
            w.assert_ends_empty();
        });
    }
}

/// Children that no program has accepted are reset when the listener is closed.
#[test]
fn children_go_with_their_listener() {
    for_each_link(|w| {
        let listener = w.listen(1, "10.0.0.2:80", 2);
        let clients: Vec<HandshakeEnd> = (0..12).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        w.run(500);
        w.close(listener);
        // The owner must abort the children in the queue.
        while let Some(child) = w.accept(listener) {
            w.node(child.sock).abort(child.sock.id);
        }
        // A client whose last ACK was dropped gets the reset when it sends bytes.
        clients.iter().for_each(|client| assert_eq!(w.write(client, b"x"), 1));
        w.wait(100_000, "all have failed", |w| {
            clients.iter().all(|client| {
                w.has(client.sock, SocketEvent::Error(SocketError::Reset))
                    || w.has(client.sock, SocketEvent::Error(SocketError::Refused))
            })
        });
        clients.iter().for_each(|client| w.close(client.sock));
        for node in w.sides.iter().flatten() {
            assert!(node.host.children.borrow().is_empty(), "each is in the queue or refused");
        }
        w.assert_ends_empty();
    });
}

/// Handshakes are completed in several shards at once, for a queue with one place, so some children
/// wait. If a shard's waiting children are gone, the free place is offered to another shard.
#[test]
fn children_that_are_put_off_come_in_turn() {
    let put_off = std::cell::Cell::new(0);
    for_each_link(|w| {
        let listener = w.listen(1, "10.0.0.2:80", 0);
        let clients: Vec<HandshakeEnd> = (0..24).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        w.run(20);
        let children = w.node(listener).host.children.borrow().clone();
        put_off.set(put_off.get() + children.len());
        for (n, (user, conn)) in children.iter().enumerate() {
            if n % 2 == 0 {
                let shard = (user / USERS_OF_A_SHARD) as usize;
                w.sides[1][shard].abort(conn.id);
            }
        }
        w.settle();
        let mut servers = Vec::new();
        while let Some(server) = w.accept(listener) {
            servers.push(server);
            w.settle();
            assert!(w.queued(listener) <= 1);
        }
        assert_eq!(servers.len(), 1 + children.len() / 2);
        assert!(w.node(listener).host.children.borrow().is_empty());
        for end in servers.iter().chain(&clients) {
            w.node(end.sock).abort(end.sock.id);
        }
        w.close(listener);
        w.assert_ends_empty();
    });
    assert!(put_off.get() > 20, "{put_off:?}");
}

#[test]
fn listeners_with_reuse_port_share_the_connections() {
    for_each_link(|w| {
        let listeners: Vec<Sock> = (0..4)
            .map(|_| {
                let sock = w.bound(1, SocketKind::Stream, "0.0.0.0:80", PORT);
                w.node(sock).stack.listen(sock.id, 100).expect("listen");
                sock
            })
            .collect();
        let clients: Vec<HandshakeEnd> = (0..64).map(|_| w.connect(0, "10.0.0.2:80")).collect();
        w.run(1000);
        // In these tests, all listeners of a shard share one queue.
        let mut shards: Vec<usize> = listeners.iter().map(|listener| listener.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let queued: Vec<usize> =
            shards.iter().map(|n| w.sides[1][*n].host.accepted.len()).collect();
        assert_eq!(queued.iter().sum::<usize>(), clients.len());
        assert!(queued.iter().all(|queued| *queued >= 4), "{queued:?}");
        assert!(clients.iter().all(|client| w.has(client.sock, SocketEvent::Connected)));
    });
}

/// Binds conflict as on Linux, whatever shards the two sockets are in.
#[test]
fn binds_conflict_across_shards() {
    for_each_link(|w| {
        let rows = [
            ("0.0.0.0:80", PLAIN, false, "0.0.0.0:80", PLAIN, true),
            ("0.0.0.0:80", PLAIN, false, "10.0.0.1:80", PLAIN, true),
            ("127.0.0.1:80", PLAIN, false, "10.0.0.1:80", PLAIN, false),
            ("0.0.0.0:80", PLAIN, false, "[::]:80", PLAIN, true),
            ("0.0.0.0:80", ADDR, false, "0.0.0.0:80", ADDR, false),
            ("0.0.0.0:80", ADDR, true, "0.0.0.0:80", ADDR, true),
            ("0.0.0.0:80", PORT, true, "0.0.0.0:80", PORT, false),
            ("0.0.0.0:80", PORT, true, "0.0.0.0:80", ADDR, true),
        ];
        for (first, options, listens, second, theirs, conflict) in rows {
            let one = w.bound(0, SocketKind::Stream, first, options);
            if listens {
                w.node(one).stack.listen(one.id, 1).expect("listen");
            }
            let family = if second.starts_with('[') { Family::V6 } else { Family::V4 };
            let other = w.open(0, SocketKind::Stream, family);
            let expected = if conflict { Err(BindError::AddrInUse) } else { Ok(()) };
            assert_eq!(w.bind(other, second, theirs).map(|_| ()), expected, "{first} {second}");
            w.close(one);
            w.close(other);
            w.settle();
        }
        w.assert_ends_empty();
    });
}

/// With ten ephemeral ports, there are at most ten connections to one server, in any shards.
#[test]
fn ports_run_out_and_come_back() {
    for count in COUNTS {
        for seed in 1..=6 {
            let config = StackConfig { ephemeral: 40_000..=40_009, ..StackConfig::default() };
            let w = &mut Hosts::new(count, seed, config);
            let listener = w.listen(1, "10.0.0.2:80", 100);
            let mut clients: Vec<HandshakeEnd> =
                (0..10).map(|_| w.connect(0, "10.0.0.2:80")).collect();
            w.run(1000);
            for client in &clients {
                assert_eq!(w.events(client.sock), [SocketEvent::Connected], "{count}");
            }
            let more = w.open(0, SocketKind::Stream, Family::V4);
            assert_eq!(w.connect_sock(more, "10.0.0.2:80").err(), Some(ConnectError::NoPort));
            let gone = clients.swap_remove(3);
            w.node(gone.sock).abort(gone.sock.id);
            w.run(100);
            let client = w.connect_sock(more, "10.0.0.2:80").expect("its port is free");
            w.run(1000);
            assert!(w.has(more, SocketEvent::Connected), "{count}");
            for end in clients.iter().chain([&client]) {
                w.close(end.sock);
            }
            while let Some(server) = w.accept(listener) {
                w.close(server.sock);
            }
            w.close(listener);
            w.assert_ends_empty();
        }
    }
}

/// All ports have connections in TIME-WAIT, in any shards. After a second, every shard can reuse
/// each of them.
#[test]
fn ports_in_time_wait_come_back_to_all_shards() {
    for count in COUNTS {
        for seed in 1..=6 {
            let config = StackConfig { ephemeral: 40_000..=40_009, ..StackConfig::default() };
            let w = &mut Hosts::new(count, seed, config);
            let listener = w.listen(1, "10.0.0.2:80", 100);
            for round in 0..4 {
                let clients: Vec<HandshakeEnd> = (0..10)
                    .map(|n| {
                        // Use another shard than in the previous round.
                        let shard = (n * 7 + round) / 2 % count;
                        let sock = w.open_in(0, shard, SocketKind::Stream, Family::V4);
                        // Run no turn in between, so that shards choose their ports concurrently.
                        w.connect_sock(sock, "10.0.0.2:80").expect("a port")
                    })
                    .collect();
                w.run(1000);
                for client in &clients {
                    let events = w.events(client.sock);
                    assert_eq!(events, [SocketEvent::Connected], "{count} {seed} {round}");
                    w.close(client.sock);
                }
                w.run(100);
                while let Some(server) = w.accept(listener) {
                    w.close(server.sock);
                }
                w.run(1500);
            }
            w.close(listener);
            w.assert_ends_empty();
        }
    }
}

/// Opens a connection from a port that the program chose.
fn connect_from(w: &mut Hosts, port: u16, remote: &str) -> Result<HandshakeEnd, ConnectError> {
    let sock = w.open(0, SocketKind::Stream, Family::V4);
    w.bind(sock, &format!("0.0.0.0:{port}"), ADDR).expect("bind");
    w.connect_sock(sock, remote).inspect_err(|_| w.close(sock))
}

#[test]
fn a_program_may_choose_its_port() {
    for_each_link(|w| {
        let listener = w.listen(1, "10.0.0.2:80", 100);
        let near = w.listen(0, "127.0.0.1:80", 100);
        for port in 5000..5008 {
            let client = connect_from(w, port, "10.0.0.2:80").expect("connect");
            let server = accept(w, listener);
            assert_eq!(server.conn.remote.port(), port);
            talk(w, &client, &server);
            // The shard that owns the flow has one end of a connection of this host to itself. The
            // second end may be in another shard.
            let own = connect_from(w, port, "127.0.0.1:80").expect("connect");
            let other = accept(w, near);
            talk(w, &own, &other);
            w.close(own.sock);
            w.close(other.sock);
            // A second connection from the same port is refused: at once, or by an event if another
            // shard has to be asked.
            match connect_from(w, port, "10.0.0.2:80") {
                Err(error) => assert_eq!(error, ConnectError::AddrInUse),
                Ok(again) => {
                    w.settle();
                    let error = SocketEvent::Error(SocketError::AddrNotAvailable);
                    assert_eq!(w.events(again.sock), [error]);
                    w.close(again.sock);
                }
            }
            w.close(client.sock);
            w.close(server.sock);
            w.run(100);
        }
        w.close(listener);
        w.close(near);
        w.assert_ends_empty();
    });
}

/// The client's connection is in TIME-WAIT, and another one uses the same port, in any shard.
#[test]
fn a_port_in_time_wait_is_used_again() {
    for_each_link(|w| {
        let listener = w.listen(1, "10.0.0.2:80", 100);
        for _ in 0..5 {
            let client = connect_from(w, 5000, "10.0.0.2:80").expect("connect");
            w.wait(1000, "connect", |w| w.has(client.sock, SocketEvent::Connected));
            let server = accept(w, listener);
            talk(w, &client, &server);
            w.close(client.sock);
            w.run(50);
            w.close(server.sock);
            w.run(2000);
        }
        w.close(listener);
        w.assert_ends_empty();
    });
}

/// A router reports that the server is unreachable. The connect fails, whichever shard receives the
/// report.
#[test]
fn an_icmp_error_finds_its_connection() {
    for_each_count(|w| {
        w.take_seen();
        let client = w.connect(0, "10.0.0.9:80");
        w.run(10);
        let syn = w.take_seen().swap_remove(0);
        w.inject(0, &unreachable(&syn));
        w.run(10);
        assert_eq!(w.events(client.sock), [SocketEvent::Error(SocketError::HostUnreachable)]);
        assert_eq!(w.drops(0, DropReason::IcmpErrorStray), 0);
        w.close(client.sock);
        w.assert_ends_empty();
    });
}

/// Creates the ICMP error "host unreachable" about `quoted`, from 10.0.0.2 to 10.0.0.1.
fn unreachable(quoted: &[u8]) -> Vec<u8> {
    use towpath_wire::{IpProtocol, icmpv4, ipv4};
    let mut packet = vec![0; ipv4::HEADER_LEN + icmpv4::HEADER_LEN];
    packet.extend_from_slice(quoted);
    let header = ipv4::Header {
        tos: 0,
        total_len: packet.len() as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::ICMP,
        src: [10, 0, 0, 2].into(),
        dst: [10, 0, 0, 1].into(),
        options: ipv4::Options::EMPTY,
    };
    header.emit(&mut packet);
    let (_, body) = packet.split_at_mut(ipv4::HEADER_LEN);
    icmpv4::Message::DestUnreachable { code: 1, next_hop_mtu: 0 }.emit(body);
    icmpv4::fill_checksum(body);
    packet
}
