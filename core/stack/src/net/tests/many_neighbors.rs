//! Tests of a router with a large network on one link: as many neighbours as its tables hold, and
//! more.

use super::*;

const TUN: IfaceId = IfaceId(2);

/// Creates a router between `tun1` and the hosts of 10.0.0.0/16 on `eth0`.
fn router(neighbors_max: usize) -> Host {
    let now = Instant(1_000_000_000);
    let forwarding = Some(Forwarding::default());
    let config = NetConfig { forwarding, neighbors_max, ..NetConfig::default() };
    let mut net = Net::new(config, Keys::derive(&[7; 32]), now);
    let eth = eth0(&["10.0.0.1/16"]);
    let tun = InterfaceConfig {
        name: "tun1".to_string(),
        link: LinkType::Ip,
        addresses: vec![prefix("10.1.0.1/24")],
        ..eth.clone()
    };
    net.add_interface(now, eth);
    assert_eq!(net.add_interface(now, tun), TUN);
    Host { net, pool: Pool::default(), now }.settled()
}

fn station(n: u32) -> (Ipv4Addr, MacAddr) {
    let addr = Ipv4Addr::from_bits(0x0a00_0100 + n);
    let [_, _, high, low] = addr.octets();
    (addr, MacAddr([2, 0, 1, 0, high, low]))
}

/// Receives a datagram for a station on `tun1`. Returns the frames sent on `eth0`.
fn send_to(router: &mut Host, n: u32) -> Vec<Vec<u8>> {
    let (dst, _) = station(n);
    let bytes = ipv4_packet("10.1.0.2", &dst.to_string(), IpProtocol::UDP, &[0; 8]);
    let mut packet = router.pool.take(bytes.len());
    packet.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
    assert!(router.net.receive(router.now, TUN, packet, &mut router.pool).is_none());
    router.sent()
}

/// Receives a station's ARP reply. Returns the frames sent on `eth0`.
fn answer(router: &mut Host, n: u32) -> Vec<Vec<u8>> {
    let (sender_ip, sender_mac) = station(n);
    let target_ip = [10, 0, 0, 1].into();
    let op = arp::ArpOp::Reply;
    let message = arp::ArpPacket { op, sender_mac, sender_ip, target_mac: MAC_A, target_ip };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    assert!(router.receive(&frame(MAC_A, sender_mac, EtherType::ARP, &bytes)).is_none());
    router.sent()
}

/// Returns whether the router sends an ARP request for a station before the datagram.
fn is_asked_for(router: &mut Host, n: u32) -> bool {
    let (addr, mac) = station(n);
    let first = only(send_to(router, n));
    let sent = match arp::ArpPacket::parse(&first[ethernet::HEADER_LEN..]) {
        Ok((question, _)) => {
            assert_eq!((question.op, question.target_ip), (arp::ArpOp::Request, addr));
            only(answer(router, n))
        }
        Err(_) => {
            assert_eq!(first[..6], mac.0);
            return false;
        }
    };
    assert_eq!(sent[..6], mac.0, "the datagram that waited");
    true
}

#[test]
fn a_router_forwards_to_ten_thousand_neighbors_of_a_link() {
    const COUNT: u32 = 10_000;
    let mut router = router(COUNT as usize);
    assert!((0..COUNT).all(|n| is_asked_for(&mut router, n)));
    assert_eq!(router.net.neighbors().count(), COUNT as usize);
    assert!(!(0..COUNT).any(|n| is_asked_for(&mut router, n)), "each is known");
    let counters = router.net.counters();
    assert_eq!(counters.data.forwarded, 2 * u64::from(COUNT));
    assert_eq!(counters.data.drops.iter().map(|(_, count)| count).sum::<u64>(), 0);
    assert_eq!((counters.control.neighbors_displaced, counters.data.next_hops_displaced), (0, 0));
}

#[test]
fn in_a_full_table_the_oldest_neighbor_makes_room() {
    let mut router = router(1000);
    // Unresolved neighbours have room in addition to `neighbors_max`.
    let room = 1000 + limits::NEIGHBORS_ASKED_MAX as u32;
    let count = 2000;
    assert!((0..count).all(|n| is_asked_for(&mut router, n)));
    let known: Vec<_> = router.net.neighbors().map(|known| known.addr).collect();
    assert_eq!(known.len() as u32, room);
    let is_known = |n: u32| known.contains(&station(n).0.into());
    assert!((0..count).all(|n| is_known(n) == (n >= count - room)), "the last ones are");
    let displaced = |router: &Host| router.net.counters().control.neighbors_displaced;
    assert_eq!(displaced(&router), u64::from(count - room));
    assert!(!is_asked_for(&mut router, count - 1) && is_asked_for(&mut router, 0));
    assert_eq!(displaced(&router), u64::from(count - room) + 1);
}

#[test]
fn datagrams_for_neighbors_that_do_not_answer_are_dropped_and_counted() {
    let mut router = router(1000);
    let asked = limits::NEIGHBORS_ASKED_MAX as u32;
    assert!(is_asked_for(&mut router, 9000));
    for n in 0..asked + 100 {
        send_to(&mut router, n);
    }
    assert_eq!(router.drops(DropReason::NeighborQueueFull), 100, "those asked for first");
    assert!(!is_asked_for(&mut router, 9000), "a neighbour in use stays");
    router.pass(Duration::from_secs(10));
    assert_eq!(router.drops(DropReason::NeighborUnreachable), u64::from(asked));
    let counters = router.net.counters();
    assert_eq!(counters.data.forwarded, u64::from(asked) + 102);
}
