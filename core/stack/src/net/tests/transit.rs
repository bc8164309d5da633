//! Compares a router's fast path for batches with the path of single packets.

use proptest::prelude::*;
use towpath_filter::{Action, Hook, Hooks, PortMatch, Ports, Rule, RuleList, Rules};

use super::forward::{TUN, from_to, router, router_with, v4, v6};
use super::*;
use crate::net::config::SourceCheck;
use towpath_wire::checksum;

/// Fault in a valid packet to another host. Most packets have none, so that runs are long.
#[derive(Debug, Clone)]
enum Fault {
    None,
    /// Another byte at an offset of the frame, with a valid IP checksum.
    Byte(usize, u8),
    /// Another byte at an offset of the frame, with the old IP checksum.
    Spoilt(usize, u8),
    /// Another source and destination.
    Ends(&'static str, &'static str),
    /// Bytes at the packet's end are missing, or padding follows.
    Len(usize),
    Vlan(u16),
    Partial,
    Large,
    V6,
    /// Longer than the smallest MTU of the routes, with or without DF.
    Long(bool),
}

/// Settings and routes of a router.
#[derive(Debug, Clone)]
struct World {
    check: SourceCheck,
    with_rules: bool,
    /// MTU of the route that most packets use.
    mtu: Option<u32>,
    /// Further routers for the same network, with the MTUs of their routes.
    others: Vec<(&'static str, Option<u32>)>,
    /// The router `SILENT` is known not to answer.
    has_failed: bool,
}

/// Network of most destinations.
const FAR: &str = "192.0.2.0/24";
/// Router on `eth0` whose MAC address is unknown.
const SILENT: &str = "10.0.0.77";
const ROUTERS: [&str; 4] = ["10.1.0.3", "10.1.0.4", "10.0.0.2", SILENT];
const MTUS: [Option<u32>; 5] = [None, None, Some(68), Some(90), Some(1400)];

fn world() -> impl Strategy<Value = World> {
    let mtu = || prop::sample::select(&MTUS[..]);
    let routers = prop::sample::subsequence(&ROUTERS[..], 0..=ROUTERS.len());
    let mtus = prop::collection::vec(mtu(), ROUTERS.len());
    let check = prop::sample::select(&CHECKS[..]);
    (check, any::<bool>(), mtu(), routers, mtus, any::<bool>()).prop_map(
        |(check, with_rules, mtu, routers, mtus, has_failed)| {
            let others = routers.into_iter().zip(mtus).collect();
            World { check, with_rules, mtu, others, has_failed }
        },
    )
}

impl World {
    fn router(&self) -> Host {
        let mut host = router_with(Forwarding { source_check: self.check }, NONE);
        // Several next hops, some of them unresolved, and several equal routes to the sources.
        let mut changes = vec![
            by("203.0.113.0/24", "10.0.0.2", None, How::Add),
            by("198.51.100.0/24", SILENT, None, How::Add),
            by("198.51.100.0/24", "10.1.0.2", None, How::Append),
            by(FAR, "10.1.0.2", self.mtu, How::Replace),
        ];
        let share = |&(router, mtu)| by(FAR, router, mtu, How::Append);
        changes.extend(self.others.iter().map(share));
        host.net.apply(host.now, &changes).unwrap();
        if self.has_failed {
            let packet = from_to(&v4(9, 8, |_| {}), "10.0.0.2", SILENT);
            host.transit(&packet);
            host.pass(Duration::from_secs(5));
        }
        host.net.set_rules(self.with_rules.then(rules));
        host.sent();
        host.net.output(TUN);
        host
    }
}

fn by(to: &str, router: &str, mtu: Option<u32>, how: How) -> Change {
    let spec = RouteSpec { next_hop: Some(ip(router)), mtu, ..RouteSpec::to(prefix(to)) };
    Change::SetRoute(spec, how)
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
        2 => any::<bool>().prop_map(Fault::Long),
    ]
}

