//! Source and destination translation, errors and fragments.

use towpath_conntrack::{FragmentPosition, NatRule, PacketView};
use towpath_filter::{Action, FlowState, Hook};
use towpath_wire::ipv4;

use crate::network::{LAN, Network, OWN_WAN, TestPacket, WAN};

const MASQUERADE: &[&str] = &["masquerade out wan"];
const CLIENT: &str = "10.1.0.2:4000";
const SERVER: &str = "198.51.100.7:53";

fn outside(port: u16) -> String {
    format!("{OWN_WAN}:{port}")
}

#[test]
fn masquerades_and_translates_answers_back() {
    let mut net = Network::new(MASQUERADE);
    let sent = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    let port = sent.src_port();
    assert_eq!(sent.ends(), (outside(port), SERVER.to_owned()));
    assert_eq!(sent.fields.state, FlowState::New);
    assert!(port >= 1024 && port.is_multiple_of(2), "{port}");
    let answer = net.back(TestPacket::udp(SERVER, &outside(port))).unwrap();
    assert_eq!(answer.ends(), (SERVER.to_owned(), CLIENT.to_owned()));
    assert_eq!(answer.fields.state, FlowState::Established);
    let again = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    assert_eq!((again.src_port(), again.fields.state), (port, FlowState::Established));
    let other = net.back(TestPacket::udp("203.0.113.9:53", &outside(port))).unwrap();
    assert_eq!((other.ends().1, other.fields.state), (outside(port), FlowState::New));
}

#[test]
fn keeps_the_outside_port_for_every_destination() {
    let mut net = Network::new(MASQUERADE);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    let other = net.out(TestPacket::udp(CLIENT, "203.0.113.1:3478")).unwrap();
    assert_eq!(other.src_port(), port);
    let low = net.out(TestPacket::udp("10.1.0.2:123", SERVER)).unwrap().src_port();
    assert!((1..1024).contains(&low) && low % 2 == 1, "{low}");
}

#[test]
fn passes_packets_of_any_sender_to_a_full_cone() {
    let mut net = Network::new(&["masquerade out wan full-cone"]);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    let other = net.back(TestPacket::udp("203.0.113.9:9", &outside(port))).unwrap();
    assert_eq!(other.ends(), ("203.0.113.9:9".to_owned(), CLIENT.to_owned()));
    let answer = net.out(TestPacket::udp(CLIENT, "203.0.113.9:9")).unwrap();
    assert_eq!(answer.src_port(), port);
}

#[test]
fn closes_a_full_cone_with_the_timeout_of_its_flows() {
    let mut net = Network::new(&["masquerade out wan full-cone"]);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    net.wait(122);
    let late = net.back(TestPacket::udp("203.0.113.9:9", &outside(port))).unwrap();
    assert_eq!(late.ends().1, outside(port), "not translated to the client");
}

#[test]
fn drops_a_packet_whose_full_cone_ends_between_its_hooks() {
    let mut net = Network::new(&["masquerade out wan full-cone"]);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    let mut packet = TestPacket::udp("203.0.113.9:9", &outside(port));
    packet.fields.iface_in = Some(WAN);
    assert_eq!(net.tracker.on_packet(net.now_ns, &mut packet), Action::Accept);
    assert_eq!(packet.ends().1, CLIENT);
    net.tracker.delete(0, |_| true);
    (packet.fields.hook, packet.fields.iface_out) = (Hook::Postrouting, Some(LAN));
    assert_eq!(net.tracker.on_packet(net.now_ns, &mut packet), Action::Drop);
    assert!(net.tracker.is_empty());
}

#[test]
fn translates_the_identifier_of_queries() {
    let mut net = Network::new(MASQUERADE);
    let ident =
        |packet: &TestPacket| u16::from_be_bytes([packet.transport[4], packet.transport[5]]);
    let sent = net.out(TestPacket::echo(8, "10.1.0.2", "198.51.100.7", 77)).unwrap();
    let other = net.out(TestPacket::echo(8, "10.1.0.3", "198.51.100.7", 77)).unwrap();
    assert_ne!(ident(&sent), ident(&other));
    let reply = net.back(TestPacket::echo(0, "198.51.100.7", OWN_WAN, ident(&sent))).unwrap();
    assert_eq!((reply.ends().1.as_str(), ident(&reply)), ("10.1.0.2", 77));
    // A reply from a host that got no request.
    let stray = net.back(TestPacket::echo(0, "198.51.100.8", OWN_WAN, ident(&sent))).unwrap();
    assert_eq!(stray.fields.state, FlowState::Invalid);
}

