//! Tests of UDP and echo sockets.

use std::net::{IpAddr, SocketAddr};

use towpath_pool::LinkType;
use towpath_ring::Payload;

use super::world::{Node, World, WorldConfig};
use crate::{
    BindError, BindOptions, ConnectError, DatagramOut, DropReason, Family, IfaceId, MtuDiscovery,
    OptionError, SendError, SocketError, SocketEvent, SocketId, SocketKind, SocketOption,
};

pub fn bound(node: &mut Node, addr: &str) -> (SocketId, u32) {
    let addr: SocketAddr = addr.parse().unwrap();
    let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
    let (id, user) = node.open(SocketKind::Datagram, family);
    node.stack
        .bind(id, addr, BindOptions { reuse_addr: true, ..Default::default() })
        .expect("bind");
    (id, user)
}

pub fn send(
    node: &mut Node,
    id: SocketId,
    remote: Option<&str>,
    bytes: &[u8],
) -> Result<(), SendError> {
    let out = DatagramOut { remote: remote.map(|to| to.parse().unwrap()), ..Default::default() };
    send_out(node, id, &out, bytes)
}

fn send_out(
    node: &mut Node,
    id: SocketId,
    out: &DatagramOut,
    bytes: &[u8],
) -> Result<(), SendError> {
    let payload = Payload::new(bytes, Default::default());
    node.stack.send_datagram(node.now, id, out, &payload, &mut node.pool)
}

fn received(node: &mut Node, user: u32) -> Vec<Vec<u8>> {
    let (mine, others) = node.host.datagrams.drain(..).partition(|(whose, ..)| *whose == user);
    node.host.datagrams = others;
    let mine: Vec<(u32, crate::DatagramMeta, Vec<u8>)> = mine;
    mine.into_iter().map(|(_, _, bytes)| bytes).collect()
}

#[test]
fn there_and_back() {
    for link in [LinkType::Ip, LinkType::Ethernet] {
        for (listen, to) in
            [("0.0.0.0:53", "10.0.0.2:53"), ("[::]:53", "[fd00::2]:53"), ("[::]:53", "10.0.0.2:53")]
        {
            let mut w = World::new(WorldConfig { link, ..WorldConfig::default() });
            // No neighbour is solicited before the duplicate detection of the own addresses has
            // ended.
            w.run(3_000);
            let (server, server_user) = bound(&mut w.b, listen);
            let family = if to.starts_with('[') { Family::V6 } else { Family::V4 };
            let (client, client_user) = w.a.open(SocketKind::Datagram, family);
            send(&mut w.a, client, Some(to), b"query").unwrap();
            w.run(100);
            let (user, meta, bytes) = w.b.host.datagrams.pop().expect("a datagram");
            assert_eq!((user, &bytes[..]), (server_user, &b"query"[..]));
            assert_eq!(meta.local, to.parse().unwrap());
            assert_eq!((meta.iface, meta.ttl), (IfaceId(1), 64));
            let out = DatagramOut { remote: Some(meta.remote), ..Default::default() };
            send_out(&mut w.b, server, &out, b"answer").unwrap();
            w.run(100);
            assert_eq!(received(&mut w.a, client_user), [b"answer".to_vec()]);
            w.a.close(client);
            w.b.close(server);
            w.assert_ends_empty();
        }
    }
}

#[test]
fn connected_sockets_are_preferred_and_hear_their_peer_only() {
    let mut w = World::new(WorldConfig::default());
    let (any, any_user) = bound(&mut w.b, "0.0.0.0:53");
    let (peer, peer_user) = bound(&mut w.b, "0.0.0.0:53");
    w.b.stack.connect_datagram(w.b.now, peer, "10.0.0.1:1000".parse().unwrap()).unwrap();
    let (one, one_user) = bound(&mut w.a, "0.0.0.0:1000");
    let (two, _) = bound(&mut w.a, "0.0.0.0:1001");
    send(&mut w.a, one, Some("10.0.0.2:53"), b"from the peer").unwrap();
    send(&mut w.a, two, Some("10.0.0.2:53"), b"from another").unwrap();
    w.run(10);
    assert_eq!(received(&mut w.b, peer_user), [b"from the peer".to_vec()]);
    assert_eq!(received(&mut w.b, any_user), [b"from another".to_vec()]);
    send(&mut w.b, peer, None, b"to the peer").unwrap();
    w.run(10);
    assert_eq!(received(&mut w.a, one_user), [b"to the peer".to_vec()]);
    w.b.stack.disconnect(peer);
    assert_eq!(send(&mut w.b, peer, None, b"?"), Err(SendError::NotConnected));
    for id in [one, two] {
        w.a.close(id);
    }
    for id in [any, peer] {
        w.b.close(id);
    }
    w.assert_ends_empty();
}

