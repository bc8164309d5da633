//! ICMP, neighbour discovery and group membership.

use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_wire::mld::RecordKind;
use towpath_wire::ndp::{Envelope, NdpOption, Preference, PrefixInfo, RouteInfo, RouterAdvert};
use towpath_wire::{MacAddr, ParseError, addr, checksum, icmpv4, icmpv6, igmp, mld, ndp};

fn ip6(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}

fn icmpv4_message() -> impl Strategy<Value = icmpv4::Message> {
    use icmpv4::Message::*;
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(ident, seq)| EchoRequest { ident, seq }),
        any::<(u16, u16)>().prop_map(|(ident, seq)| EchoReply { ident, seq }),
        any::<u16>().prop_map(|next_hop_mtu| DestUnreachable {
            code: icmpv4::UNREACHABLE_FRAG_NEEDED,
            next_hop_mtu
        }),
        (0u8..4).prop_map(|code| DestUnreachable { code, next_hop_mtu: 0 }),
        any::<u8>().prop_map(|code| TimeExceeded { code }),
        any::<(u8, u8)>().prop_map(|(code, pointer)| ParamProblem { code, pointer }),
        (0u8..4, any::<u32>()).prop_map(|(code, g)| Redirect { code, gateway: g.into() }),
        (13u8.., any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Unknown {
            kind,
            code,
            rest
        }),
    ]
}

fn icmpv6_message() -> impl Strategy<Value = icmpv6::Message> {
    use icmpv6::Message::*;
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(ident, seq)| EchoRequest { ident, seq }),
        any::<(u16, u16)>().prop_map(|(ident, seq)| EchoReply { ident, seq }),
        any::<u8>().prop_map(|code| DestUnreachable { code }),
        any::<u32>().prop_map(|mtu| PacketTooBig { mtu }),
        any::<u8>().prop_map(|code| TimeExceeded { code }),
        any::<(u8, u32)>().prop_map(|(code, pointer)| ParamProblem { code, pointer }),
        (130u8.., any::<u8>(), any::<[u8; 4]>()).prop_map(|(kind, code, rest)| Unknown {
            kind,
            code,
            rest
        }),
    ]
}

proptest! {
    #[test]
    fn icmpv4_round_trip(
        message in icmpv4_message(),
        body in prop::collection::vec(any::<u8>(), 0..64),
        flip: prop::sample::Index,
    ) {
        let mut buf = vec![0xaa; 8];
        prop_assert_eq!(message.emit(&mut buf), 8);
        buf.extend(body);
        icmpv4::fill_checksum(&mut buf);
        prop_assert!(icmpv4::checksum_ok(&buf));
        prop_assert_eq!(icmpv4::Message::parse(&buf), Ok((message, 8)));
        let at = flip.index(buf.len());
        buf[at] ^= 0x10;
        prop_assert!(!icmpv4::checksum_ok(&buf));
    }

    #[test]
    fn icmpv6_round_trip(
        message in icmpv6_message(),
        body in prop::collection::vec(any::<u8>(), 0..64),
        src: u128,
        dst: u128,
    ) {
        let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
        let mut buf = vec![0xaa; 8];
        prop_assert_eq!(message.emit(&mut buf), 8);
        buf.extend(body);
        icmpv6::fill_checksum(&mut buf, src, dst);
        prop_assert!(icmpv6::checksum_ok(&buf, src, dst));
        prop_assert!(!icmpv6::checksum_ok(&buf, src, Ipv6Addr::from(u128::from(dst) ^ 1)));
        prop_assert_eq!(icmpv6::Message::parse(&buf), Ok((message, 8)));
    }

    #[test]
    fn ndp_round_trip(message in ndp_message()) {
        let mut buf = [0xaa; ndp::MESSAGE_LEN_MAX];
        let len = message.emit(&mut buf);
        let envelope = Envelope { src: ip6("fe80::1"), dst: ip6("fe80::2"), hop_limit: 255 };
        let parsed = ndp::Message::parse(&buf[..len], &envelope).map(|(message, _)| message);
        prop_assert_eq!(parsed, Ok(message));
        prop_assert!(ndp::Message::parse(&buf[..len - 1], &envelope).is_err());
        for hop_limit in [0, 1, 254] {
            let envelope = Envelope { hop_limit, ..envelope };
            prop_assert_eq!(
                ndp::Message::parse(&buf[..len], &envelope),
                Err(ParseError::BadHopLimit)
            );
        }
    }

    #[test]
    fn router_advert_options(
        len in 0u8..=128,
        on_link: bool,
        autonomous: bool,
        valid_s: u32,
        preferred_s: u32,
        prefix: u128,
        pref in preference(),
    ) {
        let prefix_info =
            PrefixInfo { prefix: prefix.into(), len, on_link, autonomous, valid_s, preferred_s };
        let route = RouteInfo { prefix: prefix.into(), len, preference: pref, lifetime_s: valid_s };
        let mut buf = [0; 128];
        let mut end = ndp::Message::RouterAdvert(ADVERT).emit(&mut buf);
        end += prefix_info.emit(&mut buf[end..]);
        end += route.emit(&mut buf[end..]);
        // A recursive DNS server option (RFC 8106): skipped.
        buf[end..end + 2].copy_from_slice(&[25, 3]);
        end += 24;
        let envelope = Envelope { src: ip6("fe80::1"), dst: addr::ALL_NODES, hop_limit: 255 };
        ndp::Message::parse(&buf[..end], &envelope).unwrap();
        let options: Result<Vec<_>, _> = ndp::options(&buf[..end]).collect();
        prop_assert_eq!(options, Ok(vec![
            NdpOption::SourceLinkAddr(MAC),
            NdpOption::Mtu(1500),
            NdpOption::PrefixInfo(prefix_info),
            NdpOption::RouteInfo(route),
            NdpOption::Unknown { kind: 25 },
        ]));
    }
}

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const ADVERT: RouterAdvert = RouterAdvert {
    hop_limit: 64,
    managed: false,
    other: true,
    preference: Preference::Medium,
    lifetime_s: 1800,
    reachable_ms: 0,
    retrans_ms: 1000,
    source_ll: Some(MAC),
    mtu: Some(1500),
};

