//! Source addresses of sent packets.

use super::*;

fn source(host: &Host, dst: &str, iface: Option<IfaceId>) -> IpAddr {
    host.net.route(host.now, None, ip(dst), iface).unwrap().src
}

#[test]
fn an_ipv4_source_is_of_the_subnet_that_the_next_hop_is_in() {
    // In either order of configuration.
    let addresses = ["10.0.0.5/24", "203.0.113.10/24"];
    for order in [[0, 1], [1, 0]] {
        let mut a = Host::new(MAC_A, &order.map(|n| addresses[n]), |_| {});
        a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.1")), ETH, 0);
        // For IPv4, the number of common bits does not matter: the other address has more.
        assert_eq!(source(&a, "203.0.112.7", None), ip("10.0.0.5"));
        assert_eq!(source(&a, "203.0.113.7", None), ip("203.0.113.10"));
        assert_eq!(source(&a, "10.0.0.7", None), ip("10.0.0.5"));
    }
}

#[test]
fn groups_of_the_link_are_sent_to_from_the_link_local_address() {
    let host = slaac_host();
    let mut a = Host::new(MAC_A, &["2001:db8::1/64"], |_| {});
    a.pass(Duration::from_secs(3));
    for iface in [None, Some(ETH)] {
        assert!(addr::is_link_local(source(&a, "ff02::fb", iface)));
        assert_eq!(source(&a, "ff0e::1", iface), ip("2001:db8::1"));
    }
    assert!(addr::is_link_local(source(&host, "ff02::fb", None)));
}

#[test]
fn deprecated_addresses_are_the_last_choice_for_groups_too() {
    let mut host = slaac_host();
    let other = "2001:db8:0:7::".parse().unwrap();
    let old = announced(7200, 1);
    let new = PrefixInfo { prefix: other, ..announced(7200, 7200) };
    host.receive(&from_router("ff02::1", &advert(1800), &[old, new]));
    host.pass(Duration::from_secs(10));
    assert_eq!(global(&host).unwrap().state, AddressState::Deprecated);
    let src = source(&host, "ff0e::1", Some(ETH));
    assert!(prefix("2001:db8:0:7::/64").contains(src));
}

#[test]
fn the_source_says_where_datagrams_to_everybody_go() {
    let mut a = Host::a();
    let second = InterfaceConfig {
        name: "eth1".to_string(),
        mac: MacAddr([2, 0, 0, 0, 1, 0xa]),
        ..eth0(&["192.0.2.1/24"])
    };
    a.net.add_interface(a.now, second);
    let out = |src: &str, dst: &str| {
        a.net.route(a.now, Some(ip(src)), ip(dst), None).map(|route| route.iface)
    };
    for dst in ["255.255.255.255", "239.1.2.3"] {
        assert_eq!(out("192.0.2.1", dst), Ok(IfaceId(2)));
        assert_eq!(out("10.0.0.1", dst), Ok(ETH));
        assert_eq!(out("127.0.0.1", dst), Ok(IfaceId::LOOPBACK));
    }
    // For a unicast destination, routes select the interface, whatever the source.
    assert_eq!(out("192.0.2.1", "10.0.0.7"), Ok(ETH));
}
