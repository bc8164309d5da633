//! Tests of the configuration of a host with shards: addresses, routes and path MTUs, as set by the
//! owner, routers and hosts on the link. Every shard follows a change, and no message is handled
//! twice.

use towpath_wire::ndp::{Message, Preference, PrefixInfo, RouterAdvert};
use towpath_wire::{IpProtocol, Prefix, addr, icmpv4, ipv4};

use super::frames::{STRANGER, discovery, probe_for};
use super::hosts::{COUNTS, Hosts, Sock, for_each_ethernet, for_each_link};
use crate::net::{Address, AddressState};
use crate::{
    BindError, BindOptions, ConnectError, Family, IfaceId, MtuDiscovery, SendError, SocketKind,
    SocketOption, StackConfig,
};

const ETH: IfaceId = IfaceId(1);

/// Binds sockets in all shards of host 0 to an address. Returns the result, which must be equal in
/// all.
fn binds(w: &mut Hosts, addr: &str) -> Result<(), BindError> {
    let family = if addr.starts_with('[') { Family::V6 } else { Family::V4 };
    let answers: Vec<_> = (0..w.count())
        .map(|shard| {
            let sock = w.open_in(0, shard, SocketKind::Stream, family);
            let answer = w.bind(sock, addr, BindOptions::default()).map(|_| ());
            w.close(sock);
            answer
        })
        .collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    answers[0]
}

/// Connects sockets in all shards of host 0 to an address. Returns the result, which must be equal
/// in all.
fn connects(w: &mut Hosts, remote: &str) -> Result<(), ConnectError> {
    let family = if remote.starts_with('[') { Family::V6 } else { Family::V4 };
    let answers: Vec<_> = (0..w.count())
        .map(|shard| {
            let sock = w.open_in(0, shard, SocketKind::Stream, family);
            let answer = w.connect_sock(sock, remote).map(|_| ());
            w.close(sock);
            answer
        })
        .collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    answers[0]
}

/// Returns the address of host 0 from a router advertisement, as all shards see it.
fn global(w: &Hosts) -> Option<Address> {
    let seen = w.sides[0].iter().map(|node| {
        let addresses = node.stack.net.interface(ETH).unwrap().addresses();
        let prefix: Prefix = "2001:db8::/64".parse().expect("a prefix");
        addresses.iter().find(|address| prefix.contains(address.addr())).copied()
    });
    let seen: Vec<_> = seen.collect();
    assert!(seen.iter().all(|address| *address == seen[0]), "{seen:?}");
    seen[0]
}

#[test]
fn the_owner_tells_the_first_shard_and_all_know() {
    for_each_link(|w| {
        let now = w.now();
        let prefix = "192.0.2.1/24".parse().expect("a prefix");
        assert_eq!(binds(w, "192.0.2.1:80"), Err(BindError::AddrNotAvailable));
        assert!(w.sides[0][0].stack.net.add_address(now, ETH, prefix));
        // No shard has turned yet.
        assert_eq!(binds(w, "192.0.2.1:80"), Ok(()));
        assert_eq!(connects(w, "198.51.100.1:80"), Err(ConnectError::NetUnreachable));
        let router = Some("192.0.2.9".parse().expect("an address"));
        assert!(w.sides[0][0].stack.net.add_route(Prefix::ALL_V4, router, ETH, 1));
        assert_eq!(connects(w, "198.51.100.1:80"), Ok(()));
        for node in &w.sides[0] {
            let route = node.stack.net.routes().find(|route| route.next_hop == router);
            assert_eq!(route.map(|route| route.prefix), Some(Prefix::ALL_V4));
            assert_eq!(node.stack.net.interface(IfaceId(1)).unwrap().name(), "eth0");
        }
        w.run(10);
        assert_eq!(w.sides[0][0].stack.net.remove_route(Prefix::ALL_V4, None), 1);
        assert!(w.sides[0][0].stack.net.remove_address(now, ETH, prefix.addr()));
        assert_eq!(binds(w, "192.0.2.1:80"), Err(BindError::AddrNotAvailable));
        assert_eq!(connects(w, "198.51.100.1:80"), Err(ConnectError::NetUnreachable));
        w.assert_ends_empty();
    });
}

