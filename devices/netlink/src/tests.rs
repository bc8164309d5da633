//! Tests of parsing with messages made by hand, and of dumps with the kernel.

use std::net::IpAddr;

use crate::attributes::{HEADER_LEN, messages, put_attribute};
use crate::message::{RTM_NEWNEIGH, RTM_NEWROUTE};
use crate::*;

const DELETE: u16 = 1;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn octets(text: &str) -> Vec<u8> {
    match ip(text) {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns a message with this body.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(HEADER_LEN, 0);
    bytes.extend(body);
    bytes
}

/// Returns a `struct rtnexthop` with a router.
fn next_hop(link: u32, gateway: &str, weight: u16, flags: u8) -> Vec<u8> {
    let mut attribute = Vec::new();
    put_attribute(&mut attribute, 5, &octets(gateway));
    let len = 8 + attribute.len() as u16;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend([flags, (weight - 1) as u8]);
    bytes.extend(link.to_ne_bytes());
    bytes.extend(attribute);
    bytes
}

/// Returns a multipath route to 10.9.0.0/16 in table 1000.
fn multipath() -> Vec<u8> {
    // Family, lengths, class of service, table, protocol, scope, type, flags.
    let mut body = vec![libc::AF_INET as u8, 16, 0, 0, 252, 186, 0, 1, 0, 0, 0, 0];
    put_attribute(&mut body, 15, &1000u32.to_ne_bytes());
    put_attribute(&mut body, 1, &octets("10.9.0.0"));
    put_attribute(&mut body, 6, &20u32.to_ne_bytes());
    let mut metrics = Vec::new();
    put_attribute(&mut metrics, 2, &1400u32.to_ne_bytes());
    put_attribute(&mut body, 8, &metrics);
    let hops = [next_hop(3, "10.0.0.2", 1, 0), next_hop(4, "10.0.1.2", 256, 1)].concat();
    put_attribute(&mut body, 9, &hops);
    body
}

fn parsed(packet: &[u8]) -> Vec<KernelMessage> {
    messages(packet).filter_map(|raw| KernelMessage::parse(&raw)).collect()
}

#[test]
fn parses_multipath_routes() {
    let hop = |link, gateway, weight, is_dead| HopMessage {
        link,
        gateway: Some(ip(gateway)),
        weight,
        is_dead,
        is_special: false,
    };
    let route = RouteMessage {
        network: ip("10.9.0.0"),
        prefix_len: 16,
        table: 1000,
        protocol: 186,
        kind: 1,
        metric: 20,
        mtu: Some(1400),
        is_partial: false,
        next_hop_id: None,
        hops: vec![hop(3, "10.0.0.2", 1, false), hop(4, "10.0.1.2", 256, true)],
    };
    let packet = [
        message(RTM_NEWROUTE, 0, &multipath()),
        message(RTM_NEWROUTE, 0x100, &multipath()),
        message(RTM_NEWROUTE + DELETE, 0, &multipath()),
    ];
    let expected = [MessageAction::Set, MessageAction::Replace, MessageAction::Delete]
        .map(|action| KernelMessage { action, object: KernelObject::Route(route.clone()) });
    assert_eq!(parsed(&packet.concat()), expected);
}

#[test]
fn ignores_truncated_and_foreign_messages() {
    let whole = message(RTM_NEWROUTE, 0, &multipath());
    for len in 0..whole.len() {
        assert!(parsed(&whole[..len]).is_empty(), "{len}");
    }
    for len in 0..multipath().len() {
        // The length of the message is consistent, but an attribute may be truncated.
        let found = parsed(&message(RTM_NEWROUTE, 0, &multipath()[..len]));
        let is_to_network = |message: &KernelMessage| match &message.object {
            KernelObject::Route(route) => route.network == ip("10.9.0.0"),
            _ => false,
        };
        assert!(found.iter().all(is_to_network), "{len}: {found:?}");
    }
    for kind in [2, 3, 18, 19, 26, 99] {
        assert!(parsed(&message(kind, 0, &multipath())).is_empty(), "{kind}");
    }
    assert!(parsed(&message(RTM_NEWROUTE, 0, &[7; 64])).is_empty(), "an unknown family");
    assert!(parsed(&[0xff; 64]).is_empty());
}

#[test]
fn entries_of_bridges_are_no_neighbors() {
    let neighbor = |family: libc::c_int| {
        // Family and padding, interface, state NUD_PERMANENT, flags, type.
        let mut body = vec![family as u8, 0, 0, 0];
        body.extend(3u32.to_ne_bytes());
        body.extend(0x80u16.to_ne_bytes());
        body.extend([0, 0]);
        put_attribute(&mut body, 1, &octets("10.0.0.2"));
        put_attribute(&mut body, 2, &[2, 0, 0, 0, 0, 9]);
        parsed(&message(RTM_NEWNEIGH, 0, &body)).len()
    };
    assert_eq!((neighbor(libc::AF_INET), neighbor(libc::AF_BRIDGE)), (1, 0));
}

#[test]
fn dumps_the_loopback_of_the_kernel() {
    let mut socket = KernelSocket::open().expect("a socket");
    let mut links = Vec::new();
    socket.dump(DumpRequest::Links, |message| links.push(message.object)).expect("a dump");
    let lo = LinkMessage { index: 1, name: "lo".to_owned(), is_up: true };
    let down = LinkMessage { is_up: false, ..lo.clone() };
    let either = [KernelObject::Link(lo), KernelObject::Link(down)];
    let is_lo = |object: &KernelObject| either.contains(object);
    assert!(links.iter().any(is_lo), "{links:?}");
    for request in [DumpRequest::Addresses, DumpRequest::Neighbors, DumpRequest::NextHops] {
        socket.dump(request, drop).expect("a dump");
    }
    // Most hosts have no table of this number, which is no error.
    let mut found = Vec::new();
    for request in [DumpRequest::RoutesV4(4_000_000), DumpRequest::RoutesV6(4_000_000)] {
        socket.dump(request, |message| found.push(message.object)).expect("a dump");
    }
    let is_other = |object: &KernelObject| match object {
        KernelObject::Route(route) => route.table != 4_000_000,
        _ => false,
    };
    assert!(!found.iter().any(is_other), "the kernel filters by table: {found:?}");
}

#[test]
fn the_network_of_a_peer_is_not_that_of_the_address() {
    let parse = |peer| {
        // Family, prefix length, flags, scope, interface.
        let mut body = vec![libc::AF_INET as u8, 24, 0, 0];
        body.extend(3u32.to_ne_bytes());
        put_attribute(&mut body, 1, &octets(peer));
        put_attribute(&mut body, 2, &octets("10.0.0.1"));
        match &parsed(&message(crate::message::RTM_NEWADDR, 0, &body))[0].object {
            KernelObject::Address(found) => (found.address, found.prefix_len),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(parse("10.0.0.1"), (ip("10.0.0.1"), 24));
    assert_eq!(parse("10.9.0.1"), (ip("10.0.0.1"), 32));
}

#[test]
fn missing_namespaces_are_errors() {
    let missing = NetNamespace::Named("towpath-no-such-namespace".to_owned());
    let error = missing.run(|| panic!("not in a namespace")).expect_err("no namespace");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(NetNamespace::Own.run(|| 7).expect("no namespace is entered"), 7);
}
