//! Tests that a cached route follows its neighbour's MAC address, without further hashes.

use super::*;

const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);

fn arp_reply(sender: (&str, MacAddr), target: &str) -> Vec<u8> {
    let message = arp::ArpPacket {
        op: arp::ArpOp::Reply,
        sender_mac: sender.1,
        sender_ip: sender.0.parse().unwrap(),
        target_mac: MAC_A,
        target_ip: target.parse().unwrap(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    frame(MAC_A, sender.1, EtherType::ARP, &bytes)
}

/// Returns a host with two routers, the first of which has answered, and a route through it.
fn routed() -> (Host, Route) {
    let mut a = Host::a().settled();
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.8")), ETH, 1);
    a.net.add_route(Prefix::ALL_V4, Some(ip("10.0.0.9")), ETH, 2);
    let kept = keep(&mut a);
    assert_eq!(kept.next_hop, ip("10.0.0.8"));
    send_over(&mut a, &kept);
    a.receive(&arp_reply(("10.0.0.8", MAC_B), "10.0.0.1"));
    assert_eq!(macs(&mut a), [MacAddr::BROADCAST, MAC_B], "the question, and what waited");
    (a, kept)
}

fn keep(host: &mut Host) -> Route {
    host.net.route_to_keep(host.now, None, ip("192.0.2.1"), None).unwrap()
}

fn send_over(host: &mut Host, route: &Route) {
    let packet = udp_packet(&mut host.pool, 1);
    let fragmenting = Fragmenting::Anywhere;
    let protocol = IpProtocol::UDP.0;
    let out = Ip { protocol, ttl: None, tos: 0, fragmenting, flow_label: 0 };
    let (now, pool, dst) = (host.now, &mut host.pool, ip("192.0.2.1"));
    host.net.send(now, route, route.src, dst, out, packet, Some(6), pool).unwrap();
}

/// Returns the destinations of the frames sent since the last call.
fn macs(host: &mut Host) -> Vec<MacAddr> {
    let frames = host.sent();
    frames.iter().map(|frame| ethernet::Header::parse(frame).unwrap().0.dst).collect()
}

#[test]
fn who_keeps_a_route_follows_its_router() {
    let (mut a, kept) = routed();
    send_over(&mut a, &kept);
    assert_eq!(macs(&mut a), [MAC_B]);
    // The neighbour announces another MAC address.
    a.receive(&arp_reply(("10.0.0.8", OTHER_MAC), "10.0.0.8"));
    send_over(&mut a, &kept);
    assert_eq!(macs(&mut a), [OTHER_MAC]);
    assert_eq!(kept.generation, a.net.route_generation(), "the way is the same");

    // The neighbour stops answering. Packets go to it until its probes have failed, and then to the
    // other router.
    a.pass(Duration::from_secs(5));
    assert_eq!(macs(&mut a), [OTHER_MAC], "asked whether it is there");
    send_over(&mut a, &kept);
    assert_eq!(macs(&mut a), [OTHER_MAC]);
    a.pass(Duration::from_secs(3));
    assert_ne!(kept.generation, a.net.route_generation());
    let kept = keep(&mut a);
    assert_eq!(kept.next_hop, ip("10.0.0.9"));
    macs(&mut a);
    send_over(&mut a, &kept);
    a.receive(&arp_reply(("10.0.0.9", MAC_B), "10.0.0.1"));
    assert_eq!(macs(&mut a).last(), Some(&MAC_B));
}

#[test]
fn a_packet_over_a_route_that_is_kept_costs_no_hash() {
    let (mut a, kept) = routed();
    let hashes = a.net.data.next_hops.hashes;
    for _ in 0..100 {
        send_over(&mut a, &kept);
        a.pass(Duration::from_millis(100));
    }
    assert_eq!(a.net.data.next_hops.hashes, hashes);
    // Without a cached entry, a recently used next hop is found without a hash, any other by a
    // hash.
    send_over(&mut a, &Route { hop: None, ..kept });
    assert_eq!(a.net.data.next_hops.hashes, hashes);
    send_over(&mut a, &Route { hop: None, next_hop: ip("10.0.0.77"), ..kept });
    assert_eq!(a.net.data.next_hops.hashes, hashes + 1);
    assert!(a.sent().len() > 100);
}

#[test]
fn a_next_hop_that_others_took_the_place_of_is_found_again() {
    let (mut a, kept) = routed();
    for n in 0..2 * limits::NEXT_HOPS_MAX as u32 {
        let host = IpAddr::from((0x0a00_0a00 + n).to_be_bytes());
        a.net.add_route(Prefix::host(host), None, ETH, 1);
        a.net.route_to_keep(a.now, None, host, None).unwrap();
    }
    assert_eq!(a.net.next_hop(kept.hop.unwrap()), None);
    let asked = a.net.counters().control.solicits_sent;
    send_over(&mut a, &kept);
    assert_eq!(macs(&mut a), [MAC_B], "where it is was not forgotten");
    assert_eq!(a.net.counters().control.solicits_sent, asked);
    assert!(a.net.counters().data.next_hops_displaced > 0);
}

#[test]
fn a_confirmation_spares_the_probe() {
    for confirmed in [false, true] {
        let (mut a, kept) = routed();
        for _ in 0..60 {
            send_over(&mut a, &kept);
            a.pass(Duration::from_secs(1));
            if confirmed {
                a.net.confirm_reachable(a.now, kept.hop.unwrap());
            }
        }
        let probes = a.net.counters().control.solicits_sent - 1;
        assert_eq!(probes > 0, !confirmed, "{probes} probes");
    }
}