#[test]
#[should_panic(expected = "the first shard alone")]
fn the_others_are_not_told() {
    let w = &mut Hosts::new(2, 1, StackConfig::default());
    w.sides[0][1].stack.net.add_route(Prefix::ALL_V4, None, ETH, 1);
}

/// A route has changed: sleeping shards are woken, because their connections may wait for the
/// device of the old route.
#[test]
fn shards_that_sleep_are_woken_for_another_way() {
    let w = &mut Hosts::new(4, 1, StackConfig::default());
    w.settle();
    w.sides[0][0].stack.net.add_route(Prefix::ALL_V4, None, ETH, 1);
    let node = &mut w.sides[0][0];
    let (now, budget) = (node.now, Default::default());
    let mut turn =
        || node.stack.turn(now, &mut node.host, &mut node.ports, &mut node.pool, budget).mail;
    assert_eq!([turn(), turn()], [0b1110, 0]);
}

#[test]
fn an_address_that_is_somebody_elses_is_nobodys_here() {
    for count in COUNTS {
        for seed in 1..=3 {
            let w = &mut Hosts::ethernet(count, seed, StackConfig::default(), false);
            w.run(10);
            assert_eq!(binds(w, "[fd00::1]:80"), Ok(()), "it is used while others are asked");
            let listener = w.listen(0, "[::]:81", 8);
            w.inject(0, &probe_for("fd00::1"));
            w.run(10);
            assert_eq!(binds(w, "[fd00::1]:80"), Err(BindError::AddrNotAvailable));
            let control = w.sides[0].iter().map(|node| node.stack.net.counters().control);
            assert_eq!(control.map(|counters| counters.duplicate_addresses).sum::<u64>(), 1);
            w.run(3000);
            w.connect(1, "[fd00::1]:81");
            w.run(2000);
            assert_eq!(w.queued(listener), 0);
            // The other addresses are unaffected.
            w.connect(1, "10.0.0.1:80");
            assert_eq!(binds(w, "10.0.0.1:80"), Ok(()));
        }
    }
}

fn advert(lifetime_s: u16, info: PrefixInfo) -> Vec<u8> {
    let message = Message::RouterAdvert(RouterAdvert {
        hop_limit: 63,
        managed: false,
        other: false,
        preference: Preference::Medium,
        lifetime_s,
        reachable_ms: 0,
        retrans_ms: 0,
        source_ll: Some(STRANGER),
        mtu: Some(1400),
    });
    discovery("fe80::99", addr::ALL_NODES, &message, &[info])
}

#[test]
fn what_a_router_says_holds_in_each_shard_and_ends_in_each() {
    for count in COUNTS {
        for seed in 1..=3 {
            let w = &mut Hosts::ethernet(count, seed, StackConfig::default(), true);
            w.run(3000);
            assert_eq!(connects(w, "[2001:db8:1::1]:80"), Err(ConnectError::NetUnreachable));
            let info = PrefixInfo {
                prefix: "2001:db8::".parse().expect("an address"),
                len: 64,
                on_link: true,
                autonomous: true,
                valid_s: 200,
                preferred_s: 50,
            };
            w.inject(0, &advert(100, info));
            w.run(1);
            assert_eq!(global(w).map(|address| address.state), Some(AddressState::Tentative));
            w.run(3000);
            let address = global(w).expect("it was made");
            assert_eq!(address.state, AddressState::Preferred);
            let here = format!("[{}]:80", address.addr());
            assert_eq!(binds(w, &here), Ok(()));
            for node in &mut w.sides[0] {
                let far = "2001:db8:1::1".parse().expect("an address");
                let route = node.stack.net.route(node.now, None, far, None).expect("a route");
                let way = (route.next_hop, route.src, route.mtu);
                let router = "fe80::99".parse().expect("an address");
                assert_eq!(way, (router, address.addr(), 1400));
            }
            assert_eq!(connects(w, "[2001:db8:1::1]:80"), Ok(()));
            w.take_seen();
            for shard in 0..count {
                let sock = w.open_in(0, shard, SocketKind::Datagram, Family::V6);
                w.send_to(sock, Some("[2001:db8:1::1]:80"), b"x").expect("sent");
            }
            w.run(10);
            let sent = w.take_seen().into_iter().filter(|frame| frame[..6] == STRANGER.0);
            assert_eq!(sent.count(), count, "it said where it is");

            w.run(60_000);
            assert_eq!(global(w).map(|it| it.state), Some(AddressState::Deprecated));
            assert_eq!(connects(w, "[2001:db8:1::1]:80"), Ok(()));
            w.run(40_000);
            assert_eq!(connects(w, "[2001:db8:1::1]:80"), Err(ConnectError::NetUnreachable));
            assert_eq!(binds(w, &here), Ok(()));
            w.run(100_000);
            assert_eq!(global(w), None);
            assert_eq!(binds(w, &here), Err(BindError::AddrNotAvailable));
        }
    }
}