/// A program may close a socket whose datagrams are not all sent; as on Linux, they are sent later.
#[test]
fn a_withdrawn_socket_frees_its_port_and_sends_from_it() {
    let mut w = World::new(WorldConfig::default());
    let (server, server_user) = bound(&mut w.b, "0.0.0.0:53");
    let alone = |node: &mut Node, remote: Option<&str>| {
        let (id, _) = node.open(SocketKind::Datagram, Family::V4);
        let local = "0.0.0.0:1000".parse().unwrap();
        let bound = node.stack.bind(id, local, BindOptions::default());
        if let Err(error) = bound {
            node.close(id);
            return Err(error);
        }
        if let Some(remote) = remote {
            node.stack.connect_datagram(node.now, id, remote.parse().unwrap()).unwrap();
        }
        Ok(id)
    };
    for remote in [None, Some("10.0.0.2:53")] {
        let first = alone(&mut w.a, remote).unwrap();
        let group = "224.1.1.1".parse().unwrap();
        w.a.stack.join_group(w.a.now, first, group, None, None).unwrap();
        assert_eq!(alone(&mut w.a, None).unwrap_err(), BindError::AddrInUse);
        w.a.stack.withdraw(w.a.now, first);
        let next = alone(&mut w.a, remote).unwrap();
        let to = remote.xor(Some("10.0.0.2:53"));
        send(&mut w.a, first, to, b"late").unwrap();
        w.run(10);
        let (user, meta, bytes) = w.b.host.datagrams.pop().expect("a datagram");
        assert_eq!((user, &bytes[..]), (server_user, &b"late"[..]));
        assert_eq!(meta.remote.port(), 1000);
        // The answer goes to the next socket on the port.
        send(&mut w.b, server, Some("10.0.0.1:1000"), b"answer").unwrap();
        w.run(10);
        w.a.close(first);
        assert_eq!(
            alone(&mut w.a, None).unwrap_err(),
            BindError::AddrInUse,
            "it is the next one's"
        );
        let user = w.a.stack.info(w.a.now, next).expect("it is open").user;
        assert_eq!(received(&mut w.a, user), [b"answer".to_vec()]);
        w.a.close(next);
    }
    w.b.close(server);
    w.assert_ends_empty();
}

#[test]
fn port_unreachable_reaches_the_connected_sender() {
    for (family, to) in [(Family::V4, "10.0.0.2:9"), (Family::V6, "[fd00::2]:9")] {
        let mut w = World::new(WorldConfig::default());
        let (id, user) = w.a.open(SocketKind::Datagram, family);
        w.a.stack.connect_datagram(w.a.now, id, to.parse().unwrap()).unwrap();
        send(&mut w.a, id, None, b"anyone?").unwrap();
        w.run(10);
        assert_eq!(w.b.drops(DropReason::UdpNoSocket), 1);
        assert_eq!(w.a.host.take_events(user), [SocketEvent::Error(SocketError::PortUnreachable)]);
        w.a.close(id);
        w.assert_ends_empty();
    }
}

#[test]
fn segments_of_one_send_arrive_apart() {
    let mut w = World::new(WorldConfig::default());
    let (_, user) = bound(&mut w.b, "0.0.0.0:53");
    let (local, local_user) = bound(&mut w.a, "0.0.0.0:54");
    let bytes: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    for (to, whose) in [("10.0.0.2:53", user), ("10.0.0.1:54", local_user)] {
        let remote = Some(to.parse().unwrap());
        let out = DatagramOut { remote, segment_size: Some(1200), ..Default::default() };
        send_out(&mut w.a, local, &out, &bytes).unwrap();
        w.run(10);
        let node = if to.ends_with("53") { &mut w.b } else { &mut w.a };
        let got = received(node, whose);
        assert_eq!(
            got.iter().map(Vec::len).collect::<Vec<_>>(),
            [1200, 1200, 1200, 1200, 200],
            "{to}"
        );
        assert_eq!(got.concat(), bytes);
    }
    let out = DatagramOut {
        remote: Some("10.0.0.2:53".parse().unwrap()),
        segment_size: Some(0),
        ..Default::default()
    };
    assert_eq!(send_out(&mut w.a, local, &out, &bytes), Err(SendError::Invalid));
}

