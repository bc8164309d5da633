//! Tests of routers: selection, failover, and lifetimes from advertisements.

use std::collections::BTreeSet;

use towpath_wire::ndp::RouteInfo;

use super::*;

/// Creates a message of the router `fe80::NUMBER`, with options that were emitted before.
fn from_numbered(number: u16, message: &Message, options: &[u8]) -> Vec<u8> {
    let (src, mac) = numbered(number);
    let mut bytes = vec![0; 100];
    let len = message.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend_from_slice(options);
    icmpv6::fill_checksum(&mut bytes, src, addr::ALL_NODES);
    let ends = (src.to_string(), addr::ALL_NODES.to_string());
    let packet = ipv6_packet(&ends.0, &ends.1, IpProtocol::ICMPV6, 255, &bytes);
    frame(MacAddr::from_multicast_v6(addr::ALL_NODES), mac, EtherType::IPV6, &packet)
}

fn numbered(number: u16) -> (Ipv6Addr, MacAddr) {
    let [hi, lo] = number.to_be_bytes();
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number), MacAddr([2, 0, 0, 1, hi, lo]))
}

fn advert_of(number: u16) -> Message {
    let Message::RouterAdvert(advert) = advert(1800) else { panic!("it is one") };
    Message::RouterAdvert(RouterAdvert { source_ll: Some(numbered(number).1), ..advert })
}

fn emitted<const LEN: usize>(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    assert_eq!(emit(&mut bytes), LEN);
    bytes
}

fn hop(host: &Host, to: &str) -> IpAddr {
    host.net.route(host.now, None, ip(to), None).unwrap().next_hop
}

fn send_through(host: &mut Host, to: &str) {
    let route = host.net.route(host.now, None, ip(to), None).unwrap();
    let packet = udp_packet(&mut host.pool, 1);
    let out = Ip {
        protocol: IpProtocol::UDP.0,
        ttl: None,
        tos: 0,
        fragmenting: Fragmenting::Anywhere,
        flow_label: 0,
    };
    let (now, pool) = (host.now, &mut host.pool);
    host.net.send(now, &route, route.src, ip(to), out, packet, Some(6), pool).unwrap();
}

/// Returns the addresses in ARP requests sent since the last call.
fn arp_questions(host: &mut Host) -> Vec<IpAddr> {
    let frames = host.sent();
    let asked = frames.iter().filter_map(|frame| {
        let (header, at) = ethernet::Header::parse(frame).ok()?;
        let (message, _) = arp::ArpPacket::parse(&frame[at..]).ok()?;
        let question = header.ethertype == EtherType::ARP && message.op == arp::ArpOp::Request;
        (question && message.sender_ip != message.target_ip).then_some(message.target_ip.into())
    });
    asked.collect()
}

