//! Tests that lists of changes are applied completely or not at all, by the rules of Linux.

use super::*;

fn route(to: &str, via: Option<&str>) -> RouteSpec {
    RouteSpec { next_hop: via.map(ip), ..RouteSpec::to(prefix(to)) }
}

fn add(to: &str, via: &str) -> Change {
    Change::SetRoute(route(to, Some(via)), How::Add)
}

fn address(text: &str) -> Change {
    Change::AddAddress { iface: ETH, prefix: prefix(text) }
}

fn gone(text: &str) -> Change {
    Change::RemoveAddress { iface: ETH, addr: ip(text), len: None }
}

/// Returns the visible state of a host as text.
fn picture(host: &Host) -> String {
    let links: Vec<_> = host.net.interfaces().map(|link| format!("{link:?}")).collect();
    let routes: Vec<_> = host.net.routes().collect();
    let mut neighbors: Vec<_> = host.net.neighbors().collect();
    neighbors.sort_by_key(|known| known.addr);
    format!("{links:?} {routes:?} {neighbors:?} {:?}", host.net.data.snapshot.generation)
}

fn apply(host: &mut Host, changes: &[Change]) -> Result<(), (usize, Fault)> {
    host.net.apply(host.now, changes).map_err(|refused| (refused.at, refused.why))
}

#[test]
fn a_list_is_made_whole_with_one_snapshot_or_not_at_all() {
    let mut a = Host::a().settled();
    let good = [address("10.5.0.1/24"), add("0.0.0.0/0", "10.5.0.9"), gone("10.0.0.1")];
    for bad in [gone("10.9.9.9"), add("10.7.0.0/16", "10.0.0.9"), address("10.5.0.1/16")] {
        let before = picture(&a);
        let mut list = good.to_vec();
        list.push(bad);
        assert_eq!(apply(&mut a, &list).map_err(|(at, _)| at), Err(3), "{bad:?}");
        assert_eq!(picture(&a), before, "{bad:?}");
    }
    let before = a.net.data.snapshot.clone();
    assert_eq!(apply(&mut a, &good), Ok(()));
    assert!(a.net.is_local(ip("10.5.0.1")) && !a.net.is_local(ip("10.0.0.1")));
    let found = a.net.route(a.now, None, ip("192.0.2.1"), None).expect("the default route");
    assert_eq!((found.next_hop, found.src), (ip("10.5.0.9"), ip("10.5.0.1")));
    assert!(
        a.net.route(a.now, None, ip("10.0.0.2"), None).expect("by it").next_hop == found.next_hop
    );
    assert!(
        before.fib.lookup(ip("192.0.2.1"), None, || None).is_none(),
        "who has the old one keeps it"
    );
}