#[test]
fn long_datagrams_are_fragmented_or_refused() {
    let mut w = World::new(WorldConfig::default());
    let (_, user) = bound(&mut w.b, "[::]:53");
    let bytes: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    for (family, to) in [(Family::V4, "10.0.0.2:53"), (Family::V6, "[fd00::2]:53")] {
        let (id, _) = w.a.open(SocketKind::Datagram, family);
        send(&mut w.a, id, Some(to), &bytes).unwrap();
        w.run(10);
        assert!(received(&mut w.b, user) == std::slice::from_ref(&bytes));
        // Each address family has its own setting.
        let v4 = SocketOption::MtuDiscover(MtuDiscovery::Do);
        let v6 = SocketOption::MtuDiscoverV6(MtuDiscovery::Do);
        let (own, other) = if family == Family::V4 { (v4, v6) } else { (v6, v4) };
        w.a.stack.set_option(id, other).unwrap();
        send(&mut w.a, id, Some(to), &bytes).unwrap();
        w.a.stack.set_option(id, own).unwrap();
        assert_eq!(send(&mut w.a, id, Some(to), &bytes), Err(SendError::TooLong));
        // Maximum UDP payload with a 16-bit length, which includes the IP header only for IPv4.
        let most = if family == Family::V4 { 65_535 - 20 - 8 } else { 65_535 - 8 };
        let longest: Vec<u8> = (0..most).map(|n| n as u8).collect();
        w.a.stack.set_option(id, SocketOption::MtuDiscover(MtuDiscovery::Dont)).unwrap();
        w.a.stack.set_option(id, SocketOption::MtuDiscoverV6(MtuDiscovery::Dont)).unwrap();
        send(&mut w.a, id, Some(to), &longest).unwrap();
        let too_long = vec![0; most + 1];
        assert_eq!(send(&mut w.a, id, Some(to), &too_long), Err(SendError::TooLong));
        w.run(10);
        assert!(received(&mut w.b, user) == [bytes.clone(), longest]);
        w.a.stack.set_option(id, own).unwrap();
        // IPV6_MTU limits IPv6 datagrams below the link's MTU of 1500, and not IPv4 datagrams.
        let size = |size| SocketOption::FragmentSize(Some(size));
        assert_eq!(w.a.stack.set_option(id, size(1279)), Err(OptionError::Invalid));
        w.a.stack.set_option(id, size(1280)).unwrap();
        send(&mut w.a, id, Some(to), &bytes[..1280 - 48]).unwrap();
        let longer = send(&mut w.a, id, Some(to), &bytes[..1280 - 47]);
        assert_eq!(longer, if family == Family::V4 { Ok(()) } else { Err(SendError::TooLong) });
        w.run(10);
        let arrived = 1 + usize::from(longer.is_ok());
        assert_eq!(received(&mut w.b, user).len(), arrived);
    }
}

#[test]
fn broadcast_needs_permission_and_reaches_all() {
    let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
    let (_, one) = bound(&mut w.b, "0.0.0.0:67");
    let (_, two) = bound(&mut w.b, "0.0.0.0:67");
    let (id, _) = bound(&mut w.a, "0.0.0.0:68");
    let to = "10.0.0.255:67";
    assert_eq!(send(&mut w.a, id, Some(to), b"x"), Err(SendError::Forbidden));
    let refused = w.a.stack.connect_datagram(w.a.now, id, to.parse().unwrap());
    assert_eq!(refused, Err(ConnectError::Forbidden));
    w.a.stack.set_option(id, SocketOption::Broadcast(true)).unwrap();
    send(&mut w.a, id, Some(to), b"all").unwrap();
    w.run(10);
    assert_eq!(received(&mut w.b, one), [b"all".to_vec()]);
    assert_eq!(received(&mut w.b, two), [b"all".to_vec()]);
    // A broadcast without a receiver causes no ICMP error.
    send(&mut w.a, id, Some("10.0.0.255:69"), b"none").unwrap();
    w.run(10);
    assert_eq!(w.b.stack.net.counters().data.icmp_errors_sent, 0);
}

#[test]
fn who_is_bound_to_a_device_hears_its_own_groups_too() {
    let mut w = World::new(WorldConfig::default());
    let group = "239.1.1.1".parse().unwrap();
    let now = w.a.now;
    let (member, user) = bound(&mut w.a, "0.0.0.0:5353");
    w.a.stack.join_group(now, member, group, Some(IfaceId(1)), None).unwrap();
    let out = DatagramOut {
        remote: Some(SocketAddr::new(group, 5353)),
        iface: Some(IfaceId(1)),
        ..Default::default()
    };
    for (device, heard) in [(Some(IfaceId(1)), 1), (None, 1), (Some(IfaceId(7)), 0)] {
        w.a.stack.set_option(member, SocketOption::Device(device)).unwrap();
        let (sender, _) = w.a.open(SocketKind::Datagram, Family::V4);
        send_out(&mut w.a, sender, &out, b"looped").unwrap();
        w.run(10);
        assert_eq!(received(&mut w.a, user).len(), heard, "{device:?}");
        w.a.close(sender);
    }
}

/// As on Linux (rt_iif, inet6_iif), although the packet never leaves the host.
#[test]
fn what_a_host_sends_itself_comes_in_on_the_interface_that_has_the_address() {
    let mut w = World::new(WorldConfig::default());
    for (device, heard) in
        [(None, true), (Some(IfaceId(1)), true), (Some(IfaceId::LOOPBACK), false)]
    {
        let (id, _) = bound(&mut w.a, "10.0.0.1:69");
        w.a.stack.set_option(id, SocketOption::Device(device)).unwrap();
        let (sender, _) = w.a.open(SocketKind::Datagram, Family::V4);
        send(&mut w.a, sender, Some("10.0.0.1:69"), b"own").unwrap();
        w.run(10);
        let ifaces: Vec<_> = w.a.host.datagrams.drain(..).map(|(_, meta, _)| meta.iface).collect();
        assert_eq!(ifaces, if heard { vec![IfaceId(1)] } else { vec![] }, "{device:?}");
        w.a.close(id);

        let (listener, _) = w.a.listen("10.0.0.1:80", 1);
        w.a.stack.set_option(listener, SocketOption::Device(device)).unwrap();
        let client = w.a.connect("10.0.0.1:80");
        w.run(10);
        let event =
            if heard { SocketEvent::Connected } else { SocketEvent::Error(SocketError::Refused) };
        assert!(w.a.host.has(client.user, event), "{device:?}");
        w.a.abort(client.id);
        w.a.close(listener);
        w.run(10);
    }
}

