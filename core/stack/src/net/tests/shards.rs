//! Tests two data parts with one control part, which exchange only messages.

use super::super::control::Control;
use super::super::data::Data;
use super::super::ip::AddressPair;
use super::super::messages::{DataCommand, NeighborUpdate, Parts};
use super::*;

/// A host with one control part and two data parts.
struct Sharded {
    control: Control,
    shards: [Data; 2],
    pool: Pool,
    now: Instant,
}

impl Sharded {
    fn new() -> Self {
        Self::with(NetConfig::default())
    }

    fn with(settings: NetConfig) -> Self {
        let now = Instant(1_000_000_000);
        let keys = Keys::derive(&[7; 32]);
        let mut control = Control::new(settings, &keys);
        control.add_loopback(now);
        let config = eth0(&["10.0.0.1/24"]);
        assert_eq!(control.add_interface(now, &config), Ok(ETH));
        let shards =
            [0, 1].map(|n| Data::new(settings, &Keys::derive(&[8 + n as u8; 32]), now, n, 2));
        let mut host = Self { control, shards, pool: Pool::default(), now };
        host.exchange();
        host
    }

    /// Exchanges messages as between two turns. Updates go to the users of the neighbour, and all
    /// other commands to the first data part.
    fn exchange(&mut self) {
        let Self { control, shards, pool, now } = self;
        for (shard, n) in shards.iter_mut().zip(0..) {
            while let Some(punt) = shard.take_control_packet() {
                control.on_control_packet(*now, punt, pool);
            }
            while let Some(notice) = shard.take_report() {
                control.on_report(*now, Parts::one(n), notice, pool);
            }
        }
        shards.iter_mut().for_each(|shard| shard.follow(control.snapshot()));
        while let Some(order) = control.take_command() {
            match order {
                DataCommand::News { to, news } => {
                    assert!(to.has(0));
                    for (_, shard) in shards.iter_mut().enumerate().filter(|(n, _)| to.has(*n)) {
                        shard.on_neighbor_update(*now, news, pool);
                    }
                }
                order => shards[0].on_command(*now, order, pool),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.control.next_timeout() <= end {
            self.now = self.now.max(self.control.next_timeout());
            self.control.on_timeout(self.now, &mut self.pool);
            self.exchange();
        }
        self.now = end;
    }

    fn send(&mut self, shard: usize, to: &str) {
        let packet = udp_packet(&mut self.pool, 1);
        let (protocol, fragmenting) = (IpProtocol::UDP.0, Fragmenting::Anywhere);
        let out = Ip { protocol, ttl: None, tos: 0, fragmenting, flow_label: 0 };
        let data = &mut self.shards[shard];
        let route = data.route_to_keep(self.now, None, ip(to), None).unwrap();
        let ends = AddressPair { src: route.src, dst: ip(to) };
        data.send(self.now, &route, ends, out, packet, Some(6), &mut self.pool).unwrap();
    }

    fn receive(&mut self, shard: usize, bytes: &[u8]) -> Option<Received> {
        let mut packet = self.pool.take(bytes.len());
        packet.push_back(bytes.len()).unwrap().copy_from_slice(bytes);
        self.shards[shard].receive(self.now, ETH, packet, &mut self.pool)
    }

    /// Returns the packets that a shard passed to a device since the last call.
    fn left(&mut self, shard: usize, iface: IfaceId) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let output = &mut self.shards[shard].outputs[iface.index()];
        output.hand_over(|batch| packets.extend(batch.drain(..)));
        packets.iter().map(bytes_of).collect()
    }

    /// Returns the destinations of the frames that a shard sent since the last call.
    fn macs(&mut self, shard: usize) -> Vec<MacAddr> {
        let frames = self.left(shard, ETH);
        frames.iter().map(|frame| ethernet::Header::parse(frame).unwrap().0.dst).collect()
    }
}

fn arp_from_b(op: arp::ArpOp, mac: MacAddr, target: &str) -> Vec<u8> {
    let message = arp::ArpPacket {
        op,
        sender_mac: mac,
        sender_ip: [10, 0, 0, 2].into(),
        target_mac: MAC_A,
        target_ip: target.parse().unwrap(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    message.emit(&mut bytes);
    frame(MAC_A, mac, EtherType::ARP, &bytes)
}

#[test]
fn two_shards_ask_once_and_both_hear_the_answer() {
    let mut host = Sharded::new();
    host.pass(Duration::from_secs(1));
    host.macs(0);
    host.send(0, "10.0.0.2");
    host.send(1, "10.0.0.2");
    host.exchange();
    assert_eq!((host.macs(0), host.macs(1)), (vec![MacAddr::BROADCAST], vec![]));
    // The reply arrives at shard 1, although shard 0 has sent the request.
    assert!(host.receive(1, &arp_from_b(arp::ArpOp::Reply, MAC_B, "10.0.0.1")).is_none());
    assert_eq!(host.macs(1), []);
    host.exchange();
    assert_eq!((host.macs(0), host.macs(1)), (vec![MAC_B], vec![MAC_B]));
    // The neighbour's MAC address changes: one shard receives the reply, and all use the new
    // address.
    let moved = MacAddr([2, 0, 0, 0, 0, 0xd]);
    host.receive(0, &arp_from_b(arp::ArpOp::Reply, moved, "10.0.0.2"));
    host.exchange();
    host.send(1, "10.0.0.2");
    assert_eq!(host.macs(1), [moved]);
    assert_eq!(host.control.counters.solicits_sent, 1);
}

#[test]
fn a_question_is_answered_once_whichever_shard_hears_it() {
    let mut host = Sharded::new();
    host.pass(Duration::from_secs(1));
    host.macs(0);
    for shard in 0..2 {
        host.receive(shard, &arp_from_b(arp::ArpOp::Request, MAC_B, "10.0.0.1"));
        host.exchange();
        assert_eq!((host.macs(0), host.macs(1)), (vec![MAC_B], vec![]));
    }
}

#[test]
fn a_neighbour_that_does_not_answer_fails_in_each_shard() {
    let mut host = Sharded::new();
    host.send(0, "10.0.0.9");
    host.send(1, "10.0.0.9");
    host.exchange();
    host.pass(Duration::from_secs(4));
    for shard in &mut host.shards {
        assert_eq!(shard.counters.drops.of(DropReason::NeighborUnreachable), 1);
        assert_eq!(shard.errors.pop_front().map(|error| error.dst), Some(ip("10.0.0.9")));
    }
    assert_eq!(host.control.counters.neighbors_failed, 1);
}

/// After the loss of updates, a shard sends nothing to MAC addresses that it knew before.
#[test]
fn who_lost_its_news_asks_anew() {
    let mut host = Sharded::new();
    host.send(1, "10.0.0.2");
    host.exchange();
    host.receive(0, &arp_from_b(arp::ArpOp::Reply, MAC_B, "10.0.0.1"));
    host.exchange();
    assert_eq!(host.macs(1), [MAC_B]);
    host.shards[1].on_neighbor_update(host.now, NeighborUpdate::AllForgotten, &mut host.pool);
    host.send(1, "10.0.0.2");
    assert_eq!(host.macs(1), []);
    host.exchange();
    assert_eq!(host.macs(1), [MAC_B]);
}

#[test]
fn shards_take_what_is_theirs_by_the_snapshot_that_they_have() {
    let mut host = Sharded::new();
    let datagram = from_b_v4("10.0.0.2", "10.0.0.77");
    assert!(host.control.add_address(host.now, ETH, prefix("10.0.0.77/24")));
    assert!(host.receive(0, &datagram).is_none(), "it was given no other one yet");
    let snapshot = host.control.snapshot();
    host.shards[0].follow(snapshot);
    assert!(host.receive(0, &datagram).is_some());
    assert!(host.receive(1, &datagram).is_none());
}

/// Each shard forwards the packets that it receives, queues those that wait for their neighbour,
/// and sends their errors. The neighbour is solicited once.
#[test]
fn a_packet_is_sent_on_by_the_shard_where_it_came_in() {
    let forwarding = Some(Forwarding::default());
    let mut host = Sharded::with(NetConfig { forwarding, ..NetConfig::default() });
    let tun =
        InterfaceConfig { name: "tun1".to_string(), link: LinkType::Ip, ..eth0(&["10.1.0.1/24"]) };
    let tun = host.control.add_interface(host.now, &tun).unwrap();
    host.exchange();
    host.pass(Duration::from_secs(1));
    let clear = |host: &mut Sharded| {
        for (shard, iface) in [(0, ETH), (1, ETH), (0, tun), (1, tun)] {
            host.left(shard, iface);
        }
    };
    clear(&mut host);
    let to = |src: &str, dst: &str, ttl| {
        super::forward::from_to(&super::forward::v4(ttl, 64, |_| {}), src, dst)
    };
    for shard in [0, 1] {
        // To a link that needs no neighbours.
        let sent = to("10.0.0.2", "10.1.0.9", 9);
        let sent = frame(MAC_A, MAC_B, EtherType::IPV4, &sent);
        assert!(host.receive(shard, &sent).is_none());
        assert_eq!([0, 1].map(|n| host.left(n, tun).len()), [1 - shard, shard]);
        assert_eq!(host.shards[shard].counters.forwarded, 1);
    }
    // Both shards forward packets to an unresolved neighbour.
    let sent = to("10.1.0.9", "10.0.0.2", 9);
    for shard in [0, 1] {
        let mut packet = host.pool.take(sent.len());
        packet.push_back(sent.len()).unwrap().copy_from_slice(&sent);
        let received = host.shards[shard].receive(host.now, tun, packet, &mut host.pool);
        assert!(received.is_none());
    }
    host.exchange();
    assert_eq!((host.macs(0), host.macs(1)), (vec![MacAddr::BROADCAST], vec![]));
    host.receive(1, &arp_from_b(arp::ArpOp::Reply, MAC_B, "10.0.0.1"));
    host.exchange();
    for shard in [0, 1] {
        let frame = only(host.left(shard, ETH));
        assert_eq!((&frame[..6], frame[14 + 8]), (&MAC_B.0[..], 8));
        assert_eq!(frame[14 + 12..], sent[12..], "the packet that waited");
    }
    assert_eq!(host.control.counters.solicits_sent, 1);
    // The shard that receives a packet with an expired TTL sends the error.
    let ended = frame(MAC_A, MAC_B, EtherType::IPV4, &to("10.0.0.2", "10.1.0.9", 1));
    for shard in [0, 1] {
        assert!(host.receive(shard, &ended).is_none());
        let error = only(host.left(shard, ETH));
        assert_eq!(error[14 + 20..14 + 22], [11, 0]);
        assert_eq!(host.left(1 - shard, ETH).len(), 0);
    }
    assert!(host.shards.iter().all(|shard| shard.counters.forwarded == 2));
}