/// Creates a frame to a router, with `fault` in headers or metadata.
fn given(host: &mut Host, fault: &Fault, n: usize) -> Packet {
    let len = match fault {
        Fault::Large => 1400,
        Fault::Long(_) => 48 + n % 40,
        _ => 8 + n % 40,
    };
    let is_whole = matches!(fault, Fault::Long(true));
    let far = format!("192.0.2.{}", n % 7 + 1);
    let mut bytes = v4(9, len, |header| header.dont_fragment = is_whole);
    bytes = from_to(&bytes, "10.0.0.2", &far);
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
    let ports = |first, last| Some(PortMatch::One(Ports { first, last }));
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

/// Visible state of a router after a batch.
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

impl Host {
    /// Handles a batch received on `eth0`. Returns the number of packets passed to `receive`.
    fn take_batch(&mut self, batch: &mut Batch) -> usize {
        let Self { net, pool, now } = self;
        net.plan_transit(ETH, batch);
        for received in 0.. {
            net.forward_run(*now, ETH, batch, pool);
            let Some(packet) = batch.pop_front() else { return received };
            net.receive(*now, ETH, packet, pool);
        }
        unreachable!()
    }
}

proptest! {
    #[test]
    fn a_batch_goes_the_way_that_its_packets_go_alone(
        faults in prop::collection::vec(fault(), 1..90),
        world in world(),
    ) {
        let [mut alone, mut together] = [(); 2].map(|()| world.router());
        for (n, fault) in faults.iter().enumerate() {
            let packet = given(&mut alone, fault, n);
            alone.net.receive(alone.now, ETH, packet, &mut alone.pool);
        }
        let mut batch: Batch =
            (0..).zip(&faults).map(|(n, fault)| given(&mut together, fault, n)).collect();
        together.take_batch(&mut batch);
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

/// The ICMP error waits until control has resolved the neighbour that it is sent to.
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

/// Creates a frame to the router, with a packet between two other hosts.
fn between(host: &mut Host, src: &str, dst: &str, len: usize) -> Packet {
    let bytes = from_to(&v4(9, len, |_| {}), src, dst);
    host.packet(&frame(MAC_A, MAC_B, EtherType::IPV4, &bytes))
}

#[test]
fn the_mtu_of_a_route_holds_for_the_short_way() {
    let mut host = router();
    let narrow = by(FAR, "10.1.0.2", Some(900), How::Replace);
    host.net.apply(host.now, &[narrow]).unwrap();
    for (len, received, sizes) in [(880, 0, vec![900]), (881, 1, vec![900, 21])] {
        let mut batch: Batch = [between(&mut host, "10.0.0.2", "192.0.2.1", len)].into();
        assert_eq!(host.take_batch(&mut batch), received, "{len}");
        let sent: Vec<_> = host.out().iter().map(Packet::len).collect();
        assert_eq!(sent, sizes, "{len}");
    }
}

#[test]
fn equal_routes_share_flows_alike_on_both_ways() {
    let mut host = router();
    host.net.apply(host.now, &[by(FAR, "10.0.0.2", None, How::Append)]).unwrap();
    let mut taken = Vec::new();
    for n in 0..64 {
        // Senders behind other routers, to which no redirect is sent.
        let (src, dst) = (format!("198.51.100.{}", 2 + n % 8), format!("192.0.2.{n}"));
        let mut long = 0;
        let mut ways = [true, false].map(|is_alone| {
            let packet = between(&mut host, &src, &dst, 8);
            if is_alone {
                assert!(host.net.receive(host.now, ETH, packet, &mut host.pool).is_none());
            } else {
                long = host.take_batch(&mut [packet].into());
            }
            (host.sent().len(), host.out().len())
        });
        assert_eq!(ways[0], ways[1], "{src} to {dst}");
        assert_eq!(long, ways[1].0, "the short way takes what leaves by another interface");
        taken.extend(ways.iter_mut().map(|(back, _)| *back));
    }
    let back: usize = taken.iter().sum();
    assert!((32..96).contains(&back), "{back} of 128 took one of two routes");
}

#[test]
fn each_of_equal_routes_back_will_do_on_the_short_way() {
    let strict = Forwarding { source_check: SourceCheck::Strict };
    let mut host = router_with(strict, NONE);
    let far = "198.51.100.0/24";
    for (change, received, sent) in [
        (by(far, "10.1.0.2", None, How::Add), 1, 0),
        (by(far, "10.0.0.77", None, How::Append), 0, 1),
        (by(far, "10.1.0.2", None, How::Replace), 1, 0),
    ] {
        host.net.apply(host.now, &[change]).unwrap();
        let mut batch: Batch = [between(&mut host, "198.51.100.7", "192.0.2.1", 8)].into();
        let seen = (host.take_batch(&mut batch), host.out().len());
        assert_eq!(seen, (received, sent), "{change:?}");
    }
}
