//! Clients in virtual time, with a server that the test plays.

use proptest::prelude::*;
use towpath_wire::arp::{ArpOp, ArpPacket};
use towpath_wire::ethernet;

use super::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);

/// A client, and the time.
struct World {
    client: DhcpClient,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self::with_kept(None)
    }

    fn with_kept(kept: Option<Ipv4Addr>) -> Self {
        let now = Instant(1_000_000_000);
        let config = ClientConfig { mac: MAC, host_name: Some("host".to_owned()), kept };
        Self { client: DhcpClient::new(config, 7, now), now }
    }

    /// Advances to the next timeout, and returns the seconds until then.
    fn wait(&mut self) -> f64 {
        let at = self.client.next_timeout().expect("a timeout");
        let waited = at.since(self.now).as_secs_f64();
        self.now = self.now.max(at);
        self.client.on_timeout(self.now);
        waited
    }

    /// Returns the message of the only frame, and its receiver.
    fn sent(&mut self) -> (DhcpMessage, LinkEndpoint) {
        let frame = self.client.poll_frame().expect("a frame");
        assert_eq!(self.client.poll_frame(), None);
        let Some(DhcpFrame::Datagram(datagram)) = frame::parse(&frame, false) else {
            panic!("a datagram")
        };
        assert_eq!((datagram.from.mac, datagram.from.port), (MAC, CLIENT_PORT));
        assert_eq!(datagram.to.port, SERVER_PORT);
        let message = DhcpMessage::parse(datagram.payload).expect("a message");
        assert_eq!(message.ciaddr, datagram.from.ip);
        (message, datagram.to)
    }

    /// Takes the only frame, an ARP packet.
    fn probed(&mut self) -> ArpPacket {
        let frame = self.client.poll_frame().expect("a frame");
        match frame::parse(&frame, false) {
            Some(DhcpFrame::Arp(packet)) => packet,
            found => panic!("{found:?}"),
        }
    }

    /// Delivers a reply to the current transaction. Returns whether the client took it.
    fn reply(&mut self, kind: MessageKind, change: impl Fn(&mut DhcpMessage)) -> bool {
        let mut reply = DhcpMessage::request(kind, self.client.transaction.xid, MAC);
        (reply.op, reply.yiaddr) = (BootOp::Reply, ADDRESS);
        reply.options = DhcpOptions {
            server: Some(SERVER),
            lease_s: Some(3600),
            mask_len: Some(24),
            routers: vec![SERVER],
            ..DhcpOptions::default()
        };
        change(&mut reply);
        let ignored = self.client.counters.rx_ignored;
        let from = LinkEndpoint { mac: SERVER_MAC, ip: SERVER, port: SERVER_PORT };
        let frame = frame::datagram(&from, &LinkEndpoint::broadcast(CLIENT_PORT), &reply.emit());
        self.client.on_frame(self.now, &frame, false) && self.client.counters.rx_ignored == ignored
    }

    fn arp(&mut self, packet: &ArpPacket) {
        let link = ethernet::Header {
            dst: MAC,
            src: packet.sender_mac,
            vlan: None,
            ethertype: ethernet::EtherType::ARP,
        };
        let mut frame = vec![0; 60];
        let at = link.emit(&mut frame);
        packet.emit(&mut frame[at..]);
        assert!(!self.client.on_frame(self.now, &frame, false), "ARP is for the stack as well");
    }

    /// Obtains a lease, up to the acknowledgment.
    fn granted(&mut self) {
        self.wait();
        self.sent();
        assert!(self.reply(MessageKind::Offer, |_| {}));
        self.sent();
        assert!(self.reply(MessageKind::Ack, |_| {}));
    }

    /// Waits until the probes are over.
    fn bound(&mut self) -> Lease {
        for _ in 0..PROBES {
            let probe = self.probed();
            assert_eq!((probe.sender_ip, probe.target_ip), (Ipv4Addr::UNSPECIFIED, ADDRESS));
            assert_eq!(self.client.poll_event(), None);
            self.wait();
        }
        match self.client.poll_event() {
            Some(ClientEvent::Bound(lease)) => lease,
            found => panic!("{found:?}"),
        }
    }

    fn lost(&mut self) -> LeaseLoss {
        match self.client.poll_event() {
            Some(ClientEvent::Lost(loss)) => loss,
            found => panic!("{found:?}"),
        }
    }
}

