//! Tests of rules at the five hooks of a router.

use towpath_filter::{
    Action, Count, Hook, Hooks, Log, Ports, RateLimit, RateUnit, Rule, RuleAction, RuleList, Rules,
};

use super::forward::{TUN_MTU, from_to, introduce, router, v4, v6};
use super::*;

const FAR_V4: &str = "192.0.2.9";

fn rule(id: u32, hook: Hook, action: Action) -> Rule {
    Rule { hooks: Hooks::NONE.with(hook), ..Rule::new(id, action) }
}

fn put(router: &mut Host, rules: impl IntoIterator<Item = Rule>) {
    let mut list = RuleList::new();
    for rule in rules {
        list.insert(rule);
    }
    let compiled = Rules::compile(&list, |name| match name {
        "eth0" => Some(1),
        "tun1" => Some(2),
        _ => None,
    });
    router.net.set_rules(Some(compiled.unwrap()));
}

fn segment(flags: u8) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..4].copy_from_slice(&[4, 0, 0, 80]);
    tcp[4..12].copy_from_slice(&[0, 0, 0, 100, 0, 0, 2, 0]);
    (tcp[12], tcp[13]) = (5 << 4, flags);
    tcp
}

fn tcp_v4(flags: u8) -> Vec<u8> {
    let mut packet = v4(9, 20, |header| header.protocol = IpProtocol::TCP);
    packet[20..].copy_from_slice(&segment(flags));
    packet
}

fn counts(router: &Host) -> Vec<u64> {
    let set = router.net.rules().unwrap();
    (0..set.rules().len() as u32).map(|n| set.count_of_rule(n).packets).collect()
}

