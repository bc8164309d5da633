//! Tests of neighbours: valid and forged messages, answers, and floods from unknown hosts.

use super::*;

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

fn mac_of(host: &Host, addr: &str) -> Option<MacAddr> {
    host.net.neighbors().find(|neighbor| neighbor.addr == ip(addr)).and_then(|n| n.mac)
}

#[test]
fn the_first_of_two_arp_answers_holds_for_a_second() {
    let mut a = Host::a();
    a.send_udp("10.0.0.2", 1).unwrap();
    let answer = |mac| arp_frame(arp::ArpOp::Reply, ("10.0.0.2", mac), "10.0.0.1");
    a.receive(&answer(MAC_B));
    a.receive(&answer(ROUTER_MAC));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(MAC_B));
    a.pass(Duration::from_millis(999));
    a.receive(&answer(ROUTER_MAC));
    assert_eq!(mac_of(&a, "10.0.0.2"), Some(MAC_B));
    // An unsolicited reply means that the host's MAC address changed, and is accepted at once.
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.2", ROUTER_MAC), "10.0.0.2"));
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
        mac: MacAddr([2, 0, 0, 0, 1, 0xa]),
        ..eth0(&["192.0.2.1/24"])
    };
    a.net.add_interface(a.now, second);
    let question = |target| arp_frame(arp::ArpOp::Request, ("10.0.0.2", MAC_B), target);
    a.receive(&question("192.0.2.1"));
    let answer = only(a.sent());
    let (answer, _) = arp::ArpPacket::parse(&answer[14..]).unwrap();
    let said = (answer.op, answer.sender_mac, answer.sender_ip);
    assert_eq!(said, (arp::ArpOp::Reply, MAC_A, [192, 0, 2, 1].into()));
    // Requests for loopback addresses are not answered, and no other host may claim an own address.
    a.receive(&question("127.0.0.1"));
    a.receive(&question("192.0.2.2"));
    assert!(a.sent().is_empty());
    let claim = arp_frame(arp::ArpOp::Request, ("192.0.2.1", MAC_B), "10.0.0.1");
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
        a.receive(&arp_frame(arp::ArpOp::Request, (&invented, mac), "10.0.0.1"));
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
    a.receive(&arp_frame(arp::ArpOp::Reply, ("10.0.0.2", MAC_B), "10.0.0.1"));
    assert_eq!(a.sent().len(), 1);
    // The latest requesters stay in the table, so that a packet to one needs no solicitation.
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
                let addresses = a.net.interface(IfaceId(1)).unwrap().addresses();
                let address = addresses.iter().find(|a| a.addr() == IpAddr::V6(src)).unwrap();
                assert_eq!(address.state, AddressState::Preferred, "asked from {src}");
                asked_at.get_or_insert(a.now);
            }
        }
    }
    // The solicitation is sent when the own address is assigned, a second after its detection
    // began.
    assert!(asked_at.unwrap() <= start + Duration::from_millis(2100));
}

/// A program that sends to all addresses of a link in turn does not delay packets to a neighbour in
/// constant use (RFC 6583 §7.1).
#[test]
fn a_neighbour_in_use_is_not_forgotten_for_others() {
    let mut a = Host::a().settled();
    a.net.add_address(a.now, ETH, prefix("10.1.0.1/16"));
    let answer = arp_frame(arp::ArpOp::Reply, ("10.0.0.8", MAC_B), "10.0.0.1");
    a.send_udp("10.0.0.8", 1).unwrap();
    a.receive(&answer);
    let (mut late, mut others) = (0, 0u16);
    for _ in 0..2000 {
        a.pass(Duration::from_millis(1));
        a.sent();
        a.send_udp("10.0.0.8", 1).unwrap();
        let to = |frame: &Vec<u8>| ethernet::Header::parse(frame).unwrap().0.dst;
        if !a.sent().iter().any(|frame| to(frame) == MAC_B) {
            late += 1;
            a.receive(&answer);
        }
        for _ in 0..10 {
            others = others.wrapping_add(1);
            let [hi, lo] = others.to_be_bytes();
            let _ = a.send_udp(&format!("10.1.{hi}.{lo}"), 1);
        }
    }
    assert_eq!(late, 0, "packets had to wait for an answer that was there");
}

/// A flood of pings from many forged addresses does not cut this host off from its router, which
/// answers after 20 ms.
#[test]
fn a_flood_in_the_name_of_many_does_not_cut_off_a_neighbour_in_use() {
    let mut a = Host::a().settled();
    a.net.add_address(a.now, ETH, prefix("10.1.0.1/16"));
    let answer = arp_frame(arp::ArpOp::Reply, ("10.0.0.8", MAC_B), "10.0.0.1");
    a.send_udp("10.0.0.8", 1).unwrap();
    a.receive(&answer);
    let mut echo = [0; 8];
    icmpv4::Message::EchoRequest { ident: 1, seq: 1 }.emit(&mut echo);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&echo, 0));
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let (mut out, mut others, mut answer_at) = (0, 0u16, None);
    for ms in 0..2000 {
        a.pass(Duration::from_millis(1));
        if answer_at == Some(ms) {
            answer_at = None;
            a.receive(&answer);
        }
        a.send_udp("10.0.0.8", 1).unwrap();
        for frame in a.sent() {
            let (header, at) = ethernet::Header::parse(&frame).unwrap();
            match header.ethertype {
                EtherType::ARP => {
                    let (message, _) = arp::ArpPacket::parse(&frame[at..]).unwrap();
                    if message.target_ip == Ipv4Addr::new(10, 0, 0, 8) {
                        answer_at = answer_at.or(Some(ms + 20));
                    }
                }
                _ => out += u32::from(header.dst == MAC_B),
            }
        }
        for _ in 0..60 {
            others = others.wrapping_add(1);
            let [hi, lo] = others.to_be_bytes();
            let ping = ipv4_packet(&format!("10.1.{hi}.{lo}"), "10.0.0.1", IpProtocol::ICMP, &echo);
            a.receive(&frame(MAC_A, MAC_B, EtherType::IPV4, &ping));
        }
    }
    assert!(out > 1900, "of 2000 packets {out} left in time");
}