fn preference() -> impl Strategy<Value = Preference> {
    prop_oneof![Just(Preference::Low), Just(Preference::Medium), Just(Preference::High)]
}

fn ndp_message() -> impl Strategy<Value = ndp::Message> {
    use ndp::Message::*;
    let mac = || proptest::option::of(any::<[u8; 6]>().prop_map(MacAddr));
    let unicast =
        || any::<u128>().prop_map(|bits| Ipv6Addr::from(bits & !(0xff << 120) | 0x20 << 120));
    let advert =
        (any::<(u8, bool, bool, u16, u32, u32)>(), preference(), mac(), any::<Option<u32>>());
    prop_oneof![
        mac().prop_map(|source_ll| RouterSolicit { source_ll }),
        advert.prop_map(
            |(
                (hop_limit, managed, other, lifetime_s, reachable_ms, retrans_ms),
                preference,
                source_ll,
                mtu,
            )| {
                RouterAdvert(ndp::RouterAdvert {
                    hop_limit,
                    managed,
                    other,
                    preference,
                    lifetime_s,
                    reachable_ms,
                    retrans_ms,
                    source_ll,
                    mtu,
                })
            }
        ),
        (unicast(), mac()).prop_map(|(target, source_ll)| NeighborSolicit { target, source_ll }),
        (any::<(bool, bool, bool)>(), unicast(), mac()).prop_map(
            |((router, solicited, override_), target, target_ll)| {
                NeighborAdvert { router, solicited, override_, target, target_ll }
            }
        ),
        (unicast(), mac()).prop_map(|(dst, target_ll)| Redirect { target: dst, dst, target_ll }),
        (unicast(), mac()).prop_map(|(dst, target_ll)| Redirect {
            target: ip6("fe80::9"),
            dst,
            target_ll
        }),
    ]
}

fn parse_from(message: ndp::Message, src: &str, dst: &str) -> Result<(), ParseError> {
    let mut buf = [0; ndp::MESSAGE_LEN_MAX];
    let len = message.emit(&mut buf);
    let envelope = Envelope { src: ip6(src), dst: ip6(dst), hop_limit: 255 };
    ndp::Message::parse(&buf[..len], &envelope).map(|_| ())
}

