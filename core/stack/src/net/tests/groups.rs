//! Tests of group membership: reports to routers, their times, and their versions.

use towpath_wire::{igmp, mld};

use super::*;

const GROUP: &str = "239.1.2.3";

/// Creates an IGMP message from `src` with this TTL.
fn igmp_from(src: &str, dst: &str, ttl: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[2..4].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&message, 0));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = ipv4_packet(src, dst, IpProtocol::IGMP, &message);
    packet[8] = ttl;
    packet[10..12].fill(0);
    let sum = towpath_wire::checksum::finish(towpath_wire::checksum::sum(&packet[..20], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    frame(MAC_A, MAC_B, EtherType::IPV4, &packet)
}

/// Creates a version 3 query about one group, or about all with 0.0.0.0, to be answered within
/// `tenths` of a second.
fn query_v3(tenths: u8, group: &str) -> Vec<u8> {
    let mut message = vec![igmp::QUERY, tenths, 0, 0];
    message.extend(group.parse::<Ipv4Addr>().unwrap().octets());
    message.extend([0; 4]);
    igmp_from("10.0.0.2", "224.0.0.1", 1, &message)
}

fn query_v2(tenths: u8, group: &str) -> Vec<u8> {
    let mut message = vec![igmp::QUERY, tenths, 0, 0];
    message.extend(group.parse::<Ipv4Addr>().unwrap().octets());
    igmp_from("10.0.0.2", "224.0.0.1", 1, &message)
}

/// Returns the IGMP messages sent since the last call: destination, type, and the bytes after the
/// checksum.
fn sent_igmp(host: &mut Host) -> Vec<(Ipv4Addr, u8, Vec<u8>)> {
    let frames = host.sent();
    let messages = frames.iter().filter_map(|frame| {
        let (header, len) = ipv4::Header::parse_quoted(frame.get(14..)?).ok()?;
        let bytes = frame.get(14 + len..14 + usize::from(header.total_len))?;
        (header.protocol == IpProtocol::IGMP).then(|| (header.dst, bytes[0], bytes[4..].to_vec()))
    });
    messages.collect()
}

/// Returns the type and the number of sources of each record in version 3 reports.
fn records(messages: &[(Ipv4Addr, u8, Vec<u8>)]) -> Vec<(u8, u8)> {
    let mut found = Vec::new();
    for (_, kind, body) in messages {
        assert_eq!(*kind, igmp::REPORT_V3);
        let mut at = 4;
        for _ in 0..body[3] {
            found.push((body[at], body[at + 3]));
            at += 8 + 4 * usize::from(body[at + 3]);
        }
    }
    found
}

/// Returns a host that joined a group and reported it.
fn member() -> Host {
    let mut a = Host::a().settled();
    a.net.join_group(a.now, ETH, ip(GROUP), None);
    a.pass(Duration::from_secs(3));
    a.sent();
    a
}

#[test]
fn queries_within_the_delay_are_answered_once_and_not_at_once() {
    let mut a = member();
    // The two queries that a router sends after a leave (RFC 3376 §6.6.3.1).
    a.receive(&query_v3(100, GROUP));
    a.receive(&query_v3(100, GROUP));
    a.pass(Duration::from_millis(5));
    assert!(sent_igmp(&mut a).is_empty());
    a.pass(Duration::from_secs(10));
    assert_eq!(records(&sent_igmp(&mut a)), [(2, 0)]);
    // A pending answer about all groups that is due sooner covers later queries.
    a.receive(&query_v3(1, "0.0.0.0"));
    for _ in 0..5 {
        a.receive(&query_v3(127, GROUP));
    }
    a.pass(Duration::from_secs(1));
    let covered = records(&sent_igmp(&mut a)).len();
    a.pass(Duration::from_secs(20));
    assert_eq!(covered + records(&sent_igmp(&mut a)).len(), 1);
    // A query about a group without members gets no answer.
    a.receive(&query_v3(1, "239.9.9.9"));
    a.pass(Duration::from_secs(20));
    assert!(sent_igmp(&mut a).is_empty());
}

#[test]
fn queries_that_cannot_be_of_this_link_are_not_answered() {
    let mut a = member();
    let message = &query_v3(1, "0.0.0.0")[14 + 20..];
    for (dst, ttl) in [("10.0.0.1", 64), ("224.0.0.1", 64), ("10.0.0.255", 1), ("224.0.0.1", 2)] {
        let query = igmp_from("10.0.0.2", dst, ttl, message);
        assert_eq!(a.refusal(&query), Some(DropReason::IcmpMalformed), "{dst} {ttl}");
    }
    a.pass(Duration::from_secs(20));
    assert!(sent_igmp(&mut a).is_empty());
    // A query to an address of the interface is valid, like one to a group (RFC 3376 §4.1.12).
    assert_eq!(a.refusal(&igmp_from("10.0.0.2", "10.0.0.1", 1, message)), None);
    a.pass(Duration::from_secs(20));
    assert_eq!(records(&sent_igmp(&mut a)), [(2, 0)]);
}

#[test]
fn older_queriers_hear_what_they_understand() {
    let mut a = member();
    a.receive(&query_v2(20, "0.0.0.0"));
    a.pass(Duration::from_secs(3));
    let group: Ipv4Addr = GROUP.parse().unwrap();
    assert_eq!(sent_igmp(&mut a), [(group, igmp::REPORT_V2, group.octets().to_vec())]);
    let other: Ipv4Addr = "239.7.7.7".parse().unwrap();
    a.net.join_group(a.now, ETH, other.into(), None);
    a.pass(Duration::from_secs(3));
    let joined = (other, igmp::REPORT_V2, other.octets().to_vec());
    assert_eq!(sent_igmp(&mut a), [joined.clone(), joined]);
    a.net.leave_group(a.now, ETH, other.into(), None);
    a.pass(Duration::from_secs(3));
    let left = (addr::ALL_ROUTERS_V4, igmp::LEAVE_V2, other.octets().to_vec());
    assert_eq!(sent_igmp(&mut a)[0], left);

    // With a version 2 querier, the report of another member suppresses the host's own.
    a.receive(&query_v2(100, "0.0.0.0"));
    let mut report = [0; igmp::V2_LEN];
    igmp::emit_report_v2(group, &mut report);
    a.receive(&igmp_from("10.0.0.2", GROUP, 1, &report));
    a.pass(Duration::from_secs(11));
    assert!(sent_igmp(&mut a).is_empty());

    // An older querier is forgotten after its timeout.
    a.pass(limits::OLDER_QUERIER_TIME);
    a.receive(&query_v3(1, "0.0.0.0"));
    a.pass(Duration::from_secs(1));
    assert_eq!(records(&sent_igmp(&mut a)), [(2, 0)]);
    // Version 1 has its own report type, and no leave message.
    a.receive(&query_v2(0, "0.0.0.0"));
    a.pass(Duration::from_secs(11));
    assert_eq!(sent_igmp(&mut a), [(group, igmp::REPORT_V1, group.octets().to_vec())]);
    a.net.leave_group(a.now, ETH, group.into(), None);
    a.pass(Duration::from_secs(3));
    assert!(sent_igmp(&mut a).is_empty());
}

#[test]
fn joins_and_leaves_are_repeated_and_name_their_sources() {
    let mut a = Host::a().settled();
    let (group, now) = (ip("232.1.1.1"), a.now);
    let told = |a: &mut Host| {
        a.pass(Duration::from_secs(3));
        records(&sent_igmp(a))
    };
    assert!(a.net.join_group(now, ETH, group, Some(ip("192.0.2.1"))));
    assert_eq!(told(&mut a), [(5, 1), (5, 1)], "ALLOW_NEW_SOURCES");
    assert!(a.net.join_group(now, ETH, group, Some(ip("192.0.2.2"))));
    assert_eq!(told(&mut a), [(5, 1), (5, 1)]);
    a.receive(&query_v3(1, "0.0.0.0"));
    assert_eq!(told(&mut a), [(1, 2)], "MODE_IS_INCLUDE");
    assert!(a.net.leave_group(now, ETH, group, Some(ip("192.0.2.1"))));
    assert_eq!(told(&mut a), [(6, 1), (6, 1)], "BLOCK_OLD_SOURCES");
    assert!(a.net.join_group(now, ETH, group, None));
    assert_eq!(told(&mut a), [(4, 0), (4, 0)], "CHANGE_TO_EXCLUDE_MODE");
    assert!(a.net.leave_group(now, ETH, group, None));
    assert_eq!(told(&mut a), [(3, 1), (3, 1)], "CHANGE_TO_INCLUDE_MODE");
    assert!(a.net.leave_group(now, ETH, group, Some(ip("192.0.2.2"))));
    assert_eq!(told(&mut a), [(6, 1), (6, 1)]);
    assert!(!a.net.leave_group(now, ETH, group, Some(ip("192.0.2.2"))));
    assert!(!a.net.is_member(ETH, group));
    // Sources have a limit.
    let sources = (0..100u32).map(|n| IpAddr::V4((0xc000_0200 + n).into()));
    let joined = sources.filter(|source| a.net.join_group(a.now, ETH, group, Some(*source)));
    assert_eq!(joined.count(), 64);
    a.pass(Duration::from_secs(3));
    a.sent();
    a.receive(&query_v3(1, "0.0.0.0"));
    assert_eq!(told(&mut a), [(1, 64)]);
}

/// Creates an MLD query about all groups, with or without a Router Alert option.
fn mld_query(v1: bool, alert: bool) -> Vec<u8> {
    let mut message = vec![0; if v1 { 24 } else { 28 }];
    message[0] = mld::QUERY;
    message[4..6].copy_from_slice(&1000u16.to_be_bytes());
    icmpv6::fill_checksum(&mut message, ROUTER.parse().unwrap(), addr::ALL_NODES);
    let mut payload = Vec::new();
    if alert {
        payload.extend([IpProtocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0]);
    }
    payload.extend(message);
    let next = if alert { IpProtocol::HOP_BY_HOP } else { IpProtocol::ICMPV6 };
    let packet = ipv6_packet(ROUTER, "ff02::1", next, 1, &payload);
    frame(MacAddr::from_multicast_v6(addr::ALL_NODES), ROUTER_MAC, EtherType::IPV6, &packet)
}

/// Returns the types of the MLD messages sent since the last call.
fn sent_mld(host: &mut Host) -> Vec<u8> {
    let frames = host.sent();
    let kinds = frames.iter().filter_map(|frame| frame.get(62).copied());
    kinds.filter(|kind| [mld::REPORT_V1, mld::DONE_V1, mld::REPORT_V2].contains(kind)).collect()
}

#[test]
fn mld_queries_need_the_router_alert_and_older_ones_are_answered_in_kind() {
    let mut a = Host::a().settled();
    a.pass(Duration::from_secs(3));
    a.sent();
    for v1 in [false, true] {
        assert_eq!(a.refusal(&mld_query(v1, false)), Some(DropReason::IcmpMalformed));
    }
    a.pass(Duration::from_secs(3));
    assert!(sent_mld(&mut a).is_empty());
    assert_eq!(a.refusal(&mld_query(false, true)), None);
    a.pass(Duration::from_secs(3));
    assert_eq!(sent_mld(&mut a), [mld::REPORT_V2]);
    assert_eq!(a.refusal(&mld_query(true, true)), None);
    a.pass(Duration::from_secs(3));
    // Each of the two addresses has a solicited-node group.
    assert_eq!(sent_mld(&mut a), [mld::REPORT_V1; 2]);
    a.net.join_group(a.now, ETH, ip("ff02::77"), None);
    a.net.leave_group(a.now, ETH, ip("ff02::77"), None);
    a.pass(Duration::from_secs(3));
    assert_eq!(sent_mld(&mut a)[0], mld::DONE_V1);
}

#[test]
fn groups_are_reported_again_when_there_is_an_address_to_report_from() {
    let mut a = Host::a();
    a.pass(Duration::from_secs(5));
    let (mut from_nowhere, mut from_link_local) = (0, 0);
    for frame in a.sent() {
        let Ok((header, _)) = ipv6::Header::parse(&frame[14..]) else { continue };
        if frame.get(62) != Some(&mld::REPORT_V2) {
            continue;
        }
        if header.src.is_unspecified() {
            from_nowhere += 1;
        } else {
            assert!(header.src.is_unicast_link_local());
            // Both solicited-node groups in one report.
            from_link_local = from_link_local.max(frame[14 + 40 + 8 + 7]);
        }
    }
    assert!(from_nowhere > 0);
    assert_eq!(from_link_local, 2);
}

#[test]
fn addresses_find_room_for_their_groups_whatever_programs_joined() {
    let mut host = slaac_host();
    let groups = (0..1000u16).map(|n| IpAddr::V6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, n)));
    let joined = groups.filter(|group| host.net.join_group(host.now, ETH, *group, None)).count();
    assert!(joined <= limits::GROUPS_MAX);
    host.pass(Duration::from_secs(3));
    host.sent();
    host.receive(&from_router("ff02::1", &advert(1800), &[announced(7200, 3600)]));
    let IpAddr::V6(made) = global(&host).unwrap().addr() else { panic!("IPv6") };
    assert!(host.net.is_member(ETH, addr::solicited_node(made).into()));
}
