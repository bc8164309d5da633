//! Timeouts, limits and their counters.

use towpath_conntrack::{
    BYTES_PER_FLOW, Conntrack, FlowClass, FlowEventKind, FlowInfo, FlowRemoval, TrackerLimits,
};

use crate::network::{Network, OWN_WAN, TestPacket, rules};

const SERVER: &str = "198.51.100.7:53";

fn client(n: u32) -> String {
    format!("10.1.{}.{}:4000", n >> 8, n & 0xff)
}

/// Passes a request of a client, the answer, and a second request.
fn converse(net: &mut Network, n: u32) {
    net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    net.back(TestPacket::udp(SERVER, &client(n))).unwrap();
    net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
}

fn small(flows_max: usize, per_source_max: u32) -> TrackerLimits {
    TrackerLimits { flows_max, per_source_max, ..TrackerLimits::default() }
}

#[test]
fn forgets_flows_without_packets() {
    let mut net = Network::new(&["masquerade out wan"]);
    let request = || TestPacket::udp("10.1.0.2:4000", SERVER);
    let port = net.out(request()).unwrap().src_port();
    let answer = || TestPacket::udp("198.51.100.7:53", &format!("{OWN_WAN}:{port}"));
    net.wait(119);
    net.out(request()).unwrap();
    net.wait(119);
    assert_eq!(net.back(answer()).unwrap().ends().1, "10.1.0.2:4000");
    net.wait(299);
    assert_eq!(net.back(answer()).unwrap().ends().1, "10.1.0.2:4000");
    net.wait(302);
    assert_eq!(net.back(answer()).unwrap().ends().1, format!("{OWN_WAN}:{port}"));
    assert_eq!(net.tracker.counters().expired, 1);
}

#[test]
fn packets_of_a_known_flow_remove_expired_flows() {
    let mut net = Network::new(&[]);
    for n in 0..200 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    net.wait(60);
    net.out(TestPacket::udp(&client(0), SERVER)).unwrap();
    net.wait(62);
    let mut left = Vec::new();
    for _ in 0..5 {
        net.out(TestPacket::udp(&client(0), SERVER)).unwrap();
        left.push(net.tracker.len());
    }
    assert_eq!(left, [136, 72, 8, 1, 1], "a bounded number for each packet");
    assert_eq!(net.tracker.counters().expired, 199);
}

#[test]
fn evicts_unanswered_flows_and_keeps_answered_ones() {
    let mut net = Network::with_limits(&[], &small(100, 100));
    for n in 0..50 {
        converse(&mut net, n);
    }
    for n in 50..1000 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    assert_eq!((net.tracker.len(), net.tracker.counters().evicted), (100, 900));
    assert_eq!(net.tracker.len_of(FlowClass::UdpAssured), 50);
    for n in 950..1000 {
        converse(&mut net, n);
    }
    assert!(net.out(TestPacket::udp("10.1.9.9:1", SERVER)).is_none());
    assert_eq!(net.tracker.counters().table_full, 1);
}

/// A forged request makes a server answer, but no second request follows the answer.
#[test]
fn evicts_udp_flows_of_one_request_and_its_answers() {
    let mut net = Network::with_limits(&[], &small(10, 10));
    converse(&mut net, 0);
    for n in 1..30 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
        net.back(TestPacket::udp(SERVER, &client(n))).unwrap();
        net.back(TestPacket::udp(SERVER, &client(n))).unwrap();
    }
    let classes = [FlowClass::UdpAssured, FlowClass::UdpAnswered];
    assert_eq!(classes.map(|class| net.tracker.len_of(class)), [1, 9]);
    assert_eq!(net.tracker.counters().table_full, 0);
}

/// The router answers each ping to itself, so that a forged ping creates an answered flow.
#[test]
fn forged_pings_do_not_make_the_table_full() {
    let mut net = Network::with_limits(&[], &small(10, 10));
    for n in 0..20 {
        let host = format!("203.0.113.{n}");
        net.back(TestPacket::echo(8, &host, OWN_WAN, 1)).unwrap();
        net.pass(0, TestPacket::echo(0, OWN_WAN, &host, 1)).unwrap();
    }
    assert_eq!(net.tracker.len_of(FlowClass::IcmpAnswered), 10);
    assert!(net.out(TestPacket::udp(&client(1), SERVER)).is_some());
    assert_eq!(net.tracker.counters().table_full, 0);
}

#[test]
fn a_full_table_takes_no_more_memory() {
    let mut net = Network::with_limits(&["masquerade out wan"], &small(10, 10));
    let reserved = net.tracker.bytes();
    for n in 0..20 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    assert_eq!((net.tracker.len(), net.tracker.bytes()), (10, reserved));
}

#[test]
fn limits_the_flows_of_a_source() {
    let mut net = Network::with_limits(&[], &small(100, 10));
    for port in 1..=20 {
        let sent = net.out(TestPacket::udp(&format!("10.1.0.2:{port}"), SERVER));
        assert_eq!(sent.is_some(), port <= 10);
    }
    assert_eq!(net.tracker.counters().source_full, 10);
    assert!(net.out(TestPacket::udp("10.1.0.3:1", SERVER)).is_some());
}

/// Opens a flow of the host 10.2.0.`host` with the source port `port`. Returns whether it was
/// refused.
fn is_refused(net: &mut Network, host: u8, port: u16) -> bool {
    net.out(TestPacket::udp(&format!("10.2.0.{host}:{port}"), SERVER)).is_none()
}