#[test]
fn solicitations_from_nowhere() {
    let probe =
        |source_ll| ndp::Message::NeighborSolicit { target: ip6("fe80::28:9c5a"), source_ll };
    let group = "ff02::1:ff28:9c5a";
    assert_eq!(parse_from(probe(None), "::", group), Ok(()));
    assert_eq!(parse_from(probe(None), "::", "ff02::1"), Err(ParseError::BadAddress));
    assert_eq!(parse_from(probe(Some(MAC)), "::", group), Err(ParseError::BadOption));
    assert_eq!(parse_from(probe(Some(MAC)), "fe80::1", group), Ok(()));
    let multicast = ndp::Message::NeighborSolicit { target: ip6("ff02::1"), source_ll: None };
    assert_eq!(parse_from(multicast, "fe80::1", group), Err(ParseError::BadAddress));

    let routers = |source_ll| ndp::Message::RouterSolicit { source_ll };
    assert_eq!(parse_from(routers(None), "::", "ff02::2"), Ok(()));
    assert_eq!(parse_from(routers(Some(MAC)), "::", "ff02::2"), Err(ParseError::BadOption));
}

#[test]
fn adverts_that_lie() {
    let advert = ndp::Message::RouterAdvert(ADVERT);
    assert_eq!(parse_from(advert, "fe80::1", "ff02::1"), Ok(()));
    assert_eq!(parse_from(advert, "2001:db8::1", "ff02::1"), Err(ParseError::BadAddress));
    let neighbor = |solicited| ndp::Message::NeighborAdvert {
        router: false,
        solicited,
        override_: true,
        target: ip6("fe80::1"),
        target_ll: Some(MAC),
    };
    assert_eq!(parse_from(neighbor(false), "fe80::1", "ff02::1"), Ok(()));
    assert_eq!(parse_from(neighbor(true), "fe80::1", "ff02::1"), Err(ParseError::BadField));
    assert_eq!(parse_from(neighbor(true), "fe80::1", "fe80::2"), Ok(()));
}

#[test]
fn redirects_that_lie() {
    let redirect = |target, dst| ndp::Message::Redirect {
        target: ip6(target),
        dst: ip6(dst),
        target_ll: None,
    };
    assert_eq!(parse_from(redirect("fe80::9", "2001:db8::1"), "fe80::1", "fe80::2"), Ok(()));
    let bad = Err(ParseError::BadAddress);
    assert_eq!(parse_from(redirect("fe80::9", "2001:db8::1"), "2001:db8::2", "fe80::2"), bad);
    assert_eq!(parse_from(redirect("2001:db8::9", "2001:db8::1"), "fe80::1", "fe80::2"), bad);
    assert_eq!(parse_from(redirect("fe80::9", "ff02::1"), "fe80::1", "fe80::2"), bad);
}

#[test]
fn option_of_length_zero_costs_the_message() {
    let mut buf = [0; 24];
    ndp::Message::RouterSolicit { source_ll: Some(MAC) }.emit(&mut buf);
    let envelope = Envelope { src: ip6("fe80::1"), dst: addr::ALL_ROUTERS, hop_limit: 255 };
    assert!(ndp::Message::parse(&buf[..16], &envelope).is_ok());
    assert_eq!(ndp::Message::parse(&buf, &envelope), Err(ParseError::BadOption));
    buf[1] = 1;
    assert_eq!(ndp::Message::parse(&buf[..16], &envelope), Err(ParseError::BadCode));
}

#[test]
fn route_info_carries_as_much_prefix_as_it_needs() {
    let advert = |option: &[u8]| {
        let mut buf = vec![0; 16];
        ndp::Message::RouterAdvert(RouterAdvert { source_ll: None, mtu: None, ..ADVERT })
            .emit(&mut buf);
        buf.extend(option);
        ndp::options(&buf).collect::<Result<Vec<_>, _>>()
    };
    let default = [24, 1, 0, 0x08, 0, 0, 0, 9];
    let route =
        RouteInfo { prefix: ip6("::"), len: 0, preference: Preference::High, lifetime_s: 9 };
    assert_eq!(advert(&default), Ok(vec![NdpOption::RouteInfo(route)]));
    let reserved = [24, 1, 0, 0x10, 0, 0, 0, 9];
    assert_eq!(advert(&reserved), Ok(vec![NdpOption::Unknown { kind: 24 }]));
    let too_long = [24, 1, 8, 0, 0, 0, 0, 9];
    assert_eq!(advert(&too_long), Ok(vec![NdpOption::Unknown { kind: 24 }]));
}