#[test]
fn obtains_lease_of_first_offer() {
    let mut world = World::new();
    world.wait();
    let (discover, to) = world.sent();
    assert_eq!((discover.kind, to), (MessageKind::Discover, LinkEndpoint::broadcast(SERVER_PORT)));
    assert_eq!(discover.options.client_id, Some(vec![1, 2, 0, 0, 0, 0, 9]));
    assert_eq!(discover.options.host_name.as_deref(), Some("host"));
    assert!(world.reply(MessageKind::Offer, |_| {}));
    let (request, to) = world.sent();
    assert_eq!((request.kind, to), (MessageKind::Request, LinkEndpoint::broadcast(SERVER_PORT)));
    assert_eq!((request.xid, request.ciaddr), (discover.xid, Ipv4Addr::UNSPECIFIED));
    assert_eq!((request.options.requested, request.options.server), (Some(ADDRESS), Some(SERVER)));
    assert!(world.reply(MessageKind::Ack, |_| {}));
    let lease = world.bound();
    assert_eq!((lease.address.to_string(), lease.server), ("10.1.0.9/24".to_owned(), SERVER));
    assert_eq!(world.client.lease(), Some(&lease));
    assert_eq!(world.client.next_timeout(), lease.renew_at);
}

#[test]
fn retransmits_with_doubled_random_delay() {
    let mut world = World::new();
    world.wait();
    let mut expected = 4.0;
    let mut all_whole = true;
    for _ in 0..8 {
        let (message, _) = world.sent();
        assert_eq!(message.kind, MessageKind::Discover);
        let waited = world.wait();
        assert!((waited - expected).abs() <= 1.0, "{waited} instead of {expected}");
        all_whole &= waited.fract() == 0.0;
        expected = f64::min(expected * 2.0, 64.0);
    }
    assert!(!all_whole, "the delays are not random");
}

#[test]
fn requests_repeat_the_seconds_of_the_search() {
    let mut world = World::new();
    world.wait();
    world.sent();
    world.wait();
    let (discover, _) = world.sent();
    assert!(discover.secs >= 3);
    world.now += Duration::from_secs(2);
    assert!(world.reply(MessageKind::Offer, |_| {}));
    for _ in 0..2 {
        assert_eq!(world.sent().0.secs, discover.secs);
        world.wait();
    }
}

#[test]
fn renews_by_unicast_then_rebinds_by_broadcast_then_expires() {
    let mut world = World::new();
    world.granted();
    let lease = world.bound();
    world.wait();
    let (renewal, to) = world.sent();
    assert_eq!((renewal.kind, renewal.ciaddr), (MessageKind::Request, ADDRESS));
    assert_eq!((renewal.options.requested, renewal.options.server), (None, None));
    assert_eq!(to, LinkEndpoint { mac: SERVER_MAC, ip: SERVER, port: SERVER_PORT });
    let mut last = to;
    while world.now < lease.valid_until.expect("it ends") {
        let waited = world.wait();
        let is_end = [lease.rebind_at, lease.valid_until].contains(&Some(world.now));
        assert!(waited >= 60.0 || is_end, "{waited}");
        if Some(world.now) == lease.valid_until {
            break;
        }
        last = world.sent().1;
        assert_eq!(last.ip.is_broadcast(), Some(world.now) >= lease.rebind_at);
    }
    assert_eq!(last, LinkEndpoint::broadcast(SERVER_PORT));
    assert_eq!(world.lost(), LeaseLoss::Expired);
    assert_eq!(world.client.lease(), None);
    world.wait();
    assert_eq!(world.sent().0.kind, MessageKind::Discover);
}

