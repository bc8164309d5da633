//! Prefixes, addresses and their text.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::addr::{
    autoconfigured, is_martian_destination, is_solicited_node, is_unicast, is_valid_source_v4,
    is_valid_source_v6, link_local, multicast_scope, solicited_node, stable_iid,
};
use towpath_wire::{MacAddr, ParseError, Prefix};

fn prefix(s: &str) -> Prefix {
    s.parse().unwrap()
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

#[test]
fn prefix_of_an_interface() {
    let p = prefix("10.0.0.2/24");
    assert_eq!(p.to_string(), "10.0.0.2/24");
    assert_eq!(p.network(), ip("10.0.0.0"));
    assert_eq!(p.trunc().to_string(), "10.0.0.0/24");
    assert_eq!(p.broadcast(), Some(Ipv4Addr::new(10, 0, 0, 255)));
    assert_eq!(p.netmask_v4(), Some(Ipv4Addr::new(255, 255, 255, 0)));
    assert!(p.contains(ip("10.0.0.200")) && !p.contains(ip("10.0.1.0")));
    assert!(!p.contains(ip("::ffff:10.0.0.2")));
    assert!(
        p.contains_prefix(&prefix("10.0.0.128/25")) && !p.contains_prefix(&prefix("10.0.0.0/23"))
    );
    assert!(prefix("fd00::1/64").contains(ip("fd00::ffff")));
    assert_eq!(prefix("fd00::1/64").broadcast(), None);
}

#[test]
fn prefix_extremes() {
    assert!(Prefix::ALL_V4.contains(ip("255.1.2.3")) && !Prefix::ALL_V4.contains(ip("::")));
    assert!(Prefix::ALL_V6.contains(ip("ff02::1")));
    assert_eq!(prefix("10.0.0.0/31").broadcast(), None);
    assert_eq!(prefix("10.0.0.0/30").broadcast(), Some(Ipv4Addr::new(10, 0, 0, 3)));
    assert_eq!(prefix("10.0.0.1"), prefix("10.0.0.1/32"));
    assert!(prefix("::1").is_host());
    for bad in [
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0/8",
        "/8",
        "",
        "10.0.0.0/8/8",
    ] {
        assert!(bad.parse::<Prefix>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn prefix_text_round_trips(v6: bool, bits: u128, len: u8) {
        let addr = if v6 {
            IpAddr::V6(Ipv6Addr::from(bits))
        } else {
            IpAddr::V4(Ipv4Addr::from(bits as u32))
        };
        match Prefix::new(addr, len) {
            Some(p) => {
                prop_assert_eq!(p.to_string().parse(), Ok(p));
                prop_assert!(p.contains(p.network()) && p.contains(p.last()) && p.contains(addr));
                prop_assert!(p.network() <= addr && addr <= p.last());
            }
            None => {
                let bits = if v6 { 128 } else { 32 };
                prop_assert!(len > bits);
            }
        }
    }

    #[test]
    fn mac_text_round_trips(bytes: [u8; 6]) {
        prop_assert_eq!(MacAddr(bytes).to_string().parse(), Ok(MacAddr(bytes)));
    }
}

#[test]
fn mac_text_refused() {
    for bad in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:00:00",
        "2:00:00:00:00:00",
        "0g:00:00:00:00:00",
        "+2:00:00:00:00:00",
    ] {
        assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
    }
    assert_eq!("02-00-5e-10-00-01".parse(), Ok::<_, ParseError>(MacAddr([2, 0, 0x5e, 0x10, 0, 1])));
}

#[test]
fn multicast_mappings() {
    // RFC 1112 section 6.4: the high bit of the second byte is lost.
    let group = Ipv4Addr::new(239, 129, 2, 3);
    assert_eq!(MacAddr::from_multicast_v4(group).to_string(), "01:00:5e:01:02:03");
    // RFC 2464 section 7.
    let node: Ipv6Addr = "fe80::2aa:ff:fe28:9c5a".parse().unwrap();
    let group = solicited_node(node);
    assert_eq!(group.to_string(), "ff02::1:ff28:9c5a");
    assert!(is_solicited_node(group));
    assert!(!is_solicited_node("ff02::1:fe28:9c5a".parse().unwrap()));
    assert!(!is_solicited_node("ff05::1:ff28:9c5a".parse().unwrap()));
    assert_eq!(MacAddr::from_multicast_v6(group).to_string(), "33:33:ff:28:9c:5a");
    assert_eq!(multicast_scope(group), Some(2));
    assert_eq!(multicast_scope(node), None);
}

#[test]
fn interface_identifiers() {
    // RFC 4291 appendix A: 34-56-78-9A-BC-DE.
    let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
    assert_eq!(mac.eui64(), 0x3656_78ff_fe9a_bcde);
    assert_eq!(link_local(mac.eui64()).to_string(), "fe80::3656:78ff:fe9a:bcde");
    let iid = stable_iid(0x1234_5678_9abc_def0).unwrap();
    let addr = autoconfigured(&prefix("2001:db8:1:2::/64"), iid);
    assert_eq!(addr, Some("2001:db8:1:2:1234:5678:9abc:def0".parse().unwrap()));
    assert_eq!(autoconfigured(&prefix("2001:db8::/63"), iid), None);
    assert_eq!(autoconfigured(&prefix("10.0.0.0/24"), iid), None);
    for reserved in [0, 0x0200_5eff_fe00_5213, 0xfdff_ffff_ffff_ff80, 0xfdff_ffff_ffff_ffff] {
        assert_eq!(stable_iid(reserved), None);
    }
}

#[test]
fn which_addresses_may_stand_where() {
    let source = |s: &str| match ip(s) {
        IpAddr::V4(a) => is_valid_source_v4(a),
        IpAddr::V6(a) => is_valid_source_v6(a),
    };
    for good in
        ["10.0.0.1", "0.0.0.0", "223.255.255.254", "169.254.1.1", "fe80::1", "::", "2001:db8::1"]
    {
        assert!(source(good), "{good}");
    }
    for bad in [
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "ff02::1",
        "::1",
        "::ffff:1.2.3.4",
    ] {
        assert!(!source(bad), "{bad}");
    }
    for martian in ["0.0.0.0", "127.9.9.9", "241.0.0.1", "::", "::1", "::ffff:1.2.3.4"] {
        assert!(is_martian_destination(ip(martian)), "{martian}");
    }
    for fine in ["255.255.255.255", "224.0.0.1", "10.0.0.1", "ff02::1", "fe80::1"] {
        assert!(!is_martian_destination(ip(fine)), "{fine}");
    }
    assert!(
        is_unicast(ip("10.0.0.1")) && !is_unicast(ip("255.255.255.255")) && !is_unicast(ip("::"))
    );
}