/// Setting SO_BINDTODEVICE to its current value keeps the order of binds, which selects the
/// receiver, as on Linux 6.18.
#[test]
fn a_device_that_stays_what_it_was_moves_nobody() {
    let mut w = World::new(WorldConfig::default());
    let (first, _) = bound(&mut w.a, "0.0.0.0:9000");
    let (_, last_user) = bound(&mut w.a, "0.0.0.0:9000");
    w.a.stack.set_option(first, SocketOption::Device(None)).unwrap();
    let (sender, _) = bound(&mut w.b, "0.0.0.0:9001");
    send(&mut w.b, sender, Some("10.0.0.1:9000"), b"x").unwrap();
    w.run(10);
    let heard: Vec<u32> = w.a.host.datagrams.drain(..).map(|(user, ..)| user).collect();
    assert_eq!(heard, [last_user]);
}

#[test]
fn groups_are_joined_left_and_looped() {
    for (any, group) in [("0.0.0.0:5353", "224.0.0.251"), ("[::]:5353", "ff02::fb")] {
        let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
        let group = group.parse().unwrap();
        let (member, member_user) = bound(&mut w.b, any);
        let (loner, loner_user) = bound(&mut w.b, any);
        w.b.stack.set_option(loner, SocketOption::MulticastAll(false)).unwrap();
        w.b.stack.set_option(loner, SocketOption::MulticastAllV6(false)).unwrap();
        let (sender, sender_user) = bound(&mut w.a, any);
        let out = DatagramOut {
            remote: Some(SocketAddr::new(group, 5353)),
            iface: Some(IfaceId(1)),
            ..Default::default()
        };
        send_out(&mut w.a, sender, &out, b"before").unwrap();
        w.run(10);
        assert!(w.b.host.datagrams.is_empty());
        let iface = Some(IfaceId(1));
        let now = w.b.now;
        w.b.stack.join_group(now, member, group, iface, None).unwrap();
        assert_eq!(
            w.b.stack.join_group(now, member, group, iface, None),
            Err(OptionError::Membership)
        );
        w.a.stack.join_group(now, sender, group, iface, None).unwrap();
        send_out(&mut w.a, sender, &out, b"joined").unwrap();
        w.run(10);
        assert_eq!(received(&mut w.b, member_user), [b"joined".to_vec()]);
        assert!(received(&mut w.b, loner_user).is_empty());
        assert_eq!(received(&mut w.a, sender_user), [b"joined".to_vec()], "looped");
        w.b.stack.leave_group(w.b.now, member, group, iface, None).unwrap();
        send_out(&mut w.a, sender, &out, b"left").unwrap();
        w.run(10);
        assert!(received(&mut w.b, member_user).is_empty());
        w.a.close(sender);
        w.b.close(member);
        w.b.close(loner);
        w.assert_ends_empty();
    }
}

/// Sends a datagram to a group that the sender itself has joined. Returns its own copies, and the
/// packets on the link.
fn to_own_group(
    link: LinkType,
    group: &str,
    ttl: Option<u8>,
    options: &[SocketOption],
) -> (Vec<crate::DatagramMeta>, Vec<u8>) {
    let mut w = World::new(WorldConfig { link, ..WorldConfig::default() });
    let group = group.parse().unwrap();
    let (any, hop_at) = match group {
        std::net::IpAddr::V4(_) => ("0.0.0.0:5353", 8),
        std::net::IpAddr::V6(_) => ("[::]:5353", 7),
    };
    let (member, _) = bound(&mut w.a, any);
    w.a.stack.join_group(w.a.now, member, group, Some(IfaceId(1)), None).unwrap();
    w.run(3000);
    w.keep_seen();
    for option in options {
        w.a.stack.set_option(member, *option).unwrap();
    }
    let remote = Some(SocketAddr::new(group, 5353));
    let out = DatagramOut { remote, iface: Some(IfaceId(1)), ttl, ..Default::default() };
    send_out(&mut w.a, member, &out, b"to the group").unwrap();
    w.run(10);
    let header = if link == LinkType::Ethernet { 14 } else { 0 };
    let seen = w.take_seen().into_iter().filter(|packet| packet.ends_with(b"to the group"));
    let seen = seen.map(|packet| packet[header + hop_at]).collect();
    (w.a.host.datagrams.drain(..).map(|(_, meta, _)| meta).collect(), seen)
}

