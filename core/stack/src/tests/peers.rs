//! Tests of datagram sockets with a peer: accepted senders, and source addresses.

use std::net::{IpAddr, SocketAddr};

use super::datagram::{bound, send};
use super::world::{Dice, World, WorldConfig};
use crate::{
    BindOptions, ConnectError, Family, IfaceId, SendError, SocketError, SocketEvent, SocketKind,
    SocketOption,
};

/// Expected results were verified on Linux 6.18.
#[test]
fn a_second_connect_keeps_the_address_that_the_first_one_chose() {
    let mut w = World::new(WorldConfig::default());
    let now = w.a.now;
    for more in ["10.0.0.11/24", "fd00::11/64"] {
        w.a.stack.net.add_address(now, IfaceId(1), more.parse().unwrap());
    }
    w.run(3000);
    let connect =
        |w: &mut World, id, to: &str| w.a.stack.connect_datagram(w.a.now, id, to.parse().unwrap());
    let local = |w: &World, id| w.a.info(id).unwrap().local.unwrap().ip();
    // A socket that connects to an own address uses this address as its source.
    for (first, second) in [("10.0.0.11", "10.0.0.2:9"), ("fd00::11", "[fd00::2]:9")] {
        let ip: IpAddr = first.parse().unwrap();
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let (id, _) = w.a.open(SocketKind::Datagram, family);
        connect(&mut w, id, &SocketAddr::new(ip, 9).to_string()).unwrap();
        connect(&mut w, id, second).unwrap();
        assert_eq!(local(&w, id), ip);
        w.keep_seen();
        send(&mut w.a, id, None, b"kept").unwrap();
        w.run(10);
        let seen = w.take_seen().into_iter().find(|packet| packet.ends_with(b"kept")).unwrap();
        let source = if ip.is_ipv4() { seen[12..16].to_vec() } else { seen[8..24].to_vec() };
        let own = match ip {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        assert_eq!(source, own);
        w.a.stack.disconnect(id);
        connect(&mut w, id, second).unwrap();
        assert_ne!(local(&w, id), ip, "a new one after a disconnect");
        w.a.close(id);
    }
    // A socket with source 127.0.0.1, chosen by a connect or a bind, cannot send to other hosts.
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    connect(&mut w, id, "127.0.0.1:9").unwrap();
    assert_eq!(connect(&mut w, id, "10.0.0.2:9"), Err(ConnectError::Invalid));
    assert_eq!(local(&w, id), IpAddr::from([127, 0, 0, 1]));
    w.a.close(id);
    let (id, _) = bound(&mut w.a, "127.0.0.1:7");
    assert_eq!(connect(&mut w, id, "10.0.0.2:9"), Err(ConnectError::Invalid));
    assert_eq!(send(&mut w.a, id, Some("10.0.0.2:9"), b"x"), Err(SendError::Invalid));
    w.a.close(id);
    // A dual-stack socket keeps an IPv4 source, and an IPv6 source is not used for IPv4.
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V6);
    connect(&mut w, id, "[::ffff:10.0.0.11]:9").unwrap();
    assert_eq!(connect(&mut w, id, "[fd00::2]:9"), Err(ConnectError::OtherFamily));
    connect(&mut w, id, "[::ffff:10.0.0.2]:9").unwrap();
    assert_eq!(local(&w, id), IpAddr::from([10, 0, 0, 11]));
    w.a.close(id);
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V6);
    connect(&mut w, id, "[fd00::2]:9").unwrap();
    connect(&mut w, id, "[::ffff:10.0.0.2]:9").unwrap();
    assert_eq!(local(&w, id), IpAddr::from([10, 0, 0, 1]));
    w.a.close(id);
    w.assert_ends_empty();
}