#[test]
fn an_option_that_makes_no_sense_costs_only_itself() {
    let prefix = |len| ndp::PrefixInfo {
        prefix: ip6("2001:db8::"),
        len,
        on_link: true,
        autonomous: true,
        valid_s: 60,
        preferred_s: 30,
    };
    let mut buf = vec![0; 16];
    ndp::Message::RouterAdvert(RouterAdvert { source_ll: None, mtu: None, ..ADVERT })
        .emit(&mut buf);
    for len in [129, 64] {
        let mut option = [0; ndp::PrefixInfo::LEN];
        prefix(len).emit(&mut option);
        buf.extend(option);
    }
    buf.extend([24, 1, 8, 0, 0, 0, 0, 9]);
    buf.extend([5, 1, 0, 0, 0, 0, 5, 220]);
    let envelope = Envelope { src: ip6("fe80::1"), dst: addr::ALL_NODES, hop_limit: 255 };
    icmpv6::fill_checksum(&mut buf, envelope.src, envelope.dst);
    let Ok((ndp::Message::RouterAdvert(advert), _)) = ndp::Message::parse(&buf, &envelope) else {
        panic!("it is one")
    };
    assert_eq!(advert.mtu, Some(1500));
    let options: Result<Vec<_>, _> = ndp::options(&buf).collect();
    let known = [NdpOption::PrefixInfo(prefix(64)), NdpOption::Mtu(1500)];
    let options = options.unwrap();
    assert_eq!(options.len(), 4);
    assert!(known.iter().all(|option| options.contains(option)));
}

#[test]
fn errors_are_told_from_questions() {
    assert!(icmpv4::Message::Redirect { code: 1, gateway: Ipv4Addr::LOCALHOST }.is_error());
    assert!(!icmpv4::Message::EchoRequest { ident: 1, seq: 1 }.is_error());
    assert!(icmpv6::Message::Unknown { kind: 100, code: 0, rest: [0; 4] }.is_error());
    assert!(!icmpv6::Message::Unknown { kind: 200, code: 0, rest: [0; 4] }.is_error());
    assert!(icmpv6::Message::PacketTooBig { mtu: 1280 }.is_error());
}

#[test]
fn mld_queries() {
    let router = ip6("fe80::1");
    let mut v1 = vec![0; 24];
    v1[0] = mld::QUERY;
    v1[4..6].copy_from_slice(&10_000u16.to_be_bytes());
    let (query, _) = mld::Query::parse(&v1, router, 1).unwrap();
    assert_eq!(
        (query.version, query.max_response_ms, query.group),
        (mld::Version::V1, 10_000, None)
    );
    assert_eq!(mld::Query::parse(&v1, router, 255), Err(ParseError::BadHopLimit));
    assert_eq!(mld::Query::parse(&v1, ip6("2001:db8::1"), 1), Err(ParseError::BadAddress));
    assert_eq!(mld::Query::parse(&v1[..23], router, 1), Err(ParseError::Truncated));

    let group = ip6("ff02::1:ff00:1");
    let mut v2 = v1.clone();
    v2.extend([2, 125, 0, 1]);
    // Exponent 1, mantissa 2: (2 | 0x1000) << 4.
    v2[4..6].copy_from_slice(&0x9002u16.to_be_bytes());
    v2[8..24].copy_from_slice(&group.octets());
    assert_eq!(mld::Query::parse(&v2, router, 1), Err(ParseError::Truncated));
    v2.extend([0; 16]);
    let (query, sources_at) = mld::Query::parse(&v2, router, 1).unwrap();
    assert_eq!((query.version, query.max_response_ms), (mld::Version::V2, 0x1002 << 4));
    assert_eq!((query.group, query.source_count, sources_at), (Some(group), 1, 28));
}