#[test]
fn hosts_hear_a_group_as_far_as_the_sender_says_and_members_here_in_any_case() {
    use SocketOption::{MulticastHops, MulticastTtl};
    for link in [LinkType::Ip, LinkType::Ethernet] {
        let check = |group: &str, ttl, options: &[SocketOption], heard: u8, seen: &[u8]| {
            let (looped, link_saw) = to_own_group(link, group, ttl, options);
            let looped: Vec<_> = looped.iter().map(|meta| meta.ttl).collect();
            assert_eq!((looped, &link_saw[..]), (vec![heard], seen), "{group} {ttl:?} {options:?}");
        };
        // TTL 1 by default, the TTL of the option, or the TTL of the message.
        for group in ["239.1.2.3", "224.0.0.251", "224.0.0.1", "ff02::77", "ff05::77", "ff02::1"] {
            check(group, None, &[], 1, &[1]);
            let far = [MulticastTtl(5), MulticastHops(5)];
            check(group, None, &far, 5, &[5]);
            check(group, Some(9), &far, 9, &[9]);
            // With a limit of 0, the datagrams stay on this host.
            let near = [MulticastTtl(0), MulticastHops(0)];
            check(group, None, &near, 0, &[]);
            check(group, Some(0), &far, 0, &[]);
            check(group, Some(4), &near, 4, &[4]);
        }
        // The option of the other family has no effect.
        check("239.1.2.3", None, &[MulticastHops(0)], 1, &[1]);
        check("ff02::77", None, &[MulticastTtl(0)], 1, &[1]);
        // The group is limited to this host, whatever the hop limit.
        for group in ["ff01::77", "ff01::1", "ff11::77"] {
            check(group, None, &[MulticastHops(5)], 5, &[]);
        }
        // A group of the reserved scope has no members.
        for group in ["ff00::77", "ff10::77"] {
            let (looped, link_saw) = to_own_group(link, group, Some(5), &[]);
            assert!(looped.is_empty() && link_saw.is_empty(), "{group}");
        }
        for group in ["239.1.2.3", "ff02::77", "ff01::77"] {
            let quiet = [SocketOption::MulticastLoop(false), SocketOption::MulticastLoopV6(false)];
            let options = [&[MulticastTtl(0), MulticastHops(0)][..], &quiet].concat();
            let (looped, link_saw) = to_own_group(link, group, None, &options);
            assert!(looped.is_empty() && link_saw.is_empty(), "{group}");
        }
    }
}

#[test]
fn what_stays_on_this_host_is_counted_and_no_error() {
    let mut w = World::new(WorldConfig::default());
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    w.a.stack.set_option(id, SocketOption::MulticastTtl(0)).unwrap();
    let out = DatagramOut {
        remote: Some("239.1.2.3:9".parse().unwrap()),
        iface: Some(IfaceId(1)),
        ..Default::default()
    };
    w.a.stack.net.set_trace_drops(true);
    send_out(&mut w.a, id, &out, b"nobody").unwrap();
    assert_eq!(w.a.drops(DropReason::HostScope), 1);
    let dropped = w.a.stack.net.take_dropped().expect("traced");
    assert!(dropped.reason.is_outbound(), "a capture shows it as sent");
    // A TTL of 0 is valid for IPv4 groups only.
    let out = DatagramOut { remote: Some("10.0.0.2:9".parse().unwrap()), ttl: Some(0), ..out };
    send_out(&mut w.a, id, &out, b"nobody").unwrap();
    assert_eq!(w.a.drops(DropReason::HostScope), 2);
    // The limits apply to echo requests too.
    for (family, group, kind) in [
        (Family::V4, "239.1.2.3:0", 8),
        (Family::V6, "[ff02::1]:0", 128),
        (Family::V6, "[ff01::1]:0", 128),
    ] {
        let (id, _) = w.a.open(SocketKind::Echo, family);
        w.a.stack.set_option(id, SocketOption::MulticastTtl(0)).unwrap();
        let hops = if group.contains("ff01") { 5 } else { 0 };
        w.a.stack.set_option(id, SocketOption::MulticastHops(hops)).unwrap();
        let out = DatagramOut { remote: Some(group.parse().unwrap()), ttl: None, ..out };
        send_out(&mut w.a, id, &out, &[kind, 0, 0, 0, 0, 0, 0, 1]).unwrap();
    }
    assert_eq!(w.a.drops(DropReason::HostScope), 5);
    w.run(10);
    assert_eq!(w.b.stack.net.counters().data.received, 0);
}

