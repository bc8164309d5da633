//! Tests of redirects that a router sends; the link of `eth0` has other routers, too.

use super::forward::{from_to, introduce, router, v4, v6};
use super::*;

/// Creates a router with routes through other routers on its link.
fn one_of_several() -> Host {
    let mut host = router();
    for (to, via) in [
        ("198.51.100.0/24", "10.0.0.9"),
        ("2001:db9::/32", "fe80::9"),
        ("2001:dba::/32", "fd00::9"),
    ] {
        assert!(host.net.add_route(prefix(to), Some(ip(via)), ETH, 0));
        let own = if via.contains(':') { "fd00::1" } else { "10.0.0.1" };
        introduce(&mut host, ip(via), ip(own));
    }
    host
}

/// Receives a packet, and returns the IP packets that the router sends on its link.
fn sent_for(host: &mut Host, packet: &[u8]) -> Vec<Vec<u8>> {
    host.transit(packet);
    host.sent().into_iter().map(|frame| frame[ethernet::HEADER_LEN..].to_vec()).collect()
}

#[test]
fn a_host_is_told_of_the_better_router_and_its_packet_goes_on() {
    let mut host = one_of_several();
    let packet = from_to(&v4(9, 40, |_| {}), "10.0.0.2", "198.51.100.1");
    let sent = sent_for(&mut host, &packet);
    let [redirect, passed] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((redirect[9], &redirect[16..20]), (1, &[10, 0, 0, 2][..]));
    assert_eq!((&redirect[20..22], &redirect[24..28]), (&[5, 1][..], &[10, 0, 0, 9][..]));
    assert_eq!(redirect[28..], packet, "the packet as it came");
    assert_eq!((passed[8], &passed[12..]), (8, &packet[12..]));
    // A second redirect is sent only after the minimum interval.
    assert_eq!(sent_for(&mut host, &packet).len(), 1);
    host.now += Duration::from_millis(50);
    assert_eq!(sent_for(&mut host, &packet).len(), 2);
    let counters = host.net.counters().data;
    assert_eq!((counters.redirects_sent, counters.redirects_limited), (2, 1));
    assert_eq!(counters.forwarded, 3);
}

#[test]
fn senders_that_are_no_neighbours_are_not_redirected() {
    let mut host = one_of_several();
    for src in ["192.0.2.7", "172.16.0.1"] {
        let packet = from_to(&v4(9, 8, |_| {}), src, "198.51.100.1");
        assert_eq!(sent_for(&mut host, &packet).len(), 1, "{src}");
    }
    // An ICMP error must not cause a redirect.
    let mut error = v4(9, 8, |header| header.protocol = IpProtocol::ICMP);
    error[20] = icmpv4::DEST_UNREACHABLE;
    let error = from_to(&error, "10.0.0.2", "198.51.100.1");
    assert_eq!(sent_for(&mut host, &error).len(), 1);
    assert_eq!(host.net.counters().data.redirects_sent, 0);
}

#[test]
fn redirects_of_ipv6_name_link_local_routers_and_neighbours() {
    for (dst, target) in [("2001:db9::1", "fe80::9"), ("fd00::9", "fd00::9")] {
        let mut host = one_of_several();
        let packet = from_to(&v6(9, IpProtocol::UDP, &[7; 16]), "fd00::2", dst);
        let sent = sent_for(&mut host, &packet);
        let redirect = sent.iter().find(|packet| packet[40] == ndp::REDIRECT).expect("it is told");
        let of = |at: usize| Ipv6Addr::from(*redirect[at..].first_chunk::<16>().unwrap());
        assert_eq!((redirect[6], redirect[7], of(24)), (58, 255, "fd00::2".parse().unwrap()));
        assert!(of(8).is_unicast_link_local(), "{}", of(8));
        assert_eq!((of(48), of(64)), (target.parse().unwrap(), dst.parse().unwrap()));
        // The redirect has no target link-layer address option, because that address is not known
        // before the first use.
        assert_eq!(redirect[80..88], [4, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(redirect[88..], packet);
        assert!(sent.iter().any(|sent| sent[7] == 8 && sent[40..] == packet[40..]));
        assert_eq!(host.net.counters().data.redirects_sent, 1);
    }
    // A redirect is useless if the router's link-local address is unknown.
    let mut host = one_of_several();
    let packet = from_to(&v6(9, IpProtocol::UDP, &[7; 16]), "fd00::2", "2001:dba::1");
    assert_eq!(sent_for(&mut host, &packet).len(), 1);
}