#[test]
fn forwards_a_port_and_hides_the_server() {
    let mut net = Network::new(&["masquerade out wan", "dnat proto udp dport 8080 to 10.1.0.5:80"]);
    let sent = net.back(TestPacket::udp("203.0.113.9:700", &outside(8080))).unwrap();
    assert_eq!(sent.ends(), ("203.0.113.9:700".to_owned(), "10.1.0.5:80".to_owned()));
    let answer = net.out(TestPacket::udp("10.1.0.5:80", "203.0.113.9:700")).unwrap();
    assert_eq!(answer.ends(), (outside(8080), "203.0.113.9:700".to_owned()));
    // The rule applies only to packets that are addressed to the router.
    let through = net.out(TestPacket::udp("10.1.0.2:5", "203.0.113.9:8080")).unwrap();
    assert_eq!(through.ends().1, "203.0.113.9:8080");
}

#[test]
fn gives_two_flows_to_one_server_different_sources() {
    let rules = ["dnat proto udp dport 8080-8081 to 10.1.0.5:80"];
    let mut net = Network::new(&rules);
    let first = net.back(TestPacket::udp("203.0.113.9:700", &outside(8080))).unwrap();
    let second = net.back(TestPacket::udp("203.0.113.9:700", &outside(8081))).unwrap();
    assert_eq!(first.src_port(), 700);
    assert_ne!(second.src_port(), 700);
    let answer = format!("203.0.113.9:{}", second.src_port());
    let answer = net.out(TestPacket::udp("10.1.0.5:80", &answer)).unwrap();
    assert_eq!(answer.ends(), (outside(8081), "203.0.113.9:700".to_owned()));
}

/// A host reaches a server of its own network by the outside address; both see the router.
#[test]
fn sends_hairpin_flows_from_the_outside_address() {
    let mut net = Network::new(&["masquerade out wan", "dnat proto udp dport 8080 to 10.1.0.5:80"]);
    let sent = net.out(TestPacket::udp(CLIENT, &outside(8080))).unwrap();
    assert_eq!(sent.ends(), (outside(sent.src_port()), "10.1.0.5:80".to_owned()));
    let answer = TestPacket::udp("10.1.0.5:80", &outside(sent.src_port()));
    let answer = net.out(answer).unwrap();
    assert_eq!(answer.ends(), (outside(8080), CLIENT.to_owned()));
}

#[test]
fn redirects_to_the_router_itself() {
    let mut net = Network::new(&["redirect in lan proto udp dport 53 to :5353"]);
    let sent = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    assert_eq!(sent.ends().1, "10.1.0.1:5353");
    let answer = net.pass(0, TestPacket::udp("10.1.0.1:5353", CLIENT)).unwrap();
    assert_eq!(answer.ends(), (SERVER.to_owned(), CLIENT.to_owned()));
}

#[test]
fn translates_errors_and_their_quotation() {
    let mut net = Network::new(MASQUERADE);
    let sent = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    let error = net.back(TestPacket::error("198.18.0.1", &sent)).unwrap();
    assert_eq!(error.ends(), ("198.18.0.1".to_owned(), "10.1.0.2".to_owned()));
    assert_eq!(error.fields.state, FlowState::Related);
    let quote = &error.transport[8..];
    assert_eq!(quote, TestPacket::udp(CLIENT, SERVER).ip_bytes());
    assert!(ipv4::checksum_ok(&quote[..20]));
    // An error that quotes a packet of no flow.
    let mut forged = sent;
    forged.set(OWN_WAN, 9);
    let stray = net.back(TestPacket::error("198.18.0.1", &forged)).unwrap();
    assert_eq!(stray.fields.state, FlowState::Invalid);
}

/// An error of the server behind a port forward comes from the outside address.
#[test]
fn hides_the_sender_of_an_error_about_a_forwarded_packet() {
    let mut net = Network::new(&["dnat proto udp dport 8080 to 10.1.0.5:80"]);
    let request = TestPacket::udp("203.0.113.9:700", &outside(8080));
    let sent = net.back(request.clone()).unwrap();
    let error = net.out(TestPacket::error("10.1.0.5", &sent)).unwrap();
    assert_eq!(error.ends(), (OWN_WAN.to_owned(), "203.0.113.9".to_owned()));
    assert_eq!(error.transport[8..], request.ip_bytes());
}