#[test]
fn unicast_limits_are_set_taken_back_and_apart_for_each_family() {
    let mut w = World::new(WorldConfig::default());
    let (_, user) = bound(&mut w.b, "[::]:53");
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V6);
    let arrives = |w: &mut World, to: &str, ttl: Option<u8>| {
        let remote = Some(to.parse().unwrap());
        let out = DatagramOut { remote, ttl, ..Default::default() };
        send_out(&mut w.a, id, &out, b"x").unwrap();
        w.run(10);
        let (whose, meta, _) = w.b.host.datagrams.pop().expect("a datagram");
        assert_eq!(whose, user);
        meta.ttl
    };
    let (v4, v6) = ("[::ffff:10.0.0.2]:53", "[fd00::2]:53");
    assert_eq!((arrives(&mut w, v4, None), arrives(&mut w, v6, None)), (64, 64));
    w.a.stack.set_option(id, SocketOption::Ttl(std::num::NonZeroU8::new(7))).unwrap();
    assert_eq!((arrives(&mut w, v4, None), arrives(&mut w, v6, None)), (7, 64));
    // As on Linux, a datagram with hop limit 0 is sent on the link.
    w.a.stack.set_option(id, SocketOption::UnicastHops(Some(0))).unwrap();
    assert_eq!((arrives(&mut w, v4, None), arrives(&mut w, v6, None)), (7, 0));
    assert_eq!((arrives(&mut w, v4, Some(3)), arrives(&mut w, v6, Some(3))), (3, 3));
    w.a.stack.set_option(id, SocketOption::Ttl(None)).unwrap();
    w.a.stack.set_option(id, SocketOption::UnicastHops(None)).unwrap();
    assert_eq!((arrives(&mut w, v4, None), arrives(&mut w, v6, None)), (64, 64));
    assert_eq!(arrives(&mut w, v6, Some(0)), 0);
}

/// The cached target is invalidated by each change of the socket.
#[test]
fn a_socket_that_changes_sends_the_next_datagram_otherwise() {
    let mut w = World::new(WorldConfig::default());
    let (_, first) = bound(&mut w.b, "0.0.0.0:53");
    let (_, second) = bound(&mut w.b, "0.0.0.0:54");
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    let connect = |w: &mut World, to: &str| {
        w.a.stack.connect_datagram(w.a.now, id, to.parse().unwrap()).unwrap();
    };
    let arrives = |w: &mut World, remote: Option<&str>| {
        send(&mut w.a, id, remote, b"x").unwrap();
        w.run(10);
        let (whose, meta, _) = w.b.host.datagrams.pop().expect("a datagram");
        let ours = w.a.info(id).unwrap().local.unwrap().port();
        assert_eq!(meta.remote.port(), ours);
        (whose, meta.ttl)
    };
    connect(&mut w, "10.0.0.2:53");
    assert_eq!([(); 2].map(|()| arrives(&mut w, None)), [(first, 64); 2]);
    w.a.stack.set_option(id, SocketOption::Ttl(std::num::NonZeroU8::new(7))).unwrap();
    assert_eq!(arrives(&mut w, None), (first, 7));
    connect(&mut w, "10.0.0.2:54");
    assert_eq!(arrives(&mut w, None), (second, 7));
    // The port was chosen by the stack, so the next datagram is sent from another port.
    w.a.stack.disconnect(id);
    assert_eq!(send(&mut w.a, id, None, b"x"), Err(SendError::NotConnected));
    assert_eq!(arrives(&mut w, Some("10.0.0.2:53")), (first, 7));
    w.a.stack.set_option(id, SocketOption::Device(Some(IfaceId(9)))).unwrap();
    assert!(send(&mut w.a, id, Some("10.0.0.2:53"), b"x").is_err());
}

#[test]
fn datagrams_go_without_a_checksum_over_ipv4_if_asked() {
    // Offset of the UDP checksum behind the IP and UDP headers.
    for (to, at) in [("10.0.0.2:53", 26), ("[fd00::2]:53", 46)] {
        for no_checksum in [false, true] {
            let mut w = World::new(WorldConfig { link: LinkType::Ip, ..WorldConfig::default() });
            let (_, user) = bound(&mut w.b, "[::]:53");
            let family = if to.starts_with('[') { Family::V6 } else { Family::V4 };
            let (id, _) = w.a.open(SocketKind::Datagram, family);
            w.a.stack.set_option(id, SocketOption::NoChecksum(no_checksum)).unwrap();
            w.keep_seen();
            send(&mut w.a, id, Some(to), b"query").unwrap();
            w.run(10);
            let seen = w.take_seen().into_iter().find(|packet| packet.ends_with(b"query"));
            let field = seen.expect("it is on the link")[at..at + 2].to_vec();
            assert_eq!(field == [0, 0], no_checksum && family == Family::V4, "{to}");
            assert_eq!(received(&mut w.b, user), [b"query".to_vec()], "{to}");
        }
    }
}