#[test]
fn faults_are_those_of_linux() {
    let mut a = Host::a().settled();
    let other = IfaceId(9);
    let on = |iface, to| RouteSpec { iface: Some(iface), ..route(to, None) };
    let weighed = |weight| {
        let spec = RouteSpec { weight: Some(weight), ..route("0.0.0.0/0", Some("10.0.0.9")) };
        Change::SetRoute(spec, How::Add)
    };
    let metric = |metric, route| RouteSpec { metric: Some(metric), ..route };
    let neighbor = |addr, how| Change::SetNeighbor { iface: ETH, addr: ip(addr), mac: MAC_B, how };
    for (change, why) in [
        (address("10.0.0.1/16"), Fault::Exists),
        (address("0.0.0.0/8"), Fault::Invalid),
        (address("239.1.1.1/8"), Fault::Invalid),
        (address("127.0.0.5/8"), Fault::Invalid),
        (Change::AddAddress { iface: other, prefix: prefix("10.1.0.1/8") }, Fault::NoInterface),
        (gone("10.0.0.7"), Fault::NoAddress),
        (
            Change::RemoveAddress { iface: ETH, addr: ip("10.0.0.1"), len: Some(16) },
            Fault::NoAddress,
        ),
        (add("10.0.1.1/16", "10.0.0.9"), Fault::HostBits),
        (add("0.0.0.0/0", "10.1.0.9"), Fault::GatewayUnreachable),
        (add("0.0.0.0/0", "fd00::9"), Fault::Invalid),
        (add("::/0", "fe80::9"), Fault::GatewayUnreachable),
        (add("0.0.0.0/0", "10.0.0.255"), Fault::GatewayUnreachable),
        (add("::/0", "fd00::1"), Fault::GatewayUnreachable),
        (Change::SetRoute(route("10.8.0.0/16", None), How::Add), Fault::NoInterface),
        (Change::SetRoute(on(other, "10.8.0.0/16"), How::Add), Fault::NoInterface),
        (Change::SetRoute(on(ETH, "10.0.0.0/24"), How::Add), Fault::Exists),
        (Change::SetRoute(on(ETH, "10.8.0.0/24"), How::Change), Fault::NotThere),
        (weighed(0), Fault::Weight),
        (weighed(257), Fault::Weight),
        (Change::RemoveRoute(route("10.8.0.0/24", None)), Fault::NoRoute),
        (Change::RemoveRoute(metric(7, route("10.0.0.0/24", None))), Fault::NoRoute),
        (Change::RemoveNeighbor { iface: ETH, addr: ip("10.0.0.9") }, Fault::NoNeighbor),
        (neighbor("10.0.0.9", How::Change), Fault::NoNeighbor),
        (neighbor("0.0.0.0", How::Add), Fault::Invalid),
        (Change::SetUp { iface: IfaceId::LOOPBACK, up: false }, Fault::Loopback),
        (Change::SetMtu { iface: ETH, mtu: 1501 }, Fault::Mtu),
        (Change::SetMtu { iface: ETH, mtu: 1279 }, Fault::Mtu),
    ] {
        assert_eq!(apply(&mut a, &[change]), Err((0, why)), "{change:?}");
    }
}

#[test]
fn the_mtu_follows_its_device_unless_it_was_chosen() {
    let mut a = Host::a().settled();
    let mtu = |a: &Host| a.net.route(a.now, None, ip("10.0.0.2"), None).map(|way| way.mtu);
    let set = |a: &mut Host, change| {
        assert_eq!(apply(a, &[change]), Ok(()), "{change:?}");
        mtu(a).expect("a route")
    };
    let device = |mtu| Change::SetMtuMost { iface: ETH, mtu };
    let chosen = |mtu| Change::SetMtu { iface: ETH, mtu };
    assert_eq!(set(&mut a, device(9000)), 9000);
    assert_eq!(set(&mut a, device(1400)), 1400);
    assert_eq!(apply(&mut a, &[chosen(1401)]), Err((0, Fault::Mtu)));
    assert_eq!(set(&mut a, chosen(1300)), 1300);
    assert_eq!(set(&mut a, device(9000)), 1300);
    assert_eq!(set(&mut a, chosen(9000)), 9000);
    assert_eq!(apply(&mut a, &[device(1279)]), Err((0, Fault::Mtu)));
    let loopback = Change::SetMtuMost { iface: IfaceId::LOOPBACK, mtu: 1500 };
    assert_eq!(apply(&mut a, &[loopback]), Err((0, Fault::Loopback)));
}

#[test]
fn routes_are_added_replaced_and_removed_by_what_is_named() {
    let mut a = Host::a().settled();
    let hop = |a: &Host| a.net.route(a.now, None, ip("192.0.2.1"), None).map(|way| way.next_hop);
    assert_eq!(apply(&mut a, &[add("0.0.0.0/0", "10.0.0.7")]), Ok(()));
    assert_eq!(apply(&mut a, &[add("0.0.0.0/0", "10.0.0.8")]), Err((0, Fault::Exists)));
    let better = route("0.0.0.0/0", Some("10.0.0.8"));
    assert_eq!(apply(&mut a, &[Change::SetRoute(better, How::Replace)]), Ok(()));
    assert_eq!(hop(&a), Ok(ip("10.0.0.8")));
    let worse = RouteSpec { metric: Some(5), ..route("0.0.0.0/0", Some("10.0.0.9")) };
    assert_eq!(apply(&mut a, &[Change::SetRoute(worse, How::Add)]), Ok(()));
    assert_eq!(hop(&a), Ok(ip("10.0.0.8")));
    assert_eq!(apply(&mut a, &[Change::RemoveRoute(route("0.0.0.0/0", None))]), Ok(()));
    assert_eq!(hop(&a), Ok(ip("10.0.0.9")));
    // The same router with another metric is an additional route.
    let last = RouteSpec { metric: Some(9), ..worse };
    assert_eq!(apply(&mut a, &[Change::SetRoute(last, How::Add)]), Ok(()));
    assert_eq!(apply(&mut a, &[Change::RemoveRoute(worse)]), Ok(()));
    assert_eq!(hop(&a), Ok(ip("10.0.0.9")));
    let default_v6 = RouteSpec { iface: Some(ETH), ..route("::/0", Some("fe80::9")) };
    assert_eq!(apply(&mut a, &[Change::SetRoute(default_v6, How::Add)]), Ok(()));
    assert_eq!(a.net.routes().last().expect("it was added").metric, 1024);
}