#[test]
fn extension_needs_no_probe_and_counts_from_its_request() {
    let mut world = World::new();
    world.granted();
    let lease = world.bound();
    world.wait();
    world.sent();
    let requested = world.now;
    world.now += Duration::from_secs(3);
    assert!(!world.reply(MessageKind::Ack, |ack| ack.yiaddr = RIVAL), "another address");
    assert!(world.reply(MessageKind::Ack, |ack| ack.options.nameservers = vec![RIVAL]));
    let Some(ClientEvent::Bound(extended)) = world.client.poll_event() else { panic!("a lease") };
    assert_eq!(extended.valid_until, Some(requested + Duration::from_secs(3600)));
    assert!(extended.valid_until > lease.valid_until && extended.nameservers == [RIVAL]);
    assert_eq!(world.client.poll_frame(), None);
}

#[test]
fn declines_address_in_use() {
    let conflicts = [
        ArpPacket {
            op: ArpOp::Reply,
            sender_mac: SERVER_MAC,
            sender_ip: ADDRESS,
            target_mac: MAC,
            target_ip: Ipv4Addr::UNSPECIFIED,
        },
        // Another host probes the same address.
        ArpPacket {
            op: ArpOp::Request,
            sender_mac: SERVER_MAC,
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: ADDRESS,
        },
    ];
    for conflict in conflicts {
        let mut world = World::new();
        world.granted();
        world.probed();
        world.arp(&ArpPacket { sender_mac: MAC, ..conflict });
        assert_eq!(world.client.poll_event(), None, "its own packet");
        world.arp(&conflict);
        let (decline, to) = world.sent();
        assert_eq!(
            (decline.kind, to),
            (MessageKind::Decline, LinkEndpoint::broadcast(SERVER_PORT))
        );
        assert_eq!(decline.options.requested, Some(ADDRESS));
        assert_eq!(decline.options.server, Some(SERVER));
        assert_eq!(world.lost(), LeaseLoss::InUse(ADDRESS));
        assert!(world.wait() >= 10.0);
        assert_eq!(world.sent().0.kind, MessageKind::Discover);
    }
}

#[test]
fn verifies_kept_lease_first() {
    let mut world = World::with_kept(Some(ADDRESS));
    world.wait();
    let (request, to) = world.sent();
    assert_eq!((request.kind, to), (MessageKind::Request, LinkEndpoint::broadcast(SERVER_PORT)));
    assert_eq!((request.options.requested, request.options.server), (Some(ADDRESS), None));
    assert_eq!(request.ciaddr, Ipv4Addr::UNSPECIFIED);
    assert!(!world.reply(MessageKind::Ack, |ack| ack.yiaddr = RIVAL));
    assert!(world.reply(MessageKind::Ack, |_| {}));
    world.bound();
}

#[test]
fn searches_if_kept_lease_is_refused_or_unanswered() {
    let mut world = World::with_kept(Some(ADDRESS));
    world.wait();
    world.sent();
    assert!(world.reply(MessageKind::Nak, |_| {}));
    assert_eq!(world.wait(), 0.0);
    assert_eq!(world.sent().0.kind, MessageKind::Discover);

    let mut world = World::with_kept(Some(ADDRESS));
    for _ in 0..REQUESTS {
        world.wait();
        assert_eq!(world.sent().0.kind, MessageKind::Request);
    }
    world.wait();
    world.wait();
    assert_eq!(world.sent().0.kind, MessageKind::Discover);
}