fn arp_frame(op: arp::ArpOp, sender: (&str, MacAddr), target: &str) -> Vec<u8> {
    let message = arp::ArpPacket {
        op,
        sender_mac: sender.1,
        sender_ip: sender.0.parse().unwrap(),
        target_mac: MAC_A,
        target_ip: target.parse().unwrap(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    frame(MAC_A, sender.1, EtherType::ARP, &bytes)
}

/// Returns a host with two default routers, of which the preferred one has failed.
fn failed_over() -> Host {
    let mut a = Host::a();
    a.pass(Duration::from_secs(3));
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.8")), ETH, 1);
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 2);
    send_through(&mut a, "8.8.8.8");
    a.pass(Duration::from_secs(4));
    assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.9"));
    send_through(&mut a, "8.8.8.8");
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.9", MAC_B), "10.0.0.1"));
    a.sent();
    a
}

#[test]
fn a_router_that_answers_again_is_used_again() {
    let mut a = failed_over();
    let mut asked_at = Vec::new();
    for second in 0..150 {
        send_through(&mut a, "8.8.8.8");
        a.pass(Duration::from_secs(1));
        asked_at
            .extend(arp_questions(&mut a).iter().filter(|q| **q == ip("10.0.0.8")).map(|_| second));
        // The second router answers, and gets the packets.
        a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.9", MAC_B), "10.0.0.1"));
        assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.9"));
    }
    // The failed router is probed once a minute (RFC 4191 §3.5), while packets use its route.
    assert_eq!(asked_at.len(), 2);
    assert!((60..=61).contains(&(asked_at[1] - asked_at[0])));
    a.pass(Duration::from_secs(300));
    assert!(!arp_questions(&mut a).contains(&ip("10.0.0.8")));

    send_through(&mut a, "8.8.8.8");
    assert!(arp_questions(&mut a).contains(&ip("10.0.0.8")));
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.8", ROUTER_MAC), "10.0.0.1"));
    assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.8"));
}

/// If one of two links is lost, all flows use the router on the other link, and the neighbours on
/// the lost link are removed.
#[test]
fn routers_behind_a_lost_link_are_left_at_once() {
    let mut a = Host::a();
    let second = InterfaceConfig { name: "eth1".into(), ..eth0(&["10.1.0.1/24"]) };
    let far = a.net.add_interface(a.now, second);
    a.pass(Duration::from_secs(3));
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.8")), ETH, 5);
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.1.0.8")), far, 5);
    let hops = |a: &Host| -> BTreeSet<IpAddr> {
        (0..50).map(|n| hop(a, &format!("203.0.113.{n}"))).collect()
    };
    let both = BTreeSet::from([ip("10.0.0.8"), ip("10.1.0.8")]);
    assert_eq!(hops(&a), both);
    a.receive(&arp_frame(arp::ArpOp::Request, ("10.0.0.8", ROUTER_MAC), "10.0.0.1"));
    assert_eq!(a.net.neighbors().count(), 1);

    let before = a.net.route_generation();
    a.net.set_carrier(a.now, ETH, false);
    assert!(a.net.route_generation() > before, "kept routes are looked up anew");
    assert_eq!(hops(&a), [ip("10.1.0.8")].into());
    assert_eq!(a.net.neighbors().count(), 0);
    // Neither a late reply nor a new route restores the lost link.
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.8", ROUTER_MAC), "10.0.0.1"));
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 5);
    assert_eq!(hops(&a), [ip("10.1.0.8")].into());

    a.net.set_carrier(a.now, ETH, true);
    assert_eq!(hops(&a).len(), 3);
    // If all links are lost, the routes stay in use, as if no router answered.
    a.net.set_carrier(a.now, ETH, false);
    a.net.set_carrier(a.now, far, false);
    assert_eq!(hops(&a).len(), 1);
}

#[test]
fn a_router_that_announces_itself_again_is_asked_and_used() {
    let mut a = failed_over();
    a.receive(&arp_frame(arp::ArpOp::Request, ("10.0.0.8", ROUTER_MAC), "10.0.0.8"));
    assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.9"));
    assert_eq!(arp_questions(&mut a), [ip("10.0.0.8")]);
    // Only one solicitation is pending, however often the router announces itself.
    for _ in 0..10 {
        a.receive(&arp_frame(arp::ArpOp::Request, ("10.0.0.8", ROUTER_MAC), "10.0.0.8"));
    }
    assert!(arp_questions(&mut a).is_empty());
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.8", ROUTER_MAC), "10.0.0.1"));
    assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.8"));

    // A failed router is usable again after it sent a request, which contains its MAC address.
    let mut a = failed_over();
    a.receive(&arp_frame(arp::ArpOp::Request, ("10.0.0.8", ROUTER_MAC), "10.0.0.1"));
    assert_eq!(hop(&a, "8.8.8.8"), ip("10.0.0.8"));
}

#[test]
fn when_no_router_answers_each_is_tried() {
    let mut a = failed_over();
    a.pass(Duration::from_secs(60));
    for _ in 0..3 {
        send_through(&mut a, "8.8.8.8");
        a.pass(Duration::from_secs(10));
    }
    a.sent();
    let mut tried = Vec::new();
    for _ in 0..4 {
        tried.push(hop(&a, "8.8.8.8"));
        send_through(&mut a, "8.8.8.8");
        a.pass(Duration::from_secs(10));
    }
    assert_ne!(tried[0], tried[1]);
    assert_eq!(tried[..2], tried[2..]);
}

fn neighbor_advert(number: u16, router: bool, override_: bool, mac: MacAddr) -> Message {
    let target = numbered(number).0;
    Message::NeighborAdvert { router, solicited: false, override_, target, target_ll: Some(mac) }
}

