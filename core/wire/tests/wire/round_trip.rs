use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_wire::ethernet::{self, EtherType, VlanTag};
use towpath_wire::{IpProtocol, MacAddr, ParseError, arp, ipv4, ipv6, udp};

prop_compose! {
    fn mac()(bytes: [u8; 6]) -> MacAddr { MacAddr(bytes) }
}

prop_compose! {
    fn unicast_mac()(bytes: [u8; 6]) -> MacAddr {
        let mut bytes = bytes;
        bytes[0] &= !1;
        MacAddr(bytes)
    }
}

fn vlan() -> impl Strategy<Value = Option<VlanTag>> {
    proptest::option::of(any::<u16>().prop_map(VlanTag::from_bits))
}

prop_compose! {
    fn ipv4_header(payload_len: u16)(
        tos: u8, ident: u16, dont_fragment: bool, more_fragments: bool, offset in 0u16..8000,
        ttl: u8, protocol: u8, src: u32, dst: u32,
        words in prop::collection::vec(any::<[u8; 4]>(), 0..=10),
    ) -> ipv4::Header {
        let options = ipv4::Options::new(words.as_flattened()).unwrap();
        ipv4::Header {
            tos,
            total_len: 20 + 4 * words.len() as u16 + payload_len,
            ident,
            dont_fragment,
            more_fragments,
            fragment_offset: offset * 8,
            ttl,
            protocol: IpProtocol(protocol),
            src: Ipv4Addr::from(src),
            dst: Ipv4Addr::from(dst),
            options,
        }
    }
}

proptest! {
    #[test]
    fn ethernet_header(dst in mac(), src in mac(), vlan in vlan(), kind: u16) {
        prop_assume!(kind != EtherType::VLAN.0);
        let header = ethernet::Header { dst, src, vlan, ethertype: EtherType(kind) };
        let mut buf = [0xaa; 32];
        let len = header.emit(&mut buf);
        prop_assert_eq!(len, header.header_len());
        prop_assert_eq!(ethernet::Header::parse(&buf), Ok((header, len)));
        for short in 0..len {
            prop_assert_eq!(ethernet::Header::parse(&buf[..short]), Err(ParseError::Truncated));
        }
    }

    #[test]
    fn arp_packet(reply: bool, sender_mac in unicast_mac(), target_mac in mac(), a: u32, b: u32) {
        let packet = arp::ArpPacket {
            op: if reply { arp::ArpOp::Reply } else { arp::ArpOp::Request },
            sender_mac,
            sender_ip: a.into(),
            target_mac,
            target_ip: b.into(),
        };
        let mut buf = [0xaa; 28];
        prop_assert_eq!(packet.emit(&mut buf), 28);
        prop_assert_eq!(arp::ArpPacket::parse(&buf), Ok((packet, 28)));
    }

    #[test]
    fn ipv4_packet(header in ipv4_header(100), padding in 0usize..50) {
        let mut buf = vec![0xaa; 60 + 100 + padding];
        let len = header.emit(&mut buf);
        let total = usize::from(header.total_len);
        prop_assert!(ipv4::checksum_ok(&buf[..len]));
        prop_assert_eq!(ipv4::Header::parse(&buf), Ok((header, len..total)));
        prop_assert_eq!(ipv4::Header::parse(&buf[..total - 1]), Err(ParseError::Truncated));
        prop_assert_eq!(ipv4::Header::parse_quoted(&buf[..len]), Ok((header, len)));
        prop_assert!(ipv4::Header::parse_quoted(&buf[..len - 1]).is_err());
    }

    #[test]
    fn ipv6_packet(
        traffic_class: u8,
        flow in 0u32..1 << 20,
        next: u8,
        hop_limit: u8,
        src: u128,
        dst: u128,
        padding in 0usize..50,
    ) {
        let header = ipv6::Header {
            traffic_class,
            flow_label: flow,
            payload_len: 100,
            next_header: IpProtocol(next),
            hop_limit,
            src: Ipv6Addr::from(src),
            dst: Ipv6Addr::from(dst),
        };
        let mut buf = vec![0xaa; 140 + padding];
        prop_assert_eq!(header.emit(&mut buf), 40);
        prop_assert_eq!(ipv6::Header::parse(&buf), Ok((header, 40..140)));
        prop_assert_eq!(ipv6::Header::parse(&buf[..139]), Err(ParseError::Truncated));
        prop_assert_eq!(ipv6::Header::parse_quoted(&buf[..40]), Ok((header, 40)));
    }

    #[test]
    fn udp_header(src_port: u16, dst_port: u16, checksum: u16, padding in 0usize..50) {
        let header = udp::Header { src_port, dst_port, length: 28, checksum };
        let mut buf = vec![0xaa; 28 + padding];
        prop_assert_eq!(header.emit(&mut buf), 8);
        prop_assert_eq!(udp::Header::parse(&buf), Ok((header, 8..28)));
        prop_assert_eq!(udp::Header::parse(&buf[..27]), Err(ParseError::Truncated));
    }
}

