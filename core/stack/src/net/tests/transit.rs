//! The short way of a router for batches, held against the way of single packets.

use proptest::prelude::*;
use towpath_filter::{Action, Hook, Hooks, Ports, Rule, RuleList, Rules};

use super::forward::{TUN, from_to, router, router_with, v4, v6};
use super::*;
use crate::net::config::SourceCheck;
use towpath_wire::checksum;

/// Changes of a good packet to another host: mostly none, so that runs are long.
#[derive(Debug, Clone)]
enum Fault {
    None,
    /// Another byte at a place of the frame, with the right checksum of IP.
    Byte(usize, u8),
    /// The same, with the checksum of before.
    Spoilt(usize, u8),
    /// Another source and destination.
    Ends(&'static str, &'static str),
    /// Bytes behind the packet are missing, or there is padding.
    Len(usize),
    Vlan(u16),
    Partial,
    Large,
    V6,
}

const CHECKS: [SourceCheck; 3] = [SourceCheck::Off, SourceCheck::Loose, SourceCheck::Strict];

const ENDS: [&str; 12] = [
    "10.0.0.2",
    "10.0.0.1",
    "10.0.0.255",
    "10.1.0.1",
    "10.1.0.2",
    "192.0.2.77",
    "198.51.100.1",
    "203.0.113.7",
    "169.254.1.1",
    "224.0.0.5",
    "255.255.255.255",
    "127.0.0.1",
];

fn fault() -> impl Strategy<Value = Fault> {
    let ends = || prop::sample::select(&ENDS[..]);
    prop_oneof![
        12 => Just(Fault::None),
        3 => (0usize..42, any::<u8>()).prop_map(|(at, to)| Fault::Byte(at, to)),
        1 => (0usize..42, any::<u8>()).prop_map(|(at, to)| Fault::Spoilt(at, to)),
        3 => (ends(), ends()).prop_map(|(src, dst)| Fault::Ends(src, dst)),
        1 => (0usize..80).prop_map(Fault::Len),
        1 => (0u16..3).prop_map(Fault::Vlan),
        1 => Just(Fault::Partial),
        1 => Just(Fault::Large),
        1 => Just(Fault::V6),
    ]
}