#[test]
fn a_full_loopback_queue_loses_the_copy_only() {
    let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
    let group = "239.1.2.3".parse().unwrap();
    let (member, user) = bound(&mut w.b, "0.0.0.0:5353");
    w.b.stack.join_group(w.b.now, member, group, Some(IfaceId(1)), None).unwrap();
    let (sender, own) = bound(&mut w.a, "0.0.0.0:5353");
    w.a.stack.join_group(w.a.now, sender, group, Some(IfaceId(1)), None).unwrap();
    while w.a.drops(DropReason::LoopbackFull) == 0 {
        let _ = send(&mut w.a, sender, Some("127.0.0.1:9"), b"filler");
    }
    let out = DatagramOut {
        remote: Some(SocketAddr::new(group, 5353)),
        iface: Some(IfaceId(1)),
        ..Default::default()
    };
    send_out(&mut w.a, sender, &out, b"to all").unwrap();
    assert_eq!(w.a.drops(DropReason::LoopbackFull), 2);
    w.run(10);
    assert_eq!(received(&mut w.b, user), [b"to all".to_vec()]);
    assert!(received(&mut w.a, own).is_empty());
}

#[test]
fn reuseport_keeps_a_flow_together() {
    let mut w = World::new(WorldConfig::default());
    let options = BindOptions { reuse_port: true, ..Default::default() };
    let mut users = Vec::new();
    for _ in 0..4 {
        let (id, user) = w.b.open(SocketKind::Datagram, Family::V4);
        w.b.stack.bind(id, "0.0.0.0:53".parse().unwrap(), options).unwrap();
        users.push(user);
    }
    for _ in 0..32 {
        let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
        for _ in 0..3 {
            send(&mut w.a, id, Some("10.0.0.2:53"), b"x").unwrap();
        }
    }
    w.run(10);
    let counts: Vec<usize> = users.iter().map(|user| received(&mut w.b, *user).len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 96);
    assert!(counts.iter().all(|n| n % 3 == 0 && *n > 0), "{counts:?}");
}

#[test]
fn a_full_receiver_loses_and_counts() {
    let mut w = World::new(WorldConfig::default());
    bound(&mut w.b, "0.0.0.0:53");
    let (id, _) = w.a.open(SocketKind::Datagram, Family::V4);
    w.b.host.no_room = true;
    send(&mut w.a, id, Some("10.0.0.2:53"), b"x").unwrap();
    w.run(10);
    assert_eq!(w.b.drops(DropReason::UdpNoRoom), 1);
    assert_eq!(w.b.stack.net.counters().data.icmp_errors_sent, 0);
}

#[test]
fn ping() {
    for (family, to, request, reply) in [
        (Family::V4, "10.0.0.2:0", 8, 0),
        (Family::V6, "[fd00::2]:0", 128, 129),
        (Family::V4, "127.0.0.1:0", 8, 0),
    ] {
        let mut w = World::new(WorldConfig::default());
        let (id, user) = w.a.open(SocketKind::Echo, family);
        let mut message = vec![request, 0, 0, 0, 0xaa, 0xaa, 0, 7];
        message.extend(b"payload");
        send(&mut w.a, id, Some(to), &message).unwrap();
        w.run(10);
        let (whose, meta, bytes) = w.a.host.datagrams.pop().expect("a reply");
        assert_eq!(whose, user);
        assert_eq!(bytes[0], reply);
        let ident = w.a.info(id).unwrap().local.unwrap().port();
        assert_eq!(u16::from_be_bytes([bytes[4], bytes[5]]), ident, "the ident is the socket's");
        assert_eq!(&bytes[6..], b"\0\x07payload");
        assert_eq!(meta.remote.ip(), to.parse::<SocketAddr>().unwrap().ip());
        assert_eq!(
            send(&mut w.a, id, Some(to), &[reply, 0, 0, 0, 0, 0, 0, 0]),
            Err(SendError::Invalid)
        );
        // Maximum payload with a 16-bit length, which includes the header only for IPv4.
        let most = if family == Family::V4 { 65_535 - 20 } else { 65_535 };
        message.resize(most + 1, 7);
        assert_eq!(send(&mut w.a, id, Some(to), &message), Err(SendError::TooLong));
        send(&mut w.a, id, Some(to), &message[..most]).unwrap();
        w.run(10);
        let (_, _, bytes) = w.a.host.datagrams.pop().expect("a reply");
        assert!(bytes[6..] == message[6..most]);
        w.a.close(id);
        w.run(10);
        w.a.assert_empty();
    }
}