#[test]
fn ignores_messages_of_other_transactions_servers_and_clients() {
    let mut world = World::new();
    world.wait();
    world.sent();
    assert!(!world.reply(MessageKind::Offer, |offer| offer.xid ^= 1));
    assert!(!world.reply(MessageKind::Offer, |offer| offer.chaddr = SERVER_MAC));
    assert!(!world.reply(MessageKind::Offer, |offer| offer.op = BootOp::Request));
    assert!(!world.reply(MessageKind::Offer, |offer| offer.options.client_id = Some(vec![1, 9])));
    assert!(!world.reply(MessageKind::Offer, |offer| offer.options.server = None));
    assert!(!world.reply(MessageKind::Offer, |offer| offer.yiaddr = Ipv4Addr::BROADCAST));
    assert!(!world.reply(MessageKind::Ack, |_| {}), "nothing was requested");
    assert!(!world.reply(MessageKind::Nak, |_| {}));
    assert!(world.reply(MessageKind::Offer, |_| {}));
    world.sent();
    assert!(!world.reply(MessageKind::Ack, |ack| ack.options.server = Some(RIVAL)));
    assert!(!world.reply(MessageKind::Nak, |nak| nak.options.server = Some(RIVAL)));
    assert!(!world.reply(MessageKind::Ack, |ack| ack.yiaddr = RIVAL));
    assert!(!world.reply(MessageKind::Ack, |ack| ack.options.lease_s = None));
    assert!(world.reply(MessageKind::Ack, |_| {}));
    world.bound();
    assert!(!world.reply(MessageKind::Nak, |_| {}), "bound clients request nothing");
    world.wait();
    world.sent();
    assert!(!world.reply(MessageKind::Nak, |nak| nak.options.server = Some(RIVAL)));
    assert!(world.reply(MessageKind::Nak, |_| {}));
    assert_eq!(world.lost(), LeaseLoss::Refused);
}

#[test]
fn prefers_other_servers_after_one_that_does_not_answer() {
    let mut world = World::new();
    world.wait();
    world.sent();
    assert!(world.reply(MessageKind::Offer, |offer| offer.options.server = Some(RIVAL)));
    for _ in 0..REQUESTS {
        world.sent();
        world.wait();
    }
    world.wait();
    world.sent();
    assert!(world.reply(MessageKind::Offer, |offer| offer.options.server = Some(RIVAL)));
    assert_eq!(world.client.poll_frame(), None, "the offer waits");
    assert!(world.reply(MessageKind::Offer, |_| {}));
    assert_eq!(world.sent().0.options.server, Some(SERVER));
}

#[test]
fn accepts_avoided_server_if_no_other_answers() {
    let mut world = World::new();
    world.wait();
    world.sent();
    world.client.avoided = Some(SERVER);
    assert!(world.reply(MessageKind::Offer, |_| {}));
    assert_eq!(world.client.poll_frame(), None);
    world.wait();
    assert_eq!(world.sent().0.options.server, Some(SERVER));
}

#[test]
fn repeated_refusals_slow_the_search() {
    let mut world = World::new();
    let mut waits = Vec::new();
    for _ in 0..10 {
        waits.push(world.wait());
        world.sent();
        assert!(world.reply(MessageKind::Offer, |_| {}));
        world.sent();
        assert!(world.reply(MessageKind::Nak, |_| {}));
    }
    assert_eq!(waits, [0.0, 0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 64.0, 64.0]);
}

#[test]
fn releases_lease_by_unicast() {
    let mut world = World::new();
    world.granted();
    world.bound();
    world.client.release(world.now);
    let (release, to) = world.sent();
    assert_eq!((release.kind, release.ciaddr), (MessageKind::Release, ADDRESS));
    assert_eq!(release.options.server, Some(SERVER));
    assert_eq!(to, LinkEndpoint { mac: SERVER_MAC, ip: SERVER, port: SERVER_PORT });
    assert_eq!((world.lost(), world.client.next_timeout()), (LeaseLoss::Released, None));
    world.client.release(world.now);
    assert_eq!((world.client.poll_frame(), world.client.poll_event()), (None, None));
}

#[test]
fn releases_lease_that_is_being_probed() {
    let mut world = World::new();
    world.granted();
    world.probed();
    world.client.release(world.now);
    let (release, _) = world.sent();
    assert_eq!((release.kind, release.ciaddr), (MessageKind::Release, ADDRESS));
    assert_eq!((world.client.poll_event(), world.client.next_timeout()), (None, None));
}

