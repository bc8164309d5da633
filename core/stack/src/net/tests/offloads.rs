//! Offload metadata of packets that a router forwards, as their sender may have written them.

use towpath_wire::checksum;

use super::forward::{large_tcp, router, router_with, v4};
use super::*;

/// Returns whether a packet is refused for its offload metadata, which its sender may have chosen.
fn is_refused_for_its_offloads(packet: Packet, router: &mut Host) -> bool {
    let before = router.drops(DropReason::OffloadInvalid);
    assert!(router.net.receive(router.now, ETH, packet, &mut router.pool).is_none());
    let refused = router.drops(DropReason::OffloadInvalid) - before;
    assert_eq!((router.out().is_empty(), refused), (refused == 1, refused));
    refused == 1
}

#[test]
fn segments_have_to_be_those_of_the_headers() {
    type Change = fn(&mut Segmentation, &mut u16, &mut u16);
    let changes: [(&str, Change); 9] = [
        ("of UDP", |how, _, _| how.protocol = Protocol::Udp),
        ("of another version", |how, start, _| {
            how.protocol = if *start == 34 { Protocol::Tcp6 } else { Protocol::Tcp4 };
        }),
        ("of no bytes", |how, _, _| how.size = 0),
        ("too many", |how, _, _| how.size = 1),
        ("headers too short", |how, _, _| how.header_len -= 4),
        ("headers too long", |how, _, _| how.header_len += 4),
        ("headers without IP", |how, start, _| (how.header_len, *start) = (20, 0)),
        ("checksum elsewhere", |_, start, _| *start += 2),
        ("checksum in the port", |_, _, offset| *offset = 2),
    ];
    for v6 in [false, true] {
        for (name, change) in changes {
            let mut router = router();
            let mut packet = large_tcp(&mut router, v6, 1000, 2500, true);
            let Checksum::Partial { mut start, mut offset } = packet.meta.checksum else {
                panic!()
            };
            change(packet.meta.segmentation.as_mut().unwrap(), &mut start, &mut offset);
            packet.meta.checksum = Checksum::Partial { start, offset };
            assert!(is_refused_for_its_offloads(packet, &mut router), "{name}, IPv6: {v6}");
        }
    }
}

/// The device finds all headers in the frame, but the IP packet ends before them.
#[test]
fn segments_of_an_ip_packet_that_ends_in_its_headers_are_refused() {
    for len in 20..40_u16 {
        let mut router = router();
        let mut packet = large_tcp(&mut router, false, 7, 100, true);
        packet.linear_mut()[16..18].copy_from_slice(&len.to_be_bytes());
        packet.linear_mut()[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&packet.linear()[14..34], 0));
        packet.linear_mut()[24..26].copy_from_slice(&sum.to_be_bytes());
        assert!(is_refused_for_its_offloads(packet, &mut router), "{len} bytes");
    }
}

/// At any other offset, completing the checksum would change a port after rules have matched.
#[test]
fn a_checksum_left_out_has_to_be_at_its_own_place() {
    let mut router = router();
    let all = (0..120).flat_map(|start| (0..20).map(move |offset| (start, offset)));
    for (start, offset) in all {
        let mut packet = large_tcp(&mut router, false, 1000, 50, true);
        packet.meta.segmentation = None;
        packet.meta.checksum = Checksum::Partial { start, offset };
        let refused = is_refused_for_its_offloads(packet, &mut router);
        assert_eq!(refused, (start, offset) != (34, 16), "{start} {offset}");
    }
}

/// Linux leaves the checksum of a TCP segment in VXLAN out over a veth.
#[test]
fn a_checksum_left_out_within_a_tunnel_is_completed() {
    for offloads in [NONE, ALL] {
        completes_inner_checksums(router_with(Forwarding::default(), offloads));
    }
}

fn completes_inner_checksums(mut router: Host) {
    let inner = 34 + 8 + 8 + 14 + 20;
    for (start, is_refused) in [(34, true), (42, true), (50, true), (inner, false), (300, true)] {
        let bytes = v4(9, 100, |header| header.dont_fragment = true);
        let mut packet = router.packet(&frame(MAC_A, MAC_B, EtherType::IPV4, &bytes));
        packet.meta.checksum = Checksum::Partial { start, offset: 16 };
        let place = usize::from(start) + 16;
        // Sum of a pseudo-header whose bytes are all 0.
        if let Some(field) = packet.linear_mut().get_mut(place..place + 2) {
            field.fill(0);
        }
        let before = router.drops(DropReason::OffloadInvalid);
        router.net.receive(router.now, ETH, packet, &mut router.pool);
        let refused = router.drops(DropReason::OffloadInvalid) > before;
        assert_eq!(refused, is_refused, "{start}");
        for left in router.out() {
            let start = usize::from(start) - 14;
            assert_eq!(checksum::finish(checksum::sum(&left.linear()[start..], 0)), 0);
            assert_eq!(left.meta.checksum, Checksum::Unknown);
        }
    }
}