/// Creates a path MTU report about `quoted`, from 10.0.0.2 to 10.0.0.1.
fn too_big(quoted: &[u8], mtu: u16) -> Vec<u8> {
    let mut packet = vec![0; ipv4::HEADER_LEN + icmpv4::HEADER_LEN];
    packet.extend_from_slice(&quoted[..quoted.len().min(100)]);
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
    icmpv4::Message::DestUnreachable { code: 4, next_hop_mtu: mtu }.emit(body);
    icmpv4::fill_checksum(body);
    packet
}

/// Returns the path MTU to the other host, which must be equal in all shards.
fn path_mtu(w: &Hosts, side: usize) -> u32 {
    let to = [10, 0, 0, 2 - side as u8].into();
    let known = w.sides[side].iter().map(|node| {
        let net = &node.stack.net;
        assert_eq!(net.path_mtu(node.now, to), net.path_mtu_least());
        net.path_mtu_least()
    });
    let known: Vec<_> = known.collect();
    assert!(known.iter().all(|mtu| *mtu == known[0]), "{known:?}");
    known[0]
}

#[test]
fn a_path_mtu_that_one_shard_learns_is_known_to_all() {
    for_each_link(|w| {
        let clients: Vec<Sock> = (0..w.count())
            .map(|shard| {
                let sock = w.open_in(0, shard, SocketKind::Datagram, Family::V4);
                let option = SocketOption::MtuDiscover(MtuDiscovery::Do);
                w.node(sock).stack.set_option(sock.id, option).expect("set");
                sock
            })
            .collect();
        w.take_seen();
        let teller = clients[clients.len() / 2];
        w.send_to(teller, Some("10.0.0.2:9"), &[1; 1200]).expect("sent");
        w.run(20);
        let seen = w.take_seen();
        let sent = seen.iter().find(|packet| packet.len() > 1200).expect("it was sent");
        let ip_at = sent.len() - 1228;
        let report = [&with_link(&sent[..ip_at])[..], &too_big(&sent[ip_at..], 1000)].concat();
        assert_eq!(path_mtu(w, 0), 1500);
        w.inject(0, &report);
        w.run(1);
        assert_eq!((path_mtu(w, 0), path_mtu(w, 1)), (1000, 1500));
        for client in &clients {
            let sent = w.send_to(*client, Some("10.0.0.2:9"), &[1; 1200]);
            assert_eq!(sent, Err(SendError::TooLong), "shard {}", client.shard);
        }
        w.run(601_000);
        assert_eq!(path_mtu(w, 0), 1500);
    });
}

/// Returns the link header of the answer to a frame; empty on a link without headers.
fn with_link(header: &[u8]) -> Vec<u8> {
    match header {
        [] => Vec::new(),
        header => [&header[6..12], &header[..6], &header[12..]].concat(),
    }
}

#[test]
fn a_path_mtu_is_told_even_where_nothing_was_sent() {
    for_each_ethernet(|w| {
        let far = [10, 0, 0, 2].into();
        for (shard, mtu) in (0..w.count()).zip([1400, 1300, 1200, 1100, 1000, 900, 800, 700]) {
            let node = &mut w.sides[0][shard];
            node.stack.net.set_path_mtu(node.now, ([10, 0, 0, 1].into(), far), None, mtu);
            w.run(1);
            assert_eq!(path_mtu(w, 0), mtu);
        }
    });
}