#[test]
fn refuses_an_error_to_another_host_than_the_quoted_sender() {
    let mut net = Network::new(MASQUERADE);
    let sent = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    let mut error = TestPacket::error("198.18.0.1", &sent);
    error.fields.dst = "10.1.0.9".parse().unwrap();
    let error = net.back(error).unwrap();
    assert_eq!(error.fields.state, FlowState::Invalid);
    assert_eq!(error.transport[8..], sent.ip_bytes(), "the quotation is not translated");
}

#[test]
fn refuses_an_icmpv4_error_that_quotes_an_ipv6_packet() {
    let mut net = Network::new(&["snat out wan to 2001:db8::2"]);
    let sent = net.out(TestPacket::udp("[fd00::5]:4000", "[2001:db8:1::7]:53")).unwrap();
    assert!(sent.ends().0.starts_with("[2001:db8::2]:"));
    let v4 = TestPacket::udp(&outside(1), SERVER);
    let mut error = TestPacket::error("198.18.0.1", &v4);
    error.transport.truncate(8);
    error.transport.extend(sent.ip_bytes());
    // An ICMPv4 error must not quote an IPv6 packet, even if the router itself sent the error.
    for iface_in in [Some(WAN), None] {
        let mut error = error.clone();
        error.fields.iface_in = iface_in;
        error.fields.hook = if iface_in.is_some() { Hook::Prerouting } else { Hook::Output };
        net.tracker.on_packet(net.now_ns, &mut error);
        assert_eq!(error.fields.state, FlowState::Invalid, "{iface_in:?}");
    }
    // An ICMPv6 error with the same quotation belongs to the flow.
    let error = net.back(TestPacket::error("2001:db8:9::1", &sent)).unwrap();
    assert_eq!((error.fields.state, error.ends().1.as_str()), (FlowState::Related, "fd00::5"));
}

#[test]
fn rules_apply_to_the_ip_version_of_their_address() {
    let mut net = Network::new(&[
        "snat out wan to 192.0.2.5",
        "snat out wan to 2001:db8::2",
        "dnat proto udp dport 8080 to [fd00::5]:80",
        "dnat proto udp dport 8080 to 10.1.0.5:80",
    ]);
    let sent = net.out(TestPacket::udp("[fd00::5]:4000", "[2001:db8:1::7]:53")).unwrap();
    assert!(sent.ends().0.starts_with("[2001:db8::2]:"), "{}", sent.ends().0);
    let sent = net.back(TestPacket::udp("203.0.113.9:700", &outside(8080))).unwrap();
    assert_eq!(sent.ends().1, "10.1.0.5:80");
}

#[test]
fn releases_a_mapping_that_sends_to_itself() {
    let rules = ["snat out wan to 192.0.2.5 full-cone", "snat out lan to 192.0.2.5 full-cone"];
    let mut net = Network::new(&rules);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    let own = format!("192.0.2.5:{port}");
    assert!(net.out(TestPacket::udp(CLIENT, &own)).is_none(), "would be its own answer");
    let stranger = |net: &mut Network| {
        let passed = net.back(TestPacket::udp("203.0.113.9:9", &own)).unwrap();
        passed.ends().1
    };
    assert_eq!(stranger(&mut net), CLIENT);
    assert_eq!(net.tracker.delete(0, |_| true), (2, None));
    assert_eq!(stranger(&mut net), own);
}

#[test]
fn later_fragments_follow_the_first() {
    let mut net = Network::new(MASQUERADE);
    let mut first = TestPacket::udp(CLIENT, SERVER);
    first.fragment = Some(FragmentPosition { ident: 7, is_first: true });
    let mut later = TestPacket::udp(CLIENT, SERVER);
    later.fields.ports = None;
    later.fragment = Some(FragmentPosition { ident: 7, is_first: false });
    assert!(net.out(later.clone()).is_none(), "its flow is unknown");
    net.out(first).unwrap();
    let sent = net.out(later.clone()).unwrap();
    assert_eq!(sent.ends(), (OWN_WAN.to_owned(), "198.51.100.7".to_owned()));
    later.fragment = Some(FragmentPosition { ident: 8, is_first: false });
    assert!(net.out(later).is_none());
    assert_eq!(net.tracker.counters().fragments_unknown, 2);
}