/// Step of a hostile network.
#[derive(Debug, Clone)]
enum Step {
    Reply { kind: usize, matches: u8, lease_s: u32, address: u8, times: Option<(u32, u32)> },
    Conflict(u8),
    Time(u32),
    Bytes(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let lease = prop_oneof![Just(0), Just(10), Just(3600), Just(u32::MAX), any::<u32>()];
    let times = proptest::option::of((any::<u32>(), any::<u32>()));
    let reply = (0..8_usize, any::<u8>(), lease, 8..12_u8, times).prop_map(
        |(kind, matches, lease_s, address, times)| Step::Reply {
            kind,
            matches,
            lease_s,
            address,
            times,
        },
    );
    prop_oneof![
        6 => reply,
        1 => (8..12_u8).prop_map(Step::Conflict),
        4 => (0..5_000_000_u32).prop_map(Step::Time),
        1 => proptest::collection::vec(any::<u8>(), 0..300).prop_map(Step::Bytes),
    ]
}

proptest! {
    /// No input of a server causes a panic or a storm of messages. The address is used only while
    /// the lease is valid.
    #[test]
    fn hostile_server_does_no_harm(steps in proptest::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        let mut is_bound = false;
        for step in steps {
            let elapsed_ms = match &step {
                Step::Time(ms) => u64::from(*ms),
                _ => 10,
            };
            world.now += Duration::from_millis(elapsed_ms);
            let mut calls = 0;
            while world.client.next_timeout().is_some_and(|at| at <= world.now) {
                world.client.on_timeout(world.now);
                calls += 1;
                prop_assert!(calls < 8, "timeouts without end");
            }
            let frames = world.client.frames.len();
            prop_assert!(frames <= 8);
            world.client.frames.clear();
            match step {
                Step::Reply { kind, matches, lease_s, address, times } => {
                    let kinds = [MessageKind::Offer, MessageKind::Ack, MessageKind::Nak];
                    world.reply(kinds[kind % 3], |reply| {
                        reply.yiaddr = Ipv4Addr::new(10, 1, 0, address);
                        reply.options.lease_s = Some(lease_s);
                        if let Some((renew, rebind)) = times {
                            reply.options.renew_s = Some(renew);
                            reply.options.rebind_s = Some(rebind);
                        }
                        if matches < 16 {
                            reply.options.server = Some(RIVAL);
                        }
                    });
                }
                Step::Conflict(address) => world.arp(&ArpPacket {
                    op: ArpOp::Reply,
                    sender_mac: SERVER_MAC,
                    sender_ip: Ipv4Addr::new(10, 1, 0, address),
                    target_mac: MAC,
                    target_ip: ADDRESS,
                }),
                Step::Bytes(bytes) => {
                    world.client.on_frame(world.now, &bytes, true);
                }
                Step::Time(_) => {}
            }
            prop_assert!(world.client.frames.len() <= 2, "a frame causes at most two");
            world.client.frames.clear();
            while let Some(event) = world.client.poll_event() {
                match event {
                    ClientEvent::Bound(lease) => {
                        is_bound = true;
                        let order = [lease.renew_at, lease.rebind_at, lease.valid_until];
                        prop_assert!(order.is_sorted(), "{order:?}");
                    }
                    ClientEvent::Lost(LeaseLoss::InUse(_)) => prop_assert!(!is_bound),
                    ClientEvent::Lost(_) => {
                        prop_assert!(is_bound, "lost twice");
                        is_bound = false;
                    }
                }
            }
            prop_assert_eq!(world.client.lease().is_some(), is_bound);
            if let Some(lease) = world.client.lease() {
                prop_assert!(lease.valid_until.is_none_or(|until| world.now < until));
            }
            // A client without a lease that does not end always has something to do.
            let is_endless = world.client.lease().is_some_and(|lease| lease.valid_until.is_none());
            prop_assert_eq!(world.client.next_timeout().is_some(), !is_endless);
        }
    }
}