#[test]
fn mld_reports() {
    let (src, group) = (ip6("fe80::2"), ip6("ff02::1:ff00:2"));
    let sources = [ip6("2001:db8::1")];
    let records = [
        mld::Record { kind: RecordKind::ToExclude, group, sources: &[] },
        mld::Record { kind: RecordKind::IsInclude, group, sources: &sources },
    ];
    let mut buf = [0xaa; 128];
    let len = mld::emit_report_v2(&records, src, &mut buf);
    assert_eq!(len, 8 + records.iter().map(mld::Record::emitted_len).sum::<usize>());
    let report = &buf[..len];
    assert!(icmpv6::checksum_ok(report, src, addr::ALL_MLDV2_ROUTERS));
    assert_eq!((report[0], &report[6..8]), (143, &[0, 2][..]));
    assert_eq!(report[8..12], [4, 0, 0, 0]);
    assert_eq!(report[12..28], group.octets());
    assert_eq!(report[28..32], [1, 0, 0, 1]);
    assert_eq!(report[48..64], sources[0].octets());

    let len = mld::emit_report_v1(group, src, &mut buf);
    assert!(icmpv6::checksum_ok(&buf[..len], src, group));
    assert_eq!((buf[0], len), (131, 24));
    let len = mld::emit_done_v1(group, src, &mut buf);
    assert!(icmpv6::checksum_ok(&buf[..len], src, addr::ALL_ROUTERS));
    assert_eq!(buf[0], 132);
}

fn igmp_query(code: u8, tail: &[u8]) -> Result<igmp::Query, ParseError> {
    let mut bytes = vec![igmp::QUERY, code, 0, 0, 224, 1, 2, 3];
    bytes.extend(tail);
    let sum = checksum::finish(checksum::sum(&bytes, 0));
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    igmp::Query::parse(&bytes).map(|(query, _)| query)
}

#[test]
fn igmp_queries() {
    let version_and_time =
        |code, tail| igmp_query(code, tail).map(|q| (q.version, q.max_response_ms));
    assert_eq!(version_and_time(0, &[]), Ok((igmp::Version::V1, 10_000)));
    assert_eq!(version_and_time(100, &[]), Ok((igmp::Version::V2, 10_000)));
    assert_eq!(version_and_time(200, &[]), Ok((igmp::Version::V2, 20_000)));
    assert_eq!(version_and_time(100, &[2, 125, 0, 0]), Ok((igmp::Version::V3, 10_000)));
    // Exponent 1, mantissa 2: (2 | 16) << 4 tenths of a second.
    assert_eq!(version_and_time(0x92, &[2, 125, 0, 0]), Ok((igmp::Version::V3, 28_800)));
    assert_eq!(version_and_time(100, &[2, 125, 0, 1]), Err(ParseError::Truncated));
    assert_eq!(version_and_time(100, &[2, 125]), Err(ParseError::BadLength));
    assert_eq!(igmp_query(1, &[]).unwrap().group, Some(Ipv4Addr::new(224, 1, 2, 3)));
    let damaged = [igmp::QUERY, 0, 0, 0, 224, 1, 2, 3];
    assert_eq!(igmp::Query::parse(&damaged), Err(ParseError::BadChecksum));
}

#[test]
fn igmp_reports() {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let sources = [Ipv4Addr::new(10, 0, 0, 1)];
    let records = [
        igmp::Record { kind: RecordKind::ToInclude, group, sources: &[] },
        igmp::Record { kind: RecordKind::IsExclude, group, sources: &sources },
    ];
    let mut buf = [0xaa; 64];
    let len = igmp::emit_report_v3(&records, &mut buf);
    let report = &buf[..len];
    assert_eq!(checksum::finish(checksum::sum(report, 0)), 0);
    assert_eq!(len, 8 + 8 + 12);
    assert_eq!((report[0], report[7]), (0x22, 2));
    assert_eq!(report[8..16], [3, 0, 0, 0, 239, 1, 2, 3]);
    assert_eq!(report[16..28], [2, 0, 0, 1, 239, 1, 2, 3, 10, 0, 0, 1]);

    for (emit, kind) in [
        (igmp::emit_report_v1 as fn(Ipv4Addr, &mut [u8]) -> usize, 0x12),
        (igmp::emit_report_v2, 0x16),
        (igmp::emit_leave_v2, 0x17),
    ] {
        let len = emit(group, &mut buf);
        assert_eq!((len, buf[0], &buf[4..8]), (8, kind, &[239, 1, 2, 3][..]));
        assert_eq!(checksum::finish(checksum::sum(&buf[..len], 0)), 0);
    }
}