/// A datagram to a broadcast address also reaches sockets of this host, on any address.
#[test]
fn broadcasts_reach_the_hosts_own_sockets() {
    for to in ["255.255.255.255:53", "10.0.0.255:53"] {
        let mut w = World::new(WorldConfig::default());
        let (_, any) = bound(&mut w.a, "0.0.0.0:53");
        let (_, other) = bound(&mut w.b, "0.0.0.0:53");
        let (sender, _) = w.a.open(SocketKind::Datagram, Family::V4);
        w.a.stack.set_option(sender, SocketOption::Broadcast(true)).unwrap();
        send(&mut w.a, sender, Some(to), b"all").unwrap();
        w.run(100);
        assert_eq!(received(&mut w.a, any), [b"all"], "{to}");
        assert_eq!(received(&mut w.b, other), [b"all"], "{to}");
        // A socket that is bound to the broadcast address receives the datagram alone.
        let (_, named) = bound(&mut w.a, to);
        send(&mut w.a, sender, Some(to), b"again").unwrap();
        w.run(100);
        assert_eq!(received(&mut w.a, named), [b"again"], "{to}");
        let counted = w.a.stack.net.counters().data.drops.of(DropReason::UdpNoSocket);
        assert_eq!(counted, 0, "nobody was missing");
    }
    // A broadcast from 127.0.0.1 stays on the host.
    let mut w = World::new(WorldConfig::default());
    let (_, any) = bound(&mut w.a, "0.0.0.0:53");
    let (_, other) = bound(&mut w.b, "0.0.0.0:53");
    let (sender, _) = bound(&mut w.a, "127.0.0.1:1000");
    w.a.stack.set_option(sender, SocketOption::Broadcast(true)).unwrap();
    send(&mut w.a, sender, Some("255.255.255.255:53"), b"here").unwrap();
    w.run(100);
    assert_eq!(received(&mut w.a, any), [b"here"]);
    assert!(received(&mut w.b, other).is_empty());
}

/// An echo socket can be bound to an address of the host, or to any address.
#[test]
fn echo_sockets_are_bound_to_addresses_of_the_host_alone() {
    let mut w = World::new(WorldConfig::default());
    let refused = |w: &mut World, addr: &str| {
        let addr: SocketAddr = addr.parse().unwrap();
        let family = if addr.is_ipv4() { Family::V4 } else { Family::V6 };
        let (socket, _) = w.a.open(SocketKind::Echo, family);
        w.a.stack.bind(socket, addr, BindOptions::default()).err()
    };
    for addr in ["127.255.255.255:0", "10.0.0.255:0", "255.255.255.255:0", "224.0.0.1:0"] {
        assert_eq!(refused(&mut w, addr), Some(BindError::AddrNotAvailable), "{addr}");
    }
    assert_eq!(refused(&mut w, "[ff02::1]:0"), Some(BindError::Invalid));
    assert_eq!(refused(&mut w, "10.0.0.1:0"), None);
}

/// A dual-stack socket has separate options for each address family.
#[test]
fn options_of_one_family_are_not_the_others() {
    let mut w = World::new(WorldConfig::default());
    let (_, there) = bound(&mut w.b, "[::]:53");
    let (sender, _) = w.a.open(SocketKind::Datagram, Family::V6);
    w.a.stack.set_option(sender, SocketOption::Tos(0x40)).unwrap();
    w.a.stack.set_option(sender, SocketOption::TrafficClass(0x80)).unwrap();
    for (to, class) in [("10.0.0.2:53", 0x40), ("[fd00::2]:53", 0x80)] {
        send(&mut w.a, sender, Some(to), b"x").unwrap();
        w.run(100);
        let (user, meta, _) = w.b.host.datagrams.pop().expect("a datagram");
        assert_eq!((user, meta.tos), (there, class), "{to}");
    }
    // If MulticastLoop is off for one family, local members still receive datagrams of the other
    // family.
    let options = [
        SocketOption::MulticastLoop(false),
        SocketOption::MulticastInterface(Some(IfaceId(1)), None),
        SocketOption::MulticastInterfaceV6(Some(IfaceId(1))),
    ];
    for option in options {
        w.a.stack.set_option(sender, option).unwrap();
    }
    for (group, heard) in [("239.1.2.3", 0), ("ff02::77", 1)] {
        let group: IpAddr = group.parse().unwrap();
        let (member, user) = bound(&mut w.a, &SocketAddr::new(group, 99).to_string());
        let now = w.a.now;
        w.a.stack.join_group(now, member, group, Some(IfaceId(1)), None).unwrap();
        send(&mut w.a, sender, Some(&SocketAddr::new(group, 99).to_string()), b"g").unwrap();
        w.run(100);
        assert_eq!(received(&mut w.a, user).len(), heard, "{group}");
    }
}

/// Sources for groups are ranked by RFC 6724, too, even if the interface is given.
#[test]
fn groups_of_the_link_hear_a_link_local_source() {
    let mut w = World::new(WorldConfig { link: LinkType::Ethernet, ..WorldConfig::default() });
    w.run(3_000);
    let group: IpAddr = "ff02::77".parse().unwrap();
    let (member, user) = bound(&mut w.b, "[::]:53");
    w.b.stack.join_group(w.b.now, member, group, Some(IfaceId(1)), None).unwrap();
    let (sender, _) = w.a.open(SocketKind::Datagram, Family::V6);
    let iface = SocketOption::MulticastInterfaceV6(Some(IfaceId(1)));
    w.a.stack.set_option(sender, iface).unwrap();
    send(&mut w.a, sender, Some("[ff02::77]:53"), b"x").unwrap();
    w.run(100);
    let (heard, meta, _) = w.b.host.datagrams.pop().expect("a datagram");
    assert_eq!(heard, user);
    assert!(towpath_wire::addr::is_link_local(meta.remote.ip()), "{}", meta.remote);
}