#[test]
fn only_a_router_that_says_so_itself_is_one_no_longer() {
    let mut host = slaac_host();
    host.receive(&from_numbered(1, &advert_of(1), &[]));
    let router = || ip("fe80::1");
    let is_used = |host: &Host| {
        host.net.routes().any(|r| r.prefix == Prefix::ALL_V6 && r.next_hop == Some(router()))
    };
    assert!(is_used(&host));
    // Without the override flag, another link-layer address changes nothing (RFC 4861 §7.2.5).
    host.receive(&from_numbered(1, &neighbor_advert(1, false, false, MAC_B), &[]));
    assert!(is_used(&host));
    host.receive(&from_numbered(1, &neighbor_advert(1, false, true, numbered(1).1), &[]));
    assert!(!is_used(&host));

    // A neighbour without entry cannot lose its IsRouter flag.
    let mut host = slaac_host();
    let Message::RouterAdvert(silent) = advert_of(1) else { panic!("it is one") };
    let silent = Message::RouterAdvert(RouterAdvert { source_ll: None, ..silent });
    host.receive(&from_numbered(1, &silent, &[]));
    assert!(host.net.neighbors().next().is_none());
    host.receive(&from_numbered(1, &neighbor_advert(1, false, true, MAC_B), &[]));
    assert!(is_used(&host));
}

#[test]
fn nobody_locks_out_routers_that_come_later() {
    let mut host = slaac_host();
    // A router advertises as many routes and prefixes as fit, with infinite lifetimes.
    let mut options = Vec::new();
    for n in 0..40 {
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, n, 0, 0, 0, 0);
        let preference = ndp::Preference::High;
        let route = RouteInfo { prefix, len: 64, preference, lifetime_s: u32::MAX };
        options.extend(emitted::<{ RouteInfo::LEN }>(|buf| route.emit(buf)));
    }
    host.receive(&from_numbered(0x666, &advert_of(0x666), &options));
    for n in 0..40 {
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, n, 0, 0, 0, 0);
        let info = PrefixInfo { prefix, autonomous: false, ..announced(u32::MAX, u32::MAX) };
        let option = emitted::<{ PrefixInfo::LEN }>(|buf| info.emit(buf));
        host.receive(&from_numbered(0x666, &advert_of(0x666), &option));
    }
    let option = emitted::<{ PrefixInfo::LEN }>(|buf| announced(7200, 3600).emit(buf));
    host.receive(&from_numbered(1, &advert_of(1), &option));
    let learnt = |host: &Host, prefix: Prefix, hop: Option<IpAddr>| {
        host.net.routes().any(|route| route.prefix == prefix && route.next_hop == hop)
    };
    assert!(learnt(&host, Prefix::ALL_V6, Some(ip("fe80::1"))));
    assert!(learnt(&host, prefix("2001:db8::/64"), None));

    // Many other routers do not lock it out, either: its next advertisement adds it again.
    for n in 100..200 {
        host.receive(&from_numbered(n, &advert_of(n), &[]));
    }
    host.receive(&from_numbered(1, &advert_of(1), &option));
    assert!(learnt(&host, Prefix::ALL_V6, Some(ip("fe80::1"))));
    let defaults = host.net.routes().filter(|route| route.prefix == Prefix::ALL_V6);
    assert!((2..=8).contains(&defaults.count()));
}

#[test]
fn what_a_router_repeats_makes_nobody_look_for_routes_again() {
    let mut host = slaac_host();
    let mut said = from_numbered(1, &advert_of(1), &[]);
    host.receive(&said);
    host.pass(Duration::from_secs(5));
    let before = host.net.route_generation();
    host.receive(&said);
    // A neighbour advertisement changes no route, either.
    said = from_numbered(7, &neighbor_advert(7, false, true, numbered(7).1), &[]);
    host.receive(&said);
    assert_eq!(host.net.route_generation(), before);
}

/// Returns the times of router solicitations since the last call, in milliseconds from `start`.
fn solicitations(host: &mut Host, start: Instant, until_ms: u64) -> Vec<u64> {
    let mut at = Vec::new();
    while host.now < start + Duration::from_millis(until_ms) {
        host.pass(Duration::from_millis(10));
        let asked = discovery(host);
        let asked = asked.iter().filter(|m| matches!(m.2, Message::RouterSolicit { .. }));
        at.extend(asked.map(|_| host.now.since(start).as_millis() as u64));
    }
    at
}