#[test]
fn flushes_flows_of_an_address_that_is_gone() {
    let mut net = Network::new(MASQUERADE);
    let port = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap().src_port();
    net.tracker.set_addresses([(WAN, "192.0.2.9".parse().unwrap())].into_iter());
    assert_eq!((net.tracker.len(), net.tracker.counters().deleted), (0, 1));
    let sent = net.out(TestPacket::udp(CLIENT, SERVER)).unwrap();
    assert!(sent.ends().0.starts_with("192.0.2.9:"));
    net.tracker.set_addresses(std::iter::empty());
    assert!(net.out(TestPacket::udp(CLIENT, SERVER)).is_none());
    assert_eq!(net.tracker.counters().no_address, 1);
    let _ = port;
}

#[test]
fn a_mark_and_a_list_choose_the_rule() {
    let rules = ["snat src 10.1.0.2,10.1.0.9 out wan mark 7 to 192.0.2.5", "masquerade out wan"];
    for (client, mark, wanted) in [
        ("10.1.0.2:4000", 7, "192.0.2.5:"),
        ("10.1.0.9:4000", 7, "192.0.2.5:"),
        ("10.1.0.3:4000", 7, OWN_WAN),
        ("10.1.0.2:4000", 0, OWN_WAN),
        ("10.1.0.2:4000", 8, OWN_WAN),
    ] {
        let mut net = Network::new(&rules);
        let mut packet = TestPacket::udp(client, SERVER);
        packet.fields.mark = mark;
        let (src, _) = net.out(packet).unwrap().ends();
        assert!(src.starts_with(wanted), "{client}, mark {mark}: {src}");
    }
}

#[test]
fn rules_are_printed_as_they_are_parsed() {
    for text in [
        "id 10 masquerade out wan",
        "id 20 masquerade src 10.1.0.0/24 out wan full-cone",
        "id 30 snat src 10.1.0.0/24 out wan to 192.0.2.5 ports 10000-19999",
        "id 40 dnat proto tcp dport 8080 in wan to 10.1.0.5:80",
        "id 50 dnat dst 2001:db8::1/128 to fd00::5",
        "id 60 dnat proto udp dst 2001:db8::1/128 dport 53 to [fd00::5]:5353",
        "id 70 redirect proto udp dport 53 in lan to :5353",
        "id 80 snat src 10.1.0.0/24,10.3.0.0/24 out wan mark 7 to 192.0.2.5",
        "id 90 dnat proto tcp dport 80,8000-8100 in wan to 10.1.0.5",
    ] {
        let rule: NatRule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rule.to_string(), text);
    }
    for (text, wanted) in [
        ("masq out wan", "expected masquerade, snat, dnat or redirect"),
        ("masquerade", "without \"out PORT\""),
        ("masquerade out wan to 192.0.2.1", "snat has \"to ADDRESS\""),
        ("snat out wan", "without \"to ADDRESS\""),
        ("snat out wan to 192.0.2.1:80", "no port behind"),
        ("dnat dport 80 to 10.1.0.5:80", "needs \"proto tcp\""),
        ("dnat out wan to 10.1.0.5", "never matches at hook prerouting"),
        ("dnat proto tcp dport 80 to 10.1.0.5:0", "is no port"),
        ("dnat dst 2001:db8::1 to 10.1.0.5", "the other IP version"),
        ("dnat proto tcp dprot 80 to 10.1.0.5", "unknown word \"dprot\""),
        ("snat out wan to 192.0.2.1 ports 9-3", "is no range of ports"),
        ("snat src 10.1.0.0/24,fd00::/8 out wan to 192.0.2.1", "the other IP version"),
        ("snat src @office out wan to 192.0.2.1", "take lists, and no sets"),
        ("dnat proto tcp dport 80 mark 7 to 10.1.0.5", "\"mark\" does not go with dnat"),
        ("masquerade out wan rate 5/s", "unknown word \"rate\""),
    ] {
        let error = text.parse::<NatRule>().expect_err(text).to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

impl TestPacket {
    fn set(&mut self, src: &str, port: u16) {
        self.set_src(src.parse().unwrap());
        let (_, dst) = self.fields.ports.unwrap();
        self.set_ports(port, dst);
    }
}