/// Returns the number of flows of the host 10.2.0.`host`.
fn flows_of(net: &Network, host: u8) -> usize {
    let src = format!("10.2.0.{host}");
    let (flows, _) = net.tracker.flows(0, 0, usize::MAX);
    flows.iter().filter(|flow| flow.original.src.to_string() == src).count()
}

#[test]
fn the_source_with_the_most_flows_pays_for_a_full_table() {
    let mut net = Network::with_limits(&[], &small(640, 640));
    for n in 0..40 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    // Two hosts open flows in turn. The second one starts later, and has fewer in the end.
    for port in 1..=1000 {
        assert!(!is_refused(&mut net, 1, port));
        assert!(port < 900 || !is_refused(&mut net, 2, port));
    }
    assert_eq!((flows_of(&net, 1), flows_of(&net, 2)), (499, 101));
    let counters = *net.tracker.counters();
    assert_eq!((counters.evicted, counters.source_evicted), (0, 501));
    let is_small = |flow: &FlowInfo| flow.original.src.to_string().starts_with("10.1.");
    assert_eq!(net.tracker.delete(0, is_small), (40, None));
}

/// Forged addresses have one flow each, so none of them is large.
#[test]
fn forged_addresses_evict_the_oldest_flow_of_any_source() {
    let mut net = Network::with_limits(&[], &small(640, 640));
    for port in 1..=10 {
        is_refused(&mut net, 1, port);
    }
    for n in 0..630 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    for port in 1..=5 {
        net.out(TestPacket::udp(&client(700 + port), SERVER)).unwrap();
    }
    assert_eq!(net.tracker.counters().evicted, 5);
    assert_eq!(flows_of(&net, 1), 5);
}

#[test]
fn a_large_source_loses_unanswered_flows_unless_it_has_more_answered_ones() {
    let mut net = Network::with_limits(&[], &small(10, 10));
    let ask = |net: &mut Network, port: u16| is_refused(net, 1, port);
    let answer = |net: &mut Network, port: u16| {
        net.back(TestPacket::udp(SERVER, &format!("10.2.0.1:{port}"))).unwrap();
    };
    (1..=10).for_each(|port| assert!(!ask(&mut net, port)));
    (1..=4).for_each(|port| answer(&mut net, port));
    let classes = [FlowClass::UdpUnanswered, FlowClass::UdpAnswered];
    let lens = |net: &Network| classes.map(|class| net.tracker.len_of(class));
    assert!(!is_refused(&mut net, 2, 1));
    assert_eq!(lens(&net), [6, 4]);
    (6..=9).for_each(|port| answer(&mut net, port));
    assert!(!is_refused(&mut net, 3, 1));
    assert_eq!(lens(&net), [3, 7]);
    assert_eq!(net.tracker.counters().source_evicted, 2);
}

#[test]
fn sources_with_established_flows_leave_room_for_small_ones() {
    let mut net = Network::with_limits(&[], &small(1000, 250));
    for port in 1..=250 {
        for host in 1..=4 {
            let client = format!("10.2.0.{host}:{port}");
            if net.out(TestPacket::udp(&client, SERVER)).is_some() {
                net.back(TestPacket::udp(SERVER, &client)).unwrap();
                net.out(TestPacket::udp(&client, SERVER)).unwrap();
            }
        }
    }
    let lens = [1, 2, 3, 4].map(|host| flows_of(&net, host));
    assert!(lens.iter().all(|len| (235..=245).contains(len)), "{lens:?}");
    assert!(net.tracker.counters().source_full > 0);
    for n in 0..30 {
        converse(&mut net, n);
    }
    assert_eq!(net.tracker.counters().table_full, 0);
}

#[test]
fn counts_exhausted_ports() {
    let mut net = Network::new(&["snat out wan to 192.0.2.5 ports 2000-2009"]);
    for n in 0..11 {
        let sent = net.out(TestPacket::echo(8, &format!("10.1.0.{}", n + 2), "198.51.100.7", 1));
        assert!(n == 10 || sent.is_some(), "{n}");
    }
    assert_eq!(net.tracker.counters().ports_exhausted, 1);
    let of_host = |flow: &FlowInfo| flow.original.src.to_string() == "10.1.0.2";
    assert_eq!(net.tracker.delete(0, of_host), (1, None));
    assert!(net.out(TestPacket::echo(8, "10.1.1.9", "198.51.100.7", 1)).is_some());
}

#[test]
fn tells_the_beginning_and_end_of_flows() {
    let mut net = Network::new(&[]);
    net.out(TestPacket::udp("10.1.0.2:4000", SERVER)).unwrap();
    assert_eq!(net.tracker.delete(0, |_| true), (1, None));
    let kinds: Vec<_> = net.tracker.events(0).map(|event| event.kind).collect();
    assert_eq!(kinds, [FlowEventKind::New, FlowEventKind::Destroyed(FlowRemoval::Deleted)]);
    let next = net.tracker.next_event();
    assert_eq!((next, net.tracker.events(next).count()), (3, 0));
}

#[test]
fn deletes_flows_in_portions() {
    let mut net = Network::new(&[]);
    for n in 0..5000 {
        net.out(TestPacket::udp(&client(n), SERVER)).unwrap();
    }
    assert_eq!(net.tracker.delete(0, |_| true), (4096, Some(4096)));
    assert_eq!(net.tracker.delete(4096, |_| true), (904, None));
    assert!(net.tracker.is_empty());
}

#[test]
fn a_flow_takes_bounded_memory() {
    let flows_max = 1 << 16;
    let tracker = Conntrack::new(&small(flows_max, 1), rules(&[]), [1, 2]);
    assert!(tracker.bytes() <= flows_max * BYTES_PER_FLOW, "{}", tracker.bytes() / flows_max);
}