#[test]
fn solicitation_ends_with_a_default_router_only() {
    let heard = |lifetime_s, after_ms| {
        let mut a = Host::new(MAC_A, &[], |config| config.slaac = true);
        let start = a.now;
        let mut asked = solicitations(&mut a, start, after_ms);
        let Message::RouterAdvert(advert) = advert_of(1) else { panic!("it is one") };
        let message = Message::RouterAdvert(RouterAdvert { lifetime_s, ..advert });
        a.receive(&from_numbered(1, &message, &[]));
        asked.extend(solicitations(&mut a, start, 20_000));
        asked.len()
    };
    assert_eq!(heard(0, 3000), 3, "a router that is no default router");
    assert_eq!(heard(0, 0), 3);
    assert_eq!(heard(1800, 3000), 1);
    assert_eq!(heard(1800, 0), 1, "what was not asked for may not be all");
}

#[test]
fn routers_set_the_time_between_solicitations() {
    for (retrans_ms, every) in [(0, 1000), (250, 250), (1, 10), (u32::MAX, 10_000)] {
        let mut a = slaac_host();
        a.pass(Duration::from_secs(5));
        let Message::RouterAdvert(advert) = advert_of(1) else { panic!("it is one") };
        let message = Message::RouterAdvert(RouterAdvert { retrans_ms, ..advert });
        let mut option = [0; PrefixInfo::LEN];
        announced(7200, 3600).emit(&mut option);
        a.receive(&from_numbered(1, &message, &option));

        // Duplicate detection takes a random delay, a solicitation, and the interval that was set.
        a.sent();
        let mut detected = None;
        while detected.is_none() {
            a.pass(Duration::from_millis(1));
            let asked = discovery(&mut a);
            detected = asked.iter().any(|m| m.0.is_unspecified()).then_some(a.now);
        }
        let state = |a: &Host| global(a).unwrap().state;
        a.pass(Duration::from_millis(every - 1));
        assert_eq!(state(&a), AddressState::Tentative, "{retrans_ms}");
        a.pass(Duration::from_millis(2));
        assert_eq!(state(&a), AddressState::Preferred, "{retrans_ms}");

        a.sent();
        send_through(&mut a, "2001:db8::7");
        let start = a.now;
        let mut asked_at = Vec::new();
        while a.now < start + Duration::from_millis(4 * every) {
            let asked = discovery(&mut a);
            let asked = asked.iter().filter(|m| matches!(m.2, Message::NeighborSolicit { .. }));
            asked_at.extend(asked.map(|_| a.now.since(start).as_millis() as u64));
            a.pass(Duration::from_millis(1));
        }
        assert_eq!(asked_at, [0, every, 2 * every], "{retrans_ms}");
    }
}

#[test]
fn what_routers_say_of_neighbour_discovery_is_nothing_to_arp() {
    let mut a = Host::new(MAC_A, &["10.0.0.1/24"], |config| config.slaac = true);
    a.pass(Duration::from_secs(5));
    let Message::RouterAdvert(advert) = advert_of(1) else { panic!("it is one") };
    let message = Message::RouterAdvert(RouterAdvert { retrans_ms: 100, ..advert });
    a.receive(&from_numbered(1, &message, &[]));
    a.sent();
    send_through(&mut a, "10.0.0.77");
    a.pass(Duration::from_millis(900));
    assert_eq!(arp_questions(&mut a), [ip("10.0.0.77")]);
}

#[test]
fn an_option_that_makes_no_sense_does_not_cost_the_others() {
    let mut a = slaac_host();
    a.pass(Duration::from_secs(5));
    let mut options = Vec::new();
    for len in [129, 64] {
        options.extend(emitted::<{ PrefixInfo::LEN }>(|buf| {
            PrefixInfo { len, ..announced(7200, 3600) }.emit(buf)
        }));
    }
    options.extend([24, 1, 8, 0, 0, 0, 0, 9]);
    a.receive(&from_numbered(1, &advert_of(1), &options));
    assert_eq!(hop(&a, "2001:4860::1"), IpAddr::V6(numbered(1).0));
    assert!(global(&a).is_some());
}
