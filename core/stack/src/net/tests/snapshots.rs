//! Tests that snapshots are complete and immutable, and that their cost is independent of their
//! size.

use super::*;

/// Creates a host with `n` additional addresses and routes, and some groups.
fn crowded(n: u32) -> Host {
    let mut a = Host::new(MAC_A, &["10.0.0.1/24", "fd00::1/64"], |config| {
        let more = (0..n).map(|n| format!("10.{}.{}.1/24", 1 + n / 250, n % 250));
        config.addresses.extend(more.map(|address| prefix(&address)));
    });
    for n in 0..n {
        let network = IpAddr::from((0xac10_0000 + n * 256).to_be_bytes());
        let network = Prefix::new(network, 24).unwrap();
        assert!(a.net.add_route(network, Some(ip("10.0.0.2")), ETH, 1));
    }
    for n in 0..n.min(200) {
        assert!(a.net.join_group(a.now, ETH, [239, 0, 0, n as u8].into(), None));
    }
    a
}

#[test]
fn packets_cost_the_same_with_many_addresses_and_routes() {
    let cost = |n| {
        let mut a = crowded(n);
        let asked = |a: &Host| a.net.data.here().locals.asked();
        let before = asked(&a);
        for (src, dst) in [("10.0.0.2", "10.0.0.1"), ("10.0.0.2", "224.0.0.1")] {
            assert!(a.receive(&from_b_v4(src, dst)).is_some());
        }
        assert!(a.receive(&from_b_v6("fd00::2", "fd00::1")).is_some());
        assert_eq!(a.refusal(&from_b_v4("10.0.0.2", "192.0.2.9")), Some(DropReason::NotLocal));
        let routed = a.net.route_to_keep(a.now, Some(ip("10.0.0.1")), ip("10.0.0.2"), None);
        assert!(routed.is_ok());
        asked(&a) - before
    };
    let few = cost(1);
    assert!(few <= 4 * 2 + 2, "{few}: two for each packet, and two for the route");
    assert_eq!(cost(2000), few);
}

#[test]
fn all_of_many_addresses_are_this_host() {
    let mut a = crowded(600);
    for (dst, expected) in [
        ("10.3.99.1", None),
        ("10.3.99.2", Some(DropReason::NotLocal)),
        ("10.3.99.255", None),
        ("10.3.100.1", Some(DropReason::NotLocal)),
        ("239.0.0.199", None),
        ("239.0.0.200", Some(DropReason::NotJoined)),
    ] {
        let received = a.receive(&from_b_v4("10.0.0.2", dst)).is_some();
        assert_eq!(a.net.take_dropped().map(|dropped| dropped.reason), expected, "{dst}");
        assert_eq!(received, expected.is_none(), "{dst}");
    }
    assert!(a.net.leave_group(a.now, ETH, ip("239.0.0.199"), None));
    assert!(a.net.remove_address(a.now, ETH, ip("10.3.99.1")));
    for dst in ["239.0.0.199", "10.3.99.1", "10.3.99.255"] {
        assert!(a.refusal(&from_b_v4("10.0.0.2", dst)).is_some(), "{dst}");
    }
    assert_eq!(a.refusal(&from_b_v4("10.2.5.255", "10.0.0.1")), Some(DropReason::Martian));
}

#[test]
fn an_address_may_be_the_broadcast_address_of_another_interface() {
    let mut a = Host::a();
    let second = InterfaceConfig {
        name: "eth1".to_string(),
        link: LinkType::Ip,
        mac: MacAddr::UNSPECIFIED,
        ..eth0(&["10.0.0.255/16"])
    };
    let second = a.net.add_interface(a.now, second);
    let packet = ipv4_packet("10.0.0.2", "10.0.0.255", IpProtocol::UDP, &[0; 8]);
    let first = local(a.receive(&from_b_v4("10.0.0.2", "10.0.0.255")).unwrap());
    let packet = a.packet(&packet);
    let other = local(a.net.receive(a.now, second, packet, &mut a.pool).unwrap());
    assert_eq!((first.broadcast_or_multicast, other.broadcast_or_multicast), (true, false));
}

#[test]
fn a_snapshot_stays_what_it_is_and_shares_what_stayed() {
    let mut a = crowded(10).settled();
    let old = Arc::clone(&a.net.data.snapshot);
    let lookup = |snapshot: &super::super::snapshot::Snapshot| {
        snapshot.fib.lookup(ip("192.0.2.1"), None, || None).map(|choice| choice.way.next_hop)
    };
    assert_eq!(lookup(&old), None);
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 1);
    let new = Arc::clone(&a.net.data.snapshot);
    assert_eq!((lookup(&old), lookup(&new)), (None, Some(Some(ip("10.0.0.9")))));
    assert!(Arc::ptr_eq(&old.host, &new.host) && new.generation > old.generation);
    assert_eq!(a.net.route_generation(), new.generation);

    // Neither an identical change nor packets create a new snapshot.
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 1);
    a.receive(&from_b_v4("10.0.0.2", "10.0.0.1"));
    a.send_udp("10.0.0.2", 1).unwrap();
    assert!(Arc::ptr_eq(&new, &a.net.data.snapshot));

    // A join copies only the table of groups, and a change of the offloads no table.
    let (hosts, groups) = (&new.host.locals.hosts, &new.host.locals.groups);
    assert!(a.net.join_group(a.now, ETH, ip("239.9.9.9"), None));
    let joined = Arc::clone(&a.net.data.snapshot);
    assert!(Arc::ptr_eq(&joined.host.locals.hosts, hosts));
    assert!(!Arc::ptr_eq(&joined.host.locals.groups, groups));
    assert_eq!(joined.generation, new.generation, "no way is another one for that");
    a.net.set_offloads(ETH, ALL);
    let told = Arc::clone(&a.net.data.snapshot);
    assert_eq!(told.host.links[ETH.index()].offloads, ALL);
    assert!(Arc::ptr_eq(&told.host.locals.hosts, hosts));
    assert!(Arc::ptr_eq(&told.host.locals.groups, &joined.host.locals.groups));

    a.net.add_address(a.now, ETH, prefix("192.0.2.1/24"));
    assert_eq!(old.host.locals.on(ETH, ip("192.0.2.1")).owner, None);
    assert_eq!(a.net.data.here().locals.on(ETH, ip("192.0.2.1")).owner, Some(ETH));
}

/// Routers repeat advertisements, and any host on the link can do so at any rate.
#[test]
fn a_prefix_that_is_renewed_makes_no_snapshot() {
    let mut host = slaac_host();
    let renewal = from_router("ff02::1", &advert(1800), &[announced(3600, 1800)]);
    host.receive(&renewal);
    host.pass(Duration::from_secs(60));
    let before = Arc::clone(&host.net.data.snapshot);
    for _ in 0..4 {
        host.pass(Duration::from_secs(1000));
        host.receive(&renewal);
    }
    assert!(Arc::ptr_eq(&before, &host.net.data.snapshot));
    assert_eq!(global(&host).map(|address| address.state), Some(AddressState::Preferred));
    host.pass(Duration::from_secs(1800));
    assert_eq!(global(&host).map(|address| address.state), Some(AddressState::Deprecated));
    host.receive(&renewal);
    assert_eq!(global(&host).map(|address| address.state), Some(AddressState::Preferred));
}
