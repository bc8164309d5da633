//! Tests that no bytes cause a panic, and that every length returned by a parser is within its
//! input.

use proptest::prelude::*;
use std::net::Ipv6Addr;
use towpath_wire::{
    arp, checksum, ethernet, icmpv4, icmpv6, igmp, ipv4, ipv6, ipv6_ext, mld, ndp, tcp, udp,
};

/// Generates bytes that often start with a value for which parsers check further bytes.
fn wire_bytes() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        any::<u8>(),
        Just(0x45),
        Just(0x4f),
        Just(0x60),
        130u8..=137,
        Just(igmp::QUERY),
    ];
    (first, prop::collection::vec(any::<u8>(), 0..200), any::<bool>()).prop_map(
        |(first, rest, quiet)| {
            let mut bytes = vec![first];
            bytes.extend(rest);
            if quiet && bytes.len() > 4 {
                bytes[1..4].fill(0);
            }
            bytes
        },
    )
}

/// Generates an IPv6 packet with a valid payload length and chains of small extension headers.
fn ipv6_packet() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![0u8, 6, 17, 43, 44, 58, 59, 60]);
    let header =
        (kind.clone(), 0u8..3, prop::collection::vec(prop_oneof![0u8..6, any::<u8>()], 6..30));
    (kind, prop::collection::vec(header, 0..12)).prop_map(|(first, headers)| {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = first;
        packet[7] = 64;
        for (next, units, body) in headers {
            let len = 8 * (usize::from(units) + 1);
            packet.extend([next, units]);
            packet.extend(body.iter().cycle().take(len - 2));
        }
        let [hi, lo] = ((packet.len() - 40) as u16).to_be_bytes();
        packet[4..6].copy_from_slice(&[hi, lo]);
        packet
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn link_and_ip(data in wire_bytes()) {
        if let Ok((_, len)) = ethernet::Header::parse(&data) {
            prop_assert!(len <= data.len());
        }
        let _ = arp::ArpPacket::parse(&data);
        if let Ok((header, payload)) = ipv4::Header::parse(&data) {
            prop_assert!(data.get(payload.clone()).is_some());
            prop_assert_eq!(payload.len(), header.payload_len());
            prop_assert!(header.options.iter().count() <= 41);
        }
        if let Ok((header, _)) = ipv4::Header::parse_quoted(&data) {
            let _ = header.options.has_source_route();
        }
        if let Ok((header, payload)) = ipv6::Header::parse(&data) {
            let packet = &data[..payload.end];
            if let Ok(chain) = ipv6_ext::walk(packet, &header) {
                prop_assert!(chain.upper_at <= packet.len());
                prop_assert!(chain.upper_named_at < packet.len());
            }
            let _ = ipv6_ext::walk_hop_by_hop(packet, &header);
        }
        let _ = ipv4::checksum_ok(&data);
    }

    #[test]
    fn upper_layers(
        data in wire_bytes(),
        src: u128,
        dst: u128,
        hop_limit in prop_oneof![Just(255u8), Just(1), any::<u8>()],
        local: bool,
    ) {
        let src = if local { 0xfe80 << 112 | src >> 64 } else { src };
        let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
        if let Ok((_, payload)) = udp::Header::parse(&data) {
            prop_assert!(data.get(payload).is_some());
        }
        let _ = udp::checksum_ok_v4(&data, 0);
        let _ = udp::checksum_ok_v6(&data, 0);
        if let Ok(header) = tcp::Header::parse(&data) {
            prop_assert!(usize::from(header.header_len) <= data.len());
        }
        let _ = icmpv4::Message::parse(&data);
        let _ = icmpv6::Message::parse(&data);
        let _ = icmpv6::checksum_ok(&data, src, dst);
        let envelope = ndp::Envelope { src, dst, hop_limit };
        let options = ndp::options(&data);
        if ndp::Message::parse(&data, &envelope).is_ok() {
            prop_assert!(options.clone().all(|option| option.is_ok()));
        }
        prop_assert!(options.count() <= data.len() / 8 + 1);
        if let Ok((query, at)) = mld::Query::parse(&data, src, hop_limit) {
            prop_assert!(at + 16 * usize::from(query.source_count) <= data.len());
        }
        let mut igmp = data;
        let _ = igmp::Query::parse(&igmp);
        if igmp.len() >= 8 {
            igmp[2..4].fill(0);
            let sum = checksum::finish(checksum::sum(&igmp, 0));
            igmp[2..4].copy_from_slice(&sum.to_be_bytes());
            if let Ok((query, at)) = igmp::Query::parse(&igmp) {
                prop_assert!(at + 4 * usize::from(query.source_count) <= igmp.len());
            }
        }
    }

    #[test]
    fn extension_chains(packet in ipv6_packet(), cut in 0usize..64) {
        let (header, payload) = ipv6::Header::parse(&packet).unwrap();
        prop_assert_eq!(payload.end, packet.len());
        let cut = &packet[..packet.len().saturating_sub(cut).max(40)];
        for packet in [&packet[..], cut] {
            match ipv6_ext::walk(packet, &header) {
                Ok(chain) => {
                    prop_assert!(chain.upper_at <= packet.len());
                    prop_assert_eq!(packet[chain.upper_named_at], chain.upper.0);
                    prop_assert!(
                        chain.fragment.is_some_and(|f| !f.is_atomic())
                            || !chain.upper.is_ipv6_extension()
                    );
                }
                Err(ipv6_ext::ChainError::ParamProblem { pointer, .. }) => {
                    prop_assert!((pointer as usize) <= packet.len());
                }
                Err(_) => {}
            }
        }
    }
}