/// A frame to a router, and what came with it.
fn given(host: &mut Host, fault: &Fault, n: usize) -> Packet {
    let len = if matches!(fault, Fault::Large) { 1400 } else { 8 + n % 40 };
    let far = format!("192.0.2.{}", n % 7 + 1);
    let mut bytes = from_to(&v4(9, len, |_| {}), "10.0.0.2", &far);
    match fault {
        Fault::Ends(src, dst) => bytes = from_to(&bytes, src, dst),
        Fault::V6 => bytes = v6(9, IpProtocol::UDP, &[0; 8]),
        _ => {}
    }
    let ethertype = if bytes[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let mut frame = frame(MAC_A, MAC_B, ethertype, &bytes);
    match *fault {
        Fault::Byte(at, to) => {
            frame[at] = to;
            frame[24..26].fill(0);
            let sum = checksum::finish(checksum::sum(&frame[14..34], 0));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        Fault::Spoilt(at, to) => frame[at] = to,
        Fault::Len(len) => frame.resize(len, 0),
        _ => {}
    }
    let mut packet = host.packet(&frame);
    match *fault {
        Fault::Vlan(tag) => packet.meta.vlan = Some(tag),
        Fault::Partial => packet.meta.checksum = Checksum::Partial { start: 34, offset: 6 },
        _ => {}
    }
    packet
}

fn rules() -> Rules {
    let of = |id, hook, port, action| Rule {
        hooks: Hooks::NONE.with(hook),
        sport: port,
        ..Rule::new(id, action)
    };
    let ports = |first, last| Some(Ports { first, last });
    let mut list = RuleList::new();
    for rule in [
        of(1, Hook::Prerouting, ports(0, 30), Action::Accept),
        of(2, Hook::Forward, ports(0, 20), Action::Accept),
        of(3, Hook::Forward, ports(200, 400), Action::Reject),
        of(4, Hook::Postrouting, ports(40, 60), Action::Drop),
        of(5, Hook::Input, None, Action::Drop),
        of(6, Hook::Prerouting, ports(60, 90), Action::Drop),
    ] {
        list.insert(rule);
    }
    Rules::compile(&list, |_| None).unwrap()
}

/// Everything that can be seen of a router after a batch.
fn seen(host: &mut Host) -> impl PartialEq + core::fmt::Debug + use<> {
    let dropped: Vec<_> = core::iter::from_fn(|| host.net.take_dropped()).collect();
    let out: Vec<_> = host.out().iter().map(|it| (bytes_of(it), it.meta.checksum)).collect();
    let counts = host.net.rules().map(|set| {
        let rules = (0..set.rules().len() as u32).map(|n| set.count_of_rule(n));
        let defaults = Hook::ALL.map(|hook| set.count_of_default(hook));
        (rules.collect::<Vec<_>>(), defaults)
    });
    (host.net.counters(), host.net.traffic().to_vec(), dropped, out, host.sent(), counts)
}

proptest! {
    #[test]
    fn a_batch_goes_the_way_that_its_packets_go_alone(
        faults in prop::collection::vec(fault(), 1..90),
        check in prop::sample::select(&CHECKS[..]),
        with_rules in any::<bool>(),
    ) {
        let forwarding = Forwarding { source_check: check };
        let [mut alone, mut together] = [(); 2].map(|()| {
            let mut host = router_with(forwarding, NONE);
            // More than one next hop, some of which nobody has asked for yet.
            let (far, near) = (prefix("203.0.113.0/24"), prefix("198.51.100.0/24"));
            assert!(host.net.add_route(far, Some(ip("10.0.0.2")), ETH, 0));
            assert!(host.net.add_route(near, Some(ip("10.0.0.77")), ETH, 0));
            host.net.set_rules(with_rules.then(rules));
            host.net.output(TUN);
            host
        });
        for (n, fault) in faults.iter().enumerate() {
            let packet = given(&mut alone, fault, n);
            alone.net.receive(alone.now, ETH, packet, &mut alone.pool);
        }
        let mut batch: Batch =
            (0..).zip(&faults).map(|(n, fault)| given(&mut together, fault, n)).collect();
        let Host { net, pool, now } = &mut together;
        net.plan_transit(ETH, &batch);
        loop {
            net.forward_run(*now, ETH, &mut batch, pool);
            let Some(packet) = batch.pop_front() else { break };
            net.receive(*now, ETH, packet, pool);
        }
        prop_assert_eq!(seen(&mut alone), seen(&mut together));
    }
}

#[test]
fn packets_without_a_fault_are_sent_on_in_one_run() {
    let mut host = router();
    let frames: Vec<_> = (0..70).map(|n| given(&mut host, &Fault::None, n)).collect();
    let mut batch: Batch = frames.into();
    host.net.plan_transit(ETH, &batch);
    let bytes = host.net.forward_run(host.now, ETH, &mut batch, &mut host.pool);
    assert_eq!((batch.len(), host.out().len()), (0, 70));
    assert!(bytes > 70 * 42);
}

/// The error waits for the neighbour that it goes to, which control knows.
#[test]
fn a_refused_packet_in_a_run_is_answered_at_once() {
    let mut host = router_with(Forwarding::default(), NONE);
    host.net.set_rules(Some(rules()));
    let [refused, last] = [Fault::Byte(35, 200), Fault::None].map(|it| given(&mut host, &it, 0));
    let mut batch: Batch = [refused, last].into();
    host.net.plan_transit(ETH, &batch);
    host.net.forward_run(host.now, ETH, &mut batch, &mut host.pool);
    assert_eq!((batch.len(), host.sent().len()), (1, 1));
}

/// A frame with padding behind an IP packet that has no transport header at all.
#[test]
fn padding_has_no_ports() {
    for in_batch in [false, true] {
        let mut host = router();
        host.net.set_rules(Some(rules()));
        let packet = given(&mut host, &Fault::Byte(17, 20), 0);
        let mut batch: Batch = [packet].into();
        if in_batch {
            host.net.plan_transit(ETH, &batch);
            host.net.forward_run(host.now, ETH, &mut batch, &mut host.pool);
        }
        for packet in batch {
            host.net.receive(host.now, ETH, packet, &mut host.pool);
        }
        let out = host.out().len();
        let set = host.net.rules().unwrap();
        assert_eq!((out, set.count_of_rule(0).packets), (1, 0), "{in_batch}");
    }
}