#[test]
fn ipv4_lengths_that_contradict() {
    let header = ipv4::Header {
        tos: 0,
        total_len: 20,
        ident: 7,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
        options: ipv4::Options::EMPTY,
    };
    let mut good = [0; 20];
    header.emit(&mut good);
    let with = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        ipv4::Header::parse(&bad).map(|_| ())
    };
    assert_eq!(with(0, 0x45), Ok(()));
    assert_eq!(with(0, 0x55), Err(ParseError::BadVersion));
    assert_eq!(with(0, 0x44), Err(ParseError::BadHeaderLength));
    assert_eq!(with(0, 0x46), Err(ParseError::BadHeaderLength));
    assert_eq!(with(3, 19), Err(ParseError::BadLength));
    assert_eq!(with(3, 21), Err(ParseError::Truncated));
    // Reassembled, with its 20 bytes of header, the packet may be 65535 bytes long and no longer.
    let last_fragment = |total_len| {
        let mut packet = vec![0; 40];
        ipv4::Header { total_len, fragment_offset: 65512, ..header }.emit(&mut packet);
        ipv4::Header::parse(&packet).map(|_| ())
    };
    assert_eq!(last_fragment(20 + 3), Ok(()));
    assert_eq!(last_fragment(20 + 4), Err(ParseError::BadLength));
}

#[test]
fn ipv4_options() {
    let bytes = [1, 0x94, 4, 0, 0, 131, 3, 4, 1, 0, 0, 0];
    let options = ipv4::Options::new(&bytes).unwrap();
    let kinds: Vec<u8> = options.iter().map(|o| o.unwrap().kind).collect();
    assert_eq!(kinds, [0x94, 131]);
    assert!(options.has_source_route());
    assert!(!ipv4::Options::ROUTER_ALERT.has_source_route());
    for bad in [&[7, 0][..], &[7, 1], &[7, 3], &[7]] {
        let options = ipv4::Options::new(bad).unwrap();
        let fields: Vec<_> = options.iter().collect();
        assert_eq!(fields, [Err(ParseError::BadOption)], "{bad:?}");
    }
    assert!(ipv4::Options::new(&[0; 41]).is_none());
}

#[test]
fn udp_lengths_that_contradict() {
    let mut buf = [0; 8];
    udp::Header { src_port: 1, dst_port: 2, length: 7, checksum: 0 }.emit(&mut buf);
    assert_eq!(udp::Header::parse(&buf), Err(ParseError::BadLength));
    udp::Header { src_port: 1, dst_port: 2, length: 9, checksum: 0 }.emit(&mut buf);
    assert_eq!(udp::Header::parse(&buf), Err(ParseError::Truncated));
}

#[test]
fn arp_of_another_kind() {
    let packet = arp::ArpPacket {
        op: arp::ArpOp::Request,
        sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        sender_ip: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: Ipv4Addr::new(10, 0, 0, 2),
    };
    let mut good = [0; 28];
    packet.emit(&mut good);
    let with = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        arp::ArpPacket::parse(&bad).map(|_| ())
    };
    assert_eq!(with(1, 1), Ok(()));
    assert_eq!(with(1, 6), Err(ParseError::Unsupported));
    assert_eq!(with(2, 0x86), Err(ParseError::Unsupported));
    assert_eq!(with(4, 8), Err(ParseError::BadLength));
    assert_eq!(with(7, 3), Err(ParseError::Unsupported));
    assert_eq!(with(8, 0xff), Err(ParseError::BadAddress));
}