#[test]
fn each_hook_sees_its_packets_once() {
    for hook in Hook::ALL {
        let mut router = router();
        put(&mut router, [rule(1, hook, Action::Drop)]);
        let at = |hooks: &[Hook]| u64::from(hooks.contains(&hook));
        // Receive a packet that is forwarded.
        router.transit(&v4(9, 8, |_| {}));
        let transit = at(&[Hook::Prerouting, Hook::Forward, Hook::Postrouting]);
        assert_eq!((counts(&router)[0], router.out().len() as u64), (transit, 1 - transit));
        // Receive an echo request to this host, which is answered.
        let mut ping = v4(9, 8, |header| header.protocol = IpProtocol::ICMP);
        ping[20..28].copy_from_slice(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        router.transit(&from_to(&ping, "10.0.0.2", "10.0.0.1"));
        let refused = at(&[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]);
        assert_eq!(router.sent().len() as u64, 1 - refused, "{hook:?}");
        assert_eq!(counts(&router)[0], transit + refused, "{hook:?}");
        let drops = [DropReason::FilterDrop, DropReason::FilterOutput];
        assert_eq!(drops.map(|of| router.drops(of)).iter().sum::<u64>(), transit + refused);
    }
}

#[test]
fn rules_are_by_ports_and_interfaces_and_the_lowest_decides() {
    let mut router = router();
    let of = |id, port, action| Rule {
        protocol: Some(17),
        dport: Some(Ports { first: port, last: port }.into()),
        iface_in: Some("eth0".into()),
        iface_out: Some("tun1".into()),
        ..rule(id, Hook::Forward, action)
    };
    let to = |port: u16| {
        let mut packet = v4(9, 8, |_| {});
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet
    };
    let rest = rule(9, Hook::Forward, Action::Drop);
    put(&mut router, [of(2, 53, Action::Accept), of(3, 53, Action::Drop), rest]);
    for port in [53, 53, 54] {
        router.transit(&to(port));
    }
    assert_eq!((router.out().len(), counts(&router)), (2, vec![2, 0, 1]));
    let set = router.net.rules().unwrap();
    assert_eq!(set.count_of_rule(0), Count { packets: 2, bytes: 56 });
    assert_eq!(set.count_of_default(Hook::Input), Count::default());
    // A later fragment has no ports.
    let fragment = v4(9, 8, |header| header.fragment_offset = 80);
    router.transit(&fragment);
    assert_eq!(counts(&router), [2, 0, 2]);
    router.net.set_rules(None);
    router.transit(&to(54));
    assert_eq!(router.out().len(), 1);
}

#[test]
fn rejected_packets_are_answered() {
    let mut router = router();
    router.net.set_offloads(ETH, NONE);
    put(&mut router, [rule(1, Hook::Forward, Action::Reject)]);
    router.transit(&v4(9, 8, |_| {}));
    let error = only(router.sent());
    assert_eq!(error[34..36], [3, 13]);
    router.transit(&v6(9, IpProtocol::UDP, &[0; 8]));
    let error = only(router.sent());
    assert_eq!(error[54..56], [1, 1]);
    // A rejected SYN is answered on behalf of its destination, by a reset that acknowledges it.
    let (syn, ack, rst) = (2, 16, 4);
    router.transit(&tcp_v4(syn));
    let reset = only(router.sent());
    assert_eq!((&reset[26..30], &reset[30..34]), (&[192, 0, 2, 9][..], &[10, 0, 0, 2][..]));
    let mut far = Host::new(MAC_B, &["10.0.0.2/24"], |_| {});
    let answer = local(far.receive(&[&MAC_B.0[..], &reset[6..]].concat()).unwrap());
    assert!(verify_transport(&answer));
    assert_eq!(answer.body()[..14], [0, 80, 4, 0, 0, 0, 0, 0, 0, 0, 0, 101, 5 << 4, 0x14]);
    router.transit(&tcp_v4(ack));
    let reset = only(router.sent());
    assert_eq!((&reset[38..42], reset[47]), (&[0, 0, 2, 0][..], 4));
    // A reset is not answered.
    router.transit(&tcp_v4(rst));
    assert_eq!(router.sent().len(), 0);
    assert_eq!(router.drops(DropReason::FilterReject), 5);
}

/// RFC 1122 section 3.2.2 and RFC 4443 section 2.4 forbid errors about packets to a group of
/// stations.
#[test]
fn a_rejected_packet_to_a_link_group_is_not_answered() {
    for hook in [Hook::Prerouting, Hook::Input] {
        let mut router = router();
        put(&mut router, [rule(1, hook, Action::Reject)]);
        let v4 = from_to(&tcp_v4(2), "10.0.0.2", "10.0.0.1");
        let v6 = from_to(&v6(9, IpProtocol::UDP, &[0; 8]), "fd00::2", "fd00::1");
        for (ethertype, packet) in [(EtherType::IPV4, v4), (EtherType::IPV6, v6)] {
            let frame = frame(MacAddr::BROADCAST, MAC_B, ethertype, &packet);
            assert!(router.receive(&frame).is_none());
            assert_eq!(router.sent().len(), 0);
        }
    }
}

#[test]
fn neighbour_discovery_is_not_judged() {
    let mut router = router();
    let hooks = Hooks::NONE.with(Hook::Input).with(Hook::Prerouting).with(Hook::Output);
    put(&mut router, [Rule { hooks, ..Rule::new(1, Action::Drop) }]);
    introduce(&mut router, ip("fd00::3"), ip("fd00::1"));
    assert_eq!(counts(&router), [0]);
    assert!(router.net.neighbors().any(|known| known.addr == ip("fd00::3")));
}

#[test]
fn fragments_that_hide_a_header_are_dropped() {
    let mut router = router();
    let tcp = |header: &mut ipv4::Header| header.protocol = IpProtocol::TCP;
    let tiny = v4(9, 16, |header| {
        tcp(header);
        header.more_fragments = true;
    });
    let over = v4(9, 64, |header| {
        tcp(header);
        header.fragment_offset = 8;
    });
    router.transit(&tiny);
    router.transit(&over);
    assert_eq!(router.out().len(), 2, "without rules nothing is hidden from them");
    put(&mut router, []);
    router.transit(&tiny);
    router.transit(&over);
    assert_eq!(router.out().len(), 2, "a list may have sets alone");
    put(&mut router, [rule(1, Hook::Forward, Action::Accept)]);
    router.transit(&tiny);
    router.transit(&over);
    assert_eq!((router.out().len(), router.drops(DropReason::FilterFragment)), (0, 2));
}

/// Creates a segment to port 80 behind this number of destination options headers.
fn behind(headers: usize, transport: IpProtocol, bytes: &[u8]) -> Vec<u8> {
    let mut payload = bytes.to_vec();
    let mut next = transport;
    for _ in 0..headers {
        payload = [&[next.0, 0, 1, 4, 0, 0, 0, 0][..], &payload].concat();
        next = IpProtocol::DESTINATION_OPTIONS;
    }
    v6(9, next, &payload)
}

fn drop_port(port: u16) -> Rule {
    let dport = Some(Ports { first: port, last: port }.into());
    Rule { protocol: Some(6), dport, ..rule(1, Hook::Forward, Action::Drop) }
}

#[test]
fn extension_headers_of_any_number_hide_no_port() {
    let mut router = router();
    put(
        &mut router,
        [
            drop_port(80),
            Rule { dport: None, protocol: None, ..rule(2, Hook::Forward, Action::Accept) },
        ],
    );
    let longest = (TUN_MTU as usize - 40 - 20) / 8;
    for headers in (0..=longest).step_by(4) {
        router.transit(&behind(headers, IpProtocol::TCP, &segment(2)));
        assert_eq!(router.out().len(), 0, "{headers}");
    }
    assert_eq!(counts(&router)[1], 0);
    let mut other = segment(2);
    other[3] = 81;
    router.transit(&behind(longest, IpProtocol::TCP, &other));
    assert_eq!((router.out().len(), counts(&router)[1]), (1, 1));
}

/// Creates a fragment header (RFC 8200 section 4.5), followed by `bytes`.
fn fragment_v6(next: IpProtocol, offset: u16, more: bool, bytes: &[u8]) -> Vec<u8> {
    let field = (offset | u16::from(more)).to_be_bytes();
    [&[next.0, 0, field[0], field[1], 0, 0, 0, 9][..], bytes].concat()
}

#[test]
fn fragments_of_ipv6_that_hide_a_header_are_dropped() {
    let options = IpProtocol::DESTINATION_OPTIONS;
    let unknown = |next: IpProtocol| [next.0, 0, 0xbe, 4, 0, 0, 0, 0];
    let mut cases = vec![];
    // A first fragment without the complete transport header, also behind options that the receiver
    // would refuse.
    for len in [0, 8, 16] {
        let bytes = &segment(2)[..len];
        cases.push(v6(9, IpProtocol::FRAGMENT, &fragment_v6(IpProtocol::TCP, 0, true, bytes)));
        let within = [&unknown(IpProtocol::TCP)[..], bytes].concat();
        cases.push(v6(9, IpProtocol::FRAGMENT, &fragment_v6(options, 0, true, &within)));
    }
    for offset in [8, 16] {
        for next in [6, 17, 58, 60, 59] {
            let piece = fragment_v6(IpProtocol(next), offset, false, &segment(2));
            cases.push(v6(9, IpProtocol::FRAGMENT, &piece));
            let refused = [&unknown(IpProtocol::FRAGMENT)[..], &piece].concat();
            cases.push(v6(9, options, &refused));
        }
    }
    let fragments = cases.len() as u64;
    // A chain that ends beyond the packet, and a fragment of a fragment.
    cases.push(v6(9, options, &[6, 200, 1, 4, 0, 0, 0, 0]));
    let inner = fragment_v6(IpProtocol::TCP, 0, false, &segment(2));
    cases.push(v6(9, IpProtocol::FRAGMENT, &fragment_v6(IpProtocol::FRAGMENT, 0, false, &inner)));
    let mut router = router();
    cases.iter().for_each(|case| router.transit(case));
    assert_eq!(router.out().len(), cases.len(), "without rules nothing is hidden from them");
    put(&mut router, [rule(1, Hook::Forward, Action::Accept)]);
    cases.iter().for_each(|case| router.transit(case));
    let reasons = [DropReason::FilterFragment, DropReason::FilterHidden];
    assert_eq!(router.out().len(), 0);
    assert_eq!(reasons.map(|reason| router.drops(reason)), [fragments, 2]);
}

/// Later IPv6 fragments have no ports, even if a header in front of the fragment header is refused.
#[test]
fn a_later_fragment_is_not_judged_by_its_payload() {
    let mut router = router();
    put(&mut router, [drop_port(80)]);
    let piece = fragment_v6(IpProtocol::TCP, 64, false, &segment(2));
    let refused = [&[44, 0, 0xbe, 4, 0, 0, 0, 0][..], &piece].concat();
    router.transit(&v6(9, IpProtocol::FRAGMENT, &piece));
    router.transit(&v6(9, IpProtocol::DESTINATION_OPTIONS, &refused));
    assert_eq!((router.out().len(), counts(&router)[0]), (2, 0));
}

/// Both paths of a forwarded packet: `transit` plans packets without options, and an IPv4 packet
/// with a fragment offset takes the slow path.
#[test]
fn a_mark_stays_with_the_packet_at_later_hooks() {
    let mut router = router();
    let all = Hooks::NONE.with(Hook::Forward).with(Hook::Postrouting);
    put(
        &mut router,
        [
            Rule { action: RuleAction::Mark(7), ..rule(1, Hook::Prerouting, Action::Accept) },
            Rule { hooks: all, mark: Some(7), ..Rule::new(2, Action::Accept) },
            Rule { hooks: all.with(Hook::Input), ..Rule::new(3, Action::Drop) },
        ],
    );
    router.transit(&v4(9, 8, |_| {}));
    router.transit(&v4(9, 8, |header| header.fragment_offset = 80));
    router.transit(&v6(9, IpProtocol::UDP, &[0; 8]));
    assert_eq!((router.out().len(), counts(&router)), (3, vec![3, 6, 0]));
    // A mark that no rule sets is 0, and a packet to this host keeps its mark, too.
    put(
        &mut router,
        [
            Rule {
                action: RuleAction::Mark(7),
                protocol: Some(1),
                ..rule(1, Hook::Prerouting, Action::Accept)
            },
            Rule { mark: Some(7), ..rule(2, Hook::Input, Action::Drop) },
            Rule { mark: Some(0), ..rule(3, Hook::Forward, Action::Drop) },
        ],
    );
    let mut ping = v4(9, 8, |header| header.protocol = IpProtocol::ICMP);
    ping[20..28].copy_from_slice(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    router.transit(&from_to(&ping, "10.0.0.2", "10.0.0.1"));
    router.transit(&v4(9, 8, |_| {}));
    assert_eq!((router.out().len(), counts(&router)), (0, vec![1, 1, 1]));
}

/// An answer of this host is judged before its IP header is added.
#[test]
fn a_mark_of_a_packet_of_this_host_stays_until_postrouting() {
    let mut router = router();
    let marks = Rule { action: RuleAction::Mark(7), ..rule(1, Hook::Output, Action::Accept) };
    put(&mut router, [marks, Rule { mark: Some(7), ..rule(2, Hook::Postrouting, Action::Drop) }]);
    let mut ping = v4(9, 8, |header| header.protocol = IpProtocol::ICMP);
    ping[20..28].copy_from_slice(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    router.transit(&from_to(&ping, "10.0.0.2", "10.0.0.1"));
    assert_eq!((router.sent().len(), counts(&router)), (0, vec![1, 1]));
}

#[test]
fn a_rate_is_kept_when_rules_change() {
    let mut router = router();
    let rate = Some(RateLimit { tokens: 1, per: RateUnit::Hour, burst: 3 });
    let limited = Rule { rate, ..rule(5, Hook::Forward, Action::Accept) };
    let rest = rule(9, Hook::Forward, Action::Drop);
    put(&mut router, [limited.clone(), rest.clone()]);
    router.transit(&v4(9, 8, |_| {}));
    router.transit(&v4(9, 8, |_| {}));
    put(&mut router, [rule(1, Hook::Input, Action::Drop), limited, rest.clone()]);
    router.transit(&v4(9, 8, |_| {}));
    router.transit(&v4(9, 8, |_| {}));
    assert_eq!((router.out().len(), counts(&router)), (3, vec![0, 1, 1]));
    let other = Rule { rate, ..rule(6, Hook::Forward, Action::Accept) };
    put(&mut router, [other, rest]);
    router.transit(&v4(9, 8, |_| {}));
    assert_eq!(router.out().len(), 1, "another rule has a bucket of its own");
}

#[test]
fn packets_are_logged_at_their_rate_and_within_a_limit() {
    let mut router = router();
    let log = |rate| Rule { log: Some(Log { rate }), ..rule(7, Hook::Forward, Action::Accept) };
    put(&mut router, [log(Some(2))]);
    for _ in 0..10 {
        router.transit(&v4(9, 8, |_| {}));
    }
    let logged = router.net.take_logged().unwrap();
    assert_eq!((logged.rule, logged.action, logged.len), (7, Action::Accept.into(), 28));
    assert_eq!((logged.fields.dst, logged.fields.iface_out), (ip(FAR_V4), Some(2)));
    assert_eq!(router.net.take_logged(), None);
    put(&mut router, [log(None)]);
    for _ in 0..limits::LOGGED_MAX + 3 {
        router.transit(&v4(9, 8, |_| {}));
        router.out();
    }
    assert_eq!(router.net.counters().data.rules_unlogged, 3);
    assert_eq!(std::iter::from_fn(|| router.net.take_logged()).count(), limits::LOGGED_MAX);
}