/// As on Linux, a socket connected to port 0 receives from every port of the peer.
#[test]
fn who_is_connected_to_port_0_hears_every_port_of_the_peer() {
    for (any, own, peer, stranger) in [
        ("0.0.0.0:9000", "10.0.0.1", "10.0.0.2", "10.0.0.12"),
        ("[::]:9000", "fd00::1", "fd00::2", "fd00::12"),
    ] {
        let mut w = World::new(WorldConfig::default());
        let stranger: IpAddr = stranger.parse().unwrap();
        let prefix = format!("{stranger}/{}", if stranger.is_ipv4() { 24 } else { 64 });
        w.b.stack.net.add_address(w.b.now, IfaceId(1), prefix.parse().unwrap());
        w.run(3000);
        let own: SocketAddr = SocketAddr::new(own.parse().unwrap(), 9000);
        let peer: IpAddr = peer.parse().unwrap();
        let connect = |w: &mut World, id, port| {
            w.a.stack.connect_datagram(w.a.now, id, SocketAddr::new(peer, port)).unwrap();
        };
        let (wide, wide_user) = bound(&mut w.a, &own.to_string());
        connect(&mut w, wide, 0);
        let (open, open_user) = bound(&mut w.a, &own.to_string());
        let (exact, exact_user) = bound(&mut w.a, &own.to_string());
        connect(&mut w, exact, 9555);
        let from = |w: &mut World, ip: IpAddr, port: u16| {
            let (id, _) = bound(&mut w.b, &SocketAddr::new(ip, port).to_string());
            send(&mut w.b, id, Some(&own.to_string()), b"x").unwrap();
            w.run(10);
            w.b.close(id);
            w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect::<Vec<_>>()
        };
        assert_eq!(from(&mut w, peer, 1), [wide_user], "{any}");
        assert_eq!(from(&mut w, peer, 9555), [exact_user], "{any}");
        assert_eq!(from(&mut w, stranger, 9555), [open_user], "{any}");
        // The socket also gets errors about its datagrams to other destinations.
        let to = SocketAddr::new(peer, 77).to_string();
        send(&mut w.a, wide, Some(&to), b"x").unwrap();
        w.run(10);
        assert!(w.a.host.has(wide_user, SocketEvent::Error(SocketError::PortUnreachable)), "{any}");
        connect(&mut w, wide, 5);
        assert_eq!(from(&mut w, peer, 1), [open_user], "{any}");
        connect(&mut w, wide, 0);
        for id in [wide, open, exact] {
            w.a.close(id);
        }
        assert_eq!(w.a.stack.datagrams.peers.any_port, 0);
        w.assert_ends_empty();
    }
}

const HERE: Option<IfaceId> = Some(IfaceId(1));
const ELSEWHERE: Option<IfaceId> = Some(IfaceId::LOOPBACK);

/// As on Linux, a look-up skips sockets that are bound to another device.
#[test]
fn who_is_connected_on_another_device_hides_nobody() {
    for (own, peer, port) in [
        ("10.0.0.1:9000", "10.0.0.2:77", 77),
        ("[fd00::1]:9000", "[fd00::2]:77", 77),
        ("10.0.0.1:9000", "10.0.0.2:77", 0),
    ] {
        let mut w = World::new(WorldConfig::default());
        w.run(3000);
        let (open, open_user) = bound(&mut w.a, own);
        let [one, two] = [0; 2].map(|_| {
            let (id, user) = bound(&mut w.a, own);
            let mut remote: SocketAddr = peer.parse().unwrap();
            remote.set_port(port);
            w.a.stack.connect_datagram(w.a.now, id, remote).unwrap();
            (id, user)
        });
        let (from, _) = bound(&mut w.b, peer);
        let mut check = |devices: [Option<IfaceId>; 2], expected| {
            for ((id, _), device) in [one, two].into_iter().zip(devices) {
                w.a.stack.set_option(id, SocketOption::Device(device)).unwrap();
            }
            send(&mut w.b, from, Some(own), b"x").unwrap();
            w.run(10);
            let users: Vec<_> = w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect();
            assert_eq!(users, [expected], "{own} {devices:?}");
        };
        check([ELSEWHERE, ELSEWHERE], open_user);
        check([ELSEWHERE, HERE], two.1);
        check([HERE, ELSEWHERE], one.1);
        check([ELSEWHERE, None], two.1);
        check([None, ELSEWHERE], one.1);
        // If both sockets match, the one that is bound to the device receives.
        check([None, HERE], two.1);
        check([HERE, None], one.1);
        // A disconnect clears SO_BINDTODEVICE.
        w.a.stack.disconnect(one.0);
        w.a.stack.set_option(two.0, SocketOption::Device(ELSEWHERE)).unwrap();
        for id in [open, one.0, two.0] {
            w.a.close(id);
        }
        w.b.close(from);
        w.assert_ends_empty();
    }
}