#[test]
fn a_route_may_lead_nowhere() {
    let mut a = Host::a().settled();
    let to = |kind| RouteSpec { kind: Some(kind), ..route("10.0.0.128/25", None) };
    let way = |a: &Host| a.net.route(a.now, None, ip("10.0.0.200"), None).map(|way| way.next_hop);
    assert_eq!(way(&a), Ok(ip("10.0.0.200")));
    for (kind, error) in [
        (RouteKind::Blackhole, RouteError::Blackhole),
        (RouteKind::Unreachable, RouteError::Unreachable),
        (RouteKind::Prohibit, RouteError::Prohibited),
    ] {
        assert_eq!(apply(&mut a, &[Change::SetRoute(to(kind), How::Replace)]), Ok(()));
        assert_eq!(way(&a), Err(error));
    }
    let through = add("10.9.0.0/16", "10.0.0.200");
    assert_eq!(apply(&mut a, &[through]), Ok(()), "the link is there all the same");
    let on_link = RouteSpec { iface: Some(ETH), ..to(RouteKind::Blackhole) };
    assert_eq!(apply(&mut a, &[Change::SetRoute(on_link, How::Add)]), Err((0, Fault::Invalid)));
    let other = Change::RemoveRoute(to(RouteKind::Blackhole));
    assert_eq!(apply(&mut a, &[other]), Err((0, Fault::NoRoute)));
    assert_eq!(apply(&mut a, &[Change::RemoveRoute(route("10.0.0.128/25", None))]), Ok(()));
    assert_eq!(way(&a), Ok(ip("10.0.0.200")));
}

