//! Neighbours: whose word is believed, who is answered, and what strangers cannot do.

use super::*;

fn arp_frame(op: arp::Op, sender: (&str, MacAddr), target: &str) -> Vec<u8> {
    let message = arp::Packet {
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

fn mac_of(host: &Host, addr: &str) -> Option<MacAddr> {
    host.net.neighbors().find(|neighbor| neighbor.addr == ip(addr)).and_then(|n| n.mac)
}

#[test]
fn the_first_of_two_arp_answers_holds_for_a_second() {
    let mut a = Host::a();
    a.send_udp("10.0.0.2", 1).unwrap();
    let answer = |mac| arp_frame(arp::Op::Reply, ("10.0.0.2", mac), "10.0.0.1");
    a.receive(&answer(MAC_B));
    a.receive(&answer(ROUTER_MAC));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(MAC_B));
    a.pass(Duration::from_millis(999));
    a.receive(&answer(ROUTER_MAC));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(MAC_B));
    // Who moves says so, and is believed at once.
    a.receive(&arp_frame(arp::Op::Reply, ("10.0.0.2", ROUTER_MAC), "10.0.0.2"));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(ROUTER_MAC));
    a.pass(Duration::from_millis(1000));
    a.receive(&answer(MAC_B));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(MAC_B));
}

#[test]
fn every_interface_answers_for_all_ipv4_addresses_of_the_host() {
    let mut a = Host::a();
    let second = InterfaceConfig {
        name: "eth1".to_string(),
        link: LinkType::Ethernet,
        mac: MacAddr([2, 0, 0, 0, 1, 0xa]),
        mtu: 1500,
        offloads: NONE,
        addresses: vec![prefix("192.0.2.1/24")],
        slaac: false,
        any_address: false,
        kernel_cuts: false,
    };
    a.net.add_interface(a.now, second);
    let question = |target| arp_frame(arp::Op::Request, ("10.0.0.2", MAC_B), target);
    a.receive(&question("192.0.2.1"));
    let answer = only(a.sent());
    let (answer, _) = arp::Packet::parse(&answer[14..]).unwrap();
    let said = (answer.op, answer.sender_mac, answer.sender_ip);
    assert_eq!(said, (arp::Op::Reply, MAC_A, [192, 0, 2, 1].into()));
    // Nobody outside has business with the loopback's, and nobody may claim one of ours.
    a.receive(&question("127.0.0.1"));
    a.receive(&question("192.0.2.2"));
    assert!(a.sent().is_empty());
    let claim = arp_frame(arp::Op::Request, ("192.0.2.1", MAC_B), "10.0.0.1");
    assert_eq!(a.refusal(&claim), Some(DropReason::Martian));
}

#[test]
fn invented_addresses_displace_no_resolution_in_progress() {
    let mut a = Host::a();
    a.pass(Duration::from_secs(5));
    a.send_udp("10.0.0.2", 1).unwrap();
    a.send_udp("fd00::2", 1).unwrap();
    a.sent();
    for n in 0..2000u16 {
        let [hi, lo] = n.to_be_bytes();
        let mac = MacAddr([2, 0, 0, 9, hi, lo]);
        let invented = format!("10.0.{}.{}", 0x80 | hi, lo);
        a.receive(&arp_frame(arp::Op::Request, (&invented, mac), "10.0.0.1"));
        let src = Ipv6Addr::new(0xfd00, 0, 0, 0, 9, 0, 0, n);
        let (target, dst) = ("fd00::1".parse().unwrap(), "fd00::1");
        let mut bytes = vec![0; ndp::MESSAGE_LEN_MAX];
        let len = Message::NeighborSolicit { target, source_ll: Some(mac) }.emit(&mut bytes);
        bytes.truncate(len);
        icmpv6::fill_checksum(&mut bytes, src, target);
        let packet = ipv6_packet(&src.to_string(), dst, IpProtocol::ICMPV6, 255, &bytes);
        a.receive(&frame(MAC_A, mac, EtherType::IPV6, &packet));
        if n % 500 == 0 {
            a.sent();
        }
    }
    a.sent();
    assert_eq!(a.drops(DropReason::NeighborQueueFull), 0);
    a.receive(&arp_frame(arp::Op::Reply, ("10.0.0.2", MAC_B), "10.0.0.1"));
    assert_eq!(a.sent().len(), 1);
    // The last of those who asked are remembered, so that answering them costs no question.
    assert!((1..=2048).contains(&a.net.neighbors().count()));
    let solicits = a.net.counters().control.solicits_sent;
    a.send_udp("fd00::9:0:0:7cf", 1).unwrap();
    assert_eq!(a.net.counters().control.solicits_sent, solicits);
}

#[test]
fn nobody_is_asked_for_from_an_address_that_may_be_somebody_elses() {
    let mut a = Host::a();
    a.send_udp("fd00::2", 1).unwrap();
    let (mut asked_at, start) = (None, a.now);
    for _ in 0..40 {
        a.pass(Duration::from_millis(100));
        for (src, _, message) in discovery(&mut a) {
            if matches!(message, Message::NeighborSolicit { .. }) && !src.is_unspecified() {
                let addresses = a.net.interfaces()[1].addresses();
                let address = addresses.iter().find(|a| a.addr() == IpAddr::V6(src)).unwrap();
                assert_eq!(address.state, AddressState::Preferred, "asked from {src}");
                asked_at.get_or_insert(a.now);
            }
        }
    }
    // It is asked as soon as the address is known to be ours: a second after its solicitation.
    assert!(asked_at.unwrap() <= start + Duration::from_millis(2100));
}