#[test]
fn a_ping_socket_of_another_device_hides_nobody() {
    for (own, peer, request) in
        [("10.0.0.1:7", "10.0.0.2:0", 8), ("[fd00::1]:7", "[fd00::2]:0", 128)]
    {
        let mut w = World::new(WorldConfig::default());
        w.run(3000);
        let own: SocketAddr = own.parse().unwrap();
        let family = if own.is_ipv4() { Family::V4 } else { Family::V6 };
        let [(open, open_user), (away, away_user)] = [0; 2].map(|_| {
            let (id, user) = w.a.open(SocketKind::Echo, family);
            let options = BindOptions { reuse_addr: true, ..Default::default() };
            w.a.stack.bind(id, own, options).unwrap();
            (id, user)
        });
        w.a.stack.connect_datagram(w.a.now, away, peer.parse().unwrap()).unwrap();
        for (device, expected) in [(ELSEWHERE, open_user), (HERE, away_user), (None, away_user)] {
            w.a.stack.set_option(away, SocketOption::Device(device)).unwrap();
            send(&mut w.a, open, Some(peer), &[request, 0, 0, 0, 0, 0, 0, 7]).unwrap();
            w.run(10);
            let users: Vec<_> = w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect();
            assert_eq!(users, [expected], "{own} {device:?}");
        }
    }
}

/// As on Linux 6.18, the device takes precedence over the address family.
#[test]
fn of_sockets_bound_to_everything_the_one_on_the_device_comes_first() {
    let mut w = World::new(WorldConfig::default());
    let (from, _) = bound(&mut w.b, "10.0.0.2:77");
    for order in [["0.0.0.0:53", "[::]:53"], ["[::]:53", "0.0.0.0:53"]] {
        let sockets = order.map(|addr| (addr, bound(&mut w.a, addr)));
        for named in order {
            for (addr, (id, _)) in sockets {
                let device = if addr == named { HERE } else { None };
                w.a.stack.set_option(id, SocketOption::Device(device)).unwrap();
            }
            send(&mut w.b, from, Some("10.0.0.1:53"), b"x").unwrap();
            w.run(10);
            let (user, ..) = w.a.host.datagrams.pop().expect("a datagram");
            let expected = sockets.iter().find(|(addr, _)| *addr == named).unwrap().1.1;
            assert_eq!(user, expected, "{named} of {order:?}");
        }
        for (_, (id, _)) in sockets {
            w.a.close(id);
        }
    }
}

/// As on Linux 6.18, the newest of several sockets with the same peer receives.
#[test]
fn the_one_that_was_connected_last_hears_the_peer() {
    for (own, peer) in [("10.0.0.1:9000", "10.0.0.2:77"), ("[fd00::1]:9000", "[fd00::2]:77")] {
        let mut w = World::new(WorldConfig::default());
        w.run(3000);
        let (from, _) = bound(&mut w.b, peer);
        let (open, open_user) = bound(&mut w.a, own);
        let sockets = [0; 5].map(|_| bound(&mut w.a, own));
        let peer: SocketAddr = peer.parse().unwrap();
        let mut connected: Vec<usize> = Vec::new();
        let mut dice = Dice::new(1, 0);
        for step in 0..300 {
            let which = dice.index(sockets.len());
            let (id, _) = sockets[which];
            if connected.contains(&which) && dice.below(2) == 0 {
                w.a.stack.disconnect(id);
                connected.retain(|other| *other != which);
            } else {
                w.a.stack.connect_datagram(w.a.now, id, peer).unwrap();
                connected.retain(|other| *other != which);
                connected.push(which);
            }
            send(&mut w.b, from, Some(own), b"x").unwrap();
            w.run(1);
            let expected = connected.last().map(|last| sockets[*last].1);
            let users: Vec<_> = w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect();
            // Without connected sockets, any bound socket may receive the datagram.
            let bound = sockets.iter().map(|(_, user)| *user).chain([open_user]);
            let is_right = match expected {
                Some(user) => users == [user],
                None => users.len() == 1 && bound.clone().any(|user| user == users[0]),
            };
            assert!(is_right, "{own}, step {step}: {users:?}, not {expected:?}");
        }
        for (id, _) in sockets.into_iter().chain([(open, open_user)]) {
            w.a.close(id);
        }
        w.b.close(from);
        w.assert_ends_empty();
    }
}

/// A multicast datagram reaches every socket that joined the group and is connected to the sender.
#[test]
fn a_group_reaches_all_that_are_connected_alike() {
    let mut w = World::new(WorldConfig::default());
    w.run(3000);
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let (from, _) = bound(&mut w.b, "10.0.0.2:77");
    let mut users: Vec<_> = (0..3)
        .map(|_| {
            let (id, user) = bound(&mut w.a, "239.1.2.3:9000");
            w.a.stack.join_group(w.a.now, id, group, HERE, None).unwrap();
            w.a.stack.connect_datagram(w.a.now, id, "10.0.0.2:77".parse().unwrap()).unwrap();
            user
        })
        .collect();
    send(&mut w.b, from, Some("239.1.2.3:9000"), b"x").unwrap();
    w.run(10);
    let mut heard: Vec<_> = w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect();
    heard.sort();
    users.sort();
    assert_eq!(heard, users);
}