#[test]
fn a_permanent_neighbor_is_never_asked_and_nothing_moves_it() {
    let mut a = Host::a().settled();
    let key = |how, mac| Change::SetNeighbor { iface: ETH, addr: ip("10.0.0.2"), mac, how };
    let other = MacAddr([2, 0, 0, 0, 0, 0x77]);
    assert_eq!(apply(&mut a, &[key(How::Add, MAC_B)]), Ok(()));
    assert_eq!(apply(&mut a, &[key(How::Add, MAC_B)]), Err((0, Fault::Exists)));
    a.send_udp("10.0.0.2", 1).unwrap();
    let sent = only(a.sent());
    assert_eq!(sent[..6], MAC_B.0, "no question before it");
    let claim = ipv4_packet("10.0.0.2", "10.0.0.1", IpProtocol::UDP, &[0; 8]);
    a.receive(&frame(MAC_A, other, EtherType::IPV4, &claim));
    let message = arp::ArpPacket {
        op: arp::ArpOp::Reply,
        sender_mac: other,
        sender_ip: "10.0.0.2".parse().unwrap(),
        target_mac: MAC_A,
        target_ip: "10.0.0.2".parse().unwrap(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    a.receive(&frame(MAC_A, other, EtherType::ARP, &bytes));
    a.pass(Duration::from_secs(100));
    a.sent();
    a.send_udp("10.0.0.2", 1).unwrap();
    assert_eq!(only(a.sent())[..6], MAC_B.0, "neither a claim nor time has moved it");
    let states: Vec<_> = a.net.neighbors().map(|known| (known.mac, known.state)).collect();
    assert_eq!(states, [(Some(MAC_B), NeighborState::Permanent)]);
    assert_eq!(apply(&mut a, &[key(How::Replace, other)]), Ok(()));
    a.pass(Duration::ZERO);
    a.send_udp("10.0.0.2", 1).unwrap();
    assert_eq!(only(a.sent())[..6], other.0);
    let removal = Change::RemoveNeighbor { iface: ETH, addr: ip("10.0.0.2") };
    assert_eq!(apply(&mut a, &[removal, key(How::Add, MAC_B), removal]), Ok(()));
    assert_eq!(a.net.neighbors().count(), 0);
}

#[test]
fn an_interface_that_is_down_has_no_routes_and_is_back_with_those_of_its_links() {
    let mut a = Host::a().settled();
    let links: Vec<_> = a.net.routes().map(|route| route.prefix).collect();
    let set = |up| Change::SetUp { iface: ETH, up };
    assert_eq!(apply(&mut a, &[add("0.0.0.0/0", "10.0.0.7"), set(false)]), Ok(()));
    for dst in ["10.0.0.2", "192.0.2.1", "224.0.0.9"] {
        assert_eq!(a.net.route(a.now, None, ip(dst), Some(ETH)), Err(RouteError::NoRoute), "{dst}");
    }
    assert!(a.net.is_local(ip("10.0.0.1")), "addresses stay");
    assert_eq!(apply(&mut a, &[add("0.0.0.0/0", "10.0.0.7")]), Err((0, Fault::GatewayUnreachable)));
    assert_eq!(apply(&mut a, &[set(true), add("10.9.0.0/16", "10.0.0.7")]), Ok(()));
    let back: Vec<_> = a.net.routes().map(|route| route.prefix).collect();
    assert!(links.iter().all(|link| back.contains(link)), "{back:?}");
    assert!(back.contains(&prefix("10.9.0.0/16")) && !back.contains(&prefix("0.0.0.0/0")));
    a.pass(Duration::from_millis(1));
    assert!(!a.sent().is_empty(), "its IPv4 address is announced again");
}

#[test]
fn a_route_has_an_mtu_for_what_the_host_sends() {
    let mut a = Host::a().settled();
    let mtu = |to: &str, via: &str, mtu, how| {
        let route = RouteSpec { mtu, ..route(to, Some(via)) };
        Change::SetRoute(RouteSpec { iface: Some(ETH), ..route }, how)
    };
    for (to, via, wrong) in
        [("0.0.0.0/0", "10.0.0.7", 67), ("0.0.0.0/0", "10.0.0.7", 65536), ("::/0", "fe80::7", 1279)]
    {
        let change = mtu(to, via, Some(wrong), How::Add);
        assert_eq!(apply(&mut a, &[change]), Err((0, Fault::RouteMtu)), "{wrong}");
    }
    let hole = RouteSpec { kind: Some(RouteKind::Blackhole), mtu: Some(1300), ..route(FAR, None) };
    assert_eq!(apply(&mut a, &[Change::SetRoute(hole, How::Add)]), Err((0, Fault::Invalid)));
    let found = |a: &Host| {
        let way = a.net.route(a.now, None, ip("192.0.2.1"), None).expect("a route");
        (way.mtu, way.link_mtu, a.net.path_mtu_least())
    };
    for (given, how, expected) in [
        (Some(1300), How::Add, (1300, 1300, 1300)),
        (Some(100), How::Replace, (100, 100, 100)),
        (Some(9000), How::Replace, (1500, 1500, 1500)),
        (Some(1300), How::Change, (1300, 1300, 1300)),
    ] {
        assert_eq!(apply(&mut a, &[mtu(FAR, "10.0.0.7", given, how)]), Ok(()));
        assert_eq!(found(&a), expected, "{given:?}");
    }
    assert_eq!(a.net.routes().last().and_then(|route| route.mtu), Some(1300));
    // A report lowers it further.
    a.net.set_path_mtu(a.now, (ip("10.0.0.1"), ip("192.0.2.1")), None, 1200);
    assert_eq!(found(&a), (1200, 1300, 1200));
    let remove = |mtu| Change::RemoveRoute(RouteSpec { mtu, ..route(FAR, None) });
    assert_eq!(apply(&mut a, &[remove(Some(1400))]), Err((0, Fault::NoRoute)));
    assert_eq!(apply(&mut a, &[remove(Some(1300))]), Ok(()));
    assert_eq!(a.net.data.snapshot.fib.mtu_least, u16::MAX);
}

const FAR: &str = "192.0.2.0/24";

/// Returns the routers of the routes to a network, in order.
fn routers(host: &Host, to: &str) -> Vec<String> {
    let routes = host.net.routes().filter(|route| route.prefix == prefix(to));
    routes.filter_map(|route| Some(route.next_hop?.to_string())).collect()
}

#[test]
fn appended_routers_share_a_route_that_is_replaced_and_removed_as_one() {
    let mut a = Host::a().settled();
    let to = "0.0.0.0/0";
    let by = |via, how| Change::SetRoute(route(to, Some(via)), how);
    let three =
        [by("10.0.0.7", How::Add), by("10.0.0.8", How::Append), by("10.0.0.9", How::Append)];
    assert_eq!(apply(&mut a, &three), Ok(()));
    assert_eq!(routers(&a, to), ["10.0.0.7", "10.0.0.8", "10.0.0.9"]);
    assert_eq!(apply(&mut a, &[by("10.0.0.8", How::Append)]), Err((0, Fault::Exists)));
    assert_eq!(apply(&mut a, &[by("10.0.0.6", How::Add)]), Err((0, Fault::Exists)));
    // If a router is named, only its route is removed.
    assert_eq!(apply(&mut a, &[Change::RemoveRoute(route(to, Some("10.0.0.8")))]), Ok(()));
    assert_eq!(routers(&a, to), ["10.0.0.7", "10.0.0.9"]);
    let worse = RouteSpec { metric: Some(5), ..route(to, Some("10.0.0.5")) };
    assert_eq!(apply(&mut a, &[Change::SetRoute(worse, How::Append)]), Ok(()));
    assert_eq!(apply(&mut a, &[by("10.0.0.6", How::Replace)]), Ok(()));
    assert_eq!(routers(&a, to), ["10.0.0.5", "10.0.0.6"], "in the order of adding");
    assert_eq!(apply(&mut a, &[by("10.0.0.7", How::Append)]), Ok(()));
    assert_eq!(apply(&mut a, &[Change::RemoveRoute(route(to, None))]), Ok(()));
    assert_eq!(routers(&a, to), ["10.0.0.5"]);
    let neighbor =
        Change::SetNeighbor { iface: ETH, addr: ip("10.0.0.9"), mac: MAC_B, how: How::Append };
    assert_eq!(apply(&mut a, &[neighbor]), Err((0, Fault::Invalid)));
}

#[test]
fn addresses_end_with_their_lifetime() {
    let mut a = Host::a().settled();
    let lifetime = |seconds| Change::SetLifetime {
        iface: ETH,
        addr: ip("10.5.0.1"),
        lifetime: Some(Duration::from_secs(seconds)),
    };
    assert_eq!(apply(&mut a, &[lifetime(1)]), Err((0, Fault::NoAddress)));
    assert_eq!(apply(&mut a, &[address("10.5.0.1/24"), lifetime(100)]), Ok(()));
    let known = |a: &Host| {
        let all = a.net.addresses(ETH);
        all.into_iter().find(|known| known.addr() == ip("10.5.0.1"))
    };
    let found = known(&a).expect("it is there");
    assert_eq!(found.valid_until, Some(a.now + Duration::from_secs(100)));
    assert_eq!(found.preferred_until, found.valid_until);
    // An extension replaces the lifetime.
    a.pass(Duration::from_secs(99));
    assert_eq!(apply(&mut a, &[lifetime(100)]), Ok(()));
    a.pass(Duration::from_secs(99));
    assert!(a.net.is_local(ip("10.5.0.1")));
    a.pass(Duration::from_secs(2));
    assert_eq!(known(&a), None);
    assert!(!a.net.is_local(ip("10.5.0.1")));
    assert!(a.net.routes().all(|route| route.prefix != prefix("10.5.0.0/24")));
}
