//! A server with clients of this crate on one link, in virtual time.

use proptest::prelude::*;
use towpath_wire::arp::{ArpOp, ArpPacket};
use towpath_wire::ethernet;

use super::*;
use crate::client::{ClientConfig, ClientEvent, DhcpClient, LeaseLoss};
use crate::lease::Lease;

const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, n)
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

fn config() -> ServerConfig {
    ServerConfig {
        mac: SERVER_MAC,
        address: "10.1.0.1/24".parse().expect("a prefix"),
        pool: (address(10), address(12)),
        reservations: Vec::new(),
        lease_s: 3600,
        nameservers: vec![SERVER],
        awaits_nameservers: false,
        domain: Some("home.arpa".to_owned()),
    }
}

/// A link with a server, clients, and a host that uses an address without a lease.
struct Link {
    server: DhcpServer,
    clients: Vec<DhcpClient>,
    squatter: Option<Ipv4Addr>,
    now: Instant,
}

impl Link {
    fn new(config: ServerConfig) -> Self {
        let server = DhcpServer::new(config, 5);
        Self { server, clients: Vec::new(), squatter: None, now: Instant(1_000_000_000) }
    }

    fn client(&mut self, n: u8, kept: Option<Ipv4Addr>) -> usize {
        let config = ClientConfig { mac: mac(n), host_name: Some(format!("host{n}")), kept };
        self.clients.push(DhcpClient::new(config, n.into(), self.now));
        self.clients.len() - 1
    }

    /// Delivers all frames to all hosts, and runs timers, for a time.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while self.deliver() {}
            let timers = self.clients.iter().map(DhcpClient::next_timeout);
            let next = timers.chain([self.server.next_timeout()]).flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.server.on_timeout(self.now);
            self.clients.iter_mut().for_each(|client| client.on_timeout(self.now));
        }
        self.now = end;
    }

    fn deliver(&mut self) -> bool {
        let of_clients: Vec<_> =
            self.clients.iter_mut().filter_map(DhcpClient::poll_frame).collect();
        let of_server: Vec<_> = std::iter::from_fn(|| self.server.poll_frame()).collect();
        let delivered = !of_clients.is_empty() || !of_server.is_empty();
        for frame in of_clients.iter().chain(&of_server) {
            let answer = self.answer(frame);
            for frame in [Some(frame), answer.as_ref()].into_iter().flatten() {
                self.server.on_frame(self.now, frame, false);
                for client in &mut self.clients {
                    client.on_frame(self.now, frame, false);
                }
            }
        }
        delivered
    }

    /// Returns the ARP reply of the squatter to a probe.
    fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let Some(DhcpFrame::Arp(probe)) = frame::parse(frame, false) else { return None };
        let address = self.squatter.filter(|own| *own == probe.target_ip)?;
        let reply = ArpPacket {
            op: ArpOp::Reply,
            sender_mac: mac(99),
            sender_ip: address,
            target_mac: probe.sender_mac,
            target_ip: probe.sender_ip,
        };
        let ethertype = ethernet::EtherType::ARP;
        let header =
            ethernet::Header { dst: probe.sender_mac, src: mac(99), vlan: None, ethertype };
        let mut frame = vec![0; 60];
        let at = header.emit(&mut frame);
        reply.emit(&mut frame[at..]);
        Some(frame)
    }

    fn lease(&self, client: usize) -> Option<&Lease> {
        self.clients[client].lease()
    }

    fn ip(&self, client: usize) -> Option<Ipv4Addr> {
        self.lease(client).map(Lease::ip)
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn clients_obtain_distinct_addresses_with_parameters() {
    let mut link = Link::new(config());
    let all = [1, 2, 3].map(|n| link.client(n, None));
    link.pass(seconds(10));
    let mut addresses = all.map(|client| link.ip(client).expect("a lease"));
    addresses.sort();
    assert_eq!(addresses, [address(10), address(11), address(12)]);
    let lease = link.lease(0).expect("a lease").clone();
    assert_eq!((lease.server, &lease.nameservers[..]), (SERVER, &[SERVER][..]));
    assert_eq!(lease.domain.as_deref(), Some("home.arpa"));
    assert_eq!(lease.routes[0].via, Some(SERVER));
    let names: Vec<_> = link.server.leases(link.now).into_iter().map(|it| it.host_name).collect();
    assert_eq!(names.len(), 3);
    assert!(names.iter().all(Option::is_some) && link.server.take_changed());
    // The pool is full, until a client releases its address.
    let fourth = link.client(4, None);
    link.pass(seconds(30));
    assert_eq!(link.ip(fourth), None);
    assert!(link.server.counters.pool_full > 0);
    link.clients[0].release(link.now);
    link.pass(seconds(120));
    assert_eq!(link.ip(fourth), Some(lease.ip()));
}

#[test]
fn clients_soon_learn_nameservers_that_the_server_learns_later() {
    let (nameservers, awaits_nameservers) = (Vec::new(), true);
    let mut link = Link::new(ServerConfig { nameservers, awaits_nameservers, ..config() });
    let client = link.client(1, None);
    link.pass(seconds(10));
    assert!(link.lease(client).expect("a lease").nameservers.is_empty());
    link.server.set_nameservers(&[address(53)]);
    link.pass(seconds(35));
    let lease = link.lease(client).expect("a lease").clone();
    assert_eq!(lease.nameservers, [address(53)]);
    assert!(lease.valid_until > Some(link.now + seconds(3500)), "the lease is a long one");
}

#[test]
fn leases_are_long_if_there_are_no_nameservers_to_wait_for() {
    let (nameservers, awaits_nameservers) = (Vec::new(), true);
    let mut link = Link::new(ServerConfig { nameservers, awaits_nameservers, ..config() });
    link.server.set_nameservers(&[]);
    let client = link.client(1, None);
    link.pass(seconds(10));
    let lease = link.lease(client).expect("a lease");
    assert!(lease.valid_until > Some(link.now + seconds(3500)));
}

#[test]
fn a_changed_configuration_keeps_the_leases_of_its_addresses() {
    let mut link = Link::new(config());
    let client = link.client(1, None);
    link.pass(seconds(10));
    let first = link.ip(client).expect("a lease");
    let reserved = Reservation { mac: mac(2), address: address(30) };
    let changed = ServerConfig {
        pool: (address(10), address(20)),
        reservations: vec![reserved],
        nameservers: vec![address(53)],
        ..config()
    };
    link.server.reconfigure(changed.clone());
    assert!(link.server.take_changed(), "the file of leases is written again");
    let second = link.client(2, None);
    link.pass(seconds(2000));
    let lease = link.lease(client).expect("it was renewed");
    assert_eq!((lease.ip(), &lease.nameservers[..]), (first, &[address(53)][..]));
    assert_eq!(link.ip(second), Some(address(30)));
    // A client whose address the server does not have any more obtains another one.
    link.server.reconfigure(ServerConfig { pool: (address(40), address(42)), ..changed });
    link.pass(seconds(7200));
    assert!(link.ip(client) >= Some(address(40)) && link.ip(client) <= Some(address(42)));
    assert_eq!(link.ip(second), Some(address(30)));
}

#[test]
fn nameservers_that_were_learned_return_with_the_configuration() {
    let mut link = Link::new(config());
    link.server.set_nameservers(&[address(53)]);
    let client = link.client(1, None);
    link.pass(seconds(10));
    assert_eq!(link.lease(client).expect("a lease").nameservers, [SERVER]);
    let (nameservers, awaits_nameservers) = (Vec::new(), true);
    link.server.reconfigure(ServerConfig { nameservers, awaits_nameservers, ..config() });
    link.pass(seconds(2000));
    let lease = link.lease(client).expect("it was renewed");
    assert_eq!(lease.nameservers, [address(53)]);
    assert!(lease.valid_until > Some(link.now + seconds(1500)), "the lease is a long one");
}

#[test]
fn leases_are_extended_for_days() {
    let mut link = Link::new(config());
    let client = link.client(1, None);
    link.pass(seconds(10));
    let before = link.ip(client).expect("a lease");
    link.pass(seconds(3 * 86_400));
    assert_eq!(link.ip(client), Some(before));
    let lost = std::iter::from_fn(|| link.clients[client].poll_event())
        .any(|event| matches!(event, ClientEvent::Lost(_)));
    assert!(!lost);
}

#[test]
fn clients_keep_their_address_over_restarts_of_both() {
    let mut link = Link::new(config());
    let client = link.client(2, None);
    link.pass(seconds(10));
    let before = link.ip(client).expect("a lease");
    // The server has its leases from a file, and the client, too.
    let records = link.server.leases(link.now);
    let mut again = Link::new(config());
    again.server.restore(records);
    let kept = again.client(2, Some(before));
    again.pass(seconds(10));
    assert_eq!(again.ip(kept), Some(before));
    assert_eq!(again.server.counters.offers, 0);
    // A server that lost its leases is silent, and then offers the same address.
    let mut lost = Link::new(config());
    let kept = lost.client(2, Some(before));
    lost.pass(seconds(10));
    assert_eq!((lost.ip(kept), lost.server.counters.naks), (None, 0));
    lost.pass(seconds(120));
    assert_eq!(lost.ip(kept), Some(before));
    // The address of another network is refused at once.
    let stranger = lost.client(3, Some(Ipv4Addr::new(192, 168, 0, 7)));
    lost.pass(seconds(10));
    assert_eq!(lost.server.counters.naks, 1);
    assert!(lost.ip(stranger).is_some());
}

#[test]
fn reserved_addresses_are_for_their_client() {
    let reservations = vec![
        Reservation { mac: mac(1), address: address(200) },
        Reservation { mac: mac(2), address: address(10) },
    ];
    let mut link = Link::new(ServerConfig { reservations, ..config() });
    let all = [3, 1, 4, 2, 5].map(|n| link.client(n, None));
    link.pass(seconds(10));
    assert_eq!(link.ip(all[1]), Some(address(200)));
    assert_eq!(link.ip(all[3]), Some(address(10)));
    let others = [all[0], all[2], all[4]].map(|client| link.ip(client));
    assert_eq!(others.iter().flatten().count(), 2, "two addresses of the pool are left");
}

#[test]
fn addresses_in_use_are_not_offered() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(11)), ..config() });
    link.squatter = Some(address(10));
    let all = [1, 2].map(|n| link.client(n, None));
    link.pass(seconds(20));
    let found: Vec<_> = all.iter().filter_map(|client| link.ip(*client)).collect();
    assert_eq!(found, [address(11)]);
    assert!(link.server.counters.conflicts > 0);
    assert!(link.clients.iter().all(|client| client.counters().conflicts == 0));
    // The address is offered again once the host is gone.
    link.squatter = None;
    link.pass(seconds(1200));
    assert_eq!(all.iter().filter_map(|client| link.ip(*client)).count(), 2);
}

#[test]
fn declined_addresses_are_blocked() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(11)), ..config() });
    let client = link.client(1, None);
    link.pass(Duration::from_millis(500));
    let first = link.server.bindings.of_client(&[1, 2, 0, 0, 0, 1, 1]).expect("it is granted");
    // The host appears after the server's probe.
    link.squatter = Some(first);
    link.pass(seconds(30));
    assert_eq!(link.clients[client].counters().conflicts, 1);
    let events: Vec<_> = std::iter::from_fn(|| link.clients[client].poll_event()).collect();
    assert_eq!(events[0], ClientEvent::Lost(LeaseLoss::InUse(first)));
    assert!(link.ip(client).is_some_and(|second| second != first));
}

/// Returns a request of a client, in a frame.
fn request(kind: MessageKind, n: u8, change: impl Fn(&mut DhcpMessage)) -> Vec<u8> {
    let mut message = DhcpMessage::request(kind, 7, mac(n));
    change(&mut message);
    let from = LinkEndpoint { mac: mac(n), ip: message.ciaddr, port: CLIENT_PORT };
    frame::datagram(&from, &LinkEndpoint::broadcast(SERVER_PORT), &message.emit())
}

#[test]
fn a_host_with_many_identifiers_gets_few_addresses() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(200)), ..config() });
    for n in 0..50 {
        let id = vec![0, n];
        let discover = request(MessageKind::Discover, 1, |message| {
            message.options.client_id = Some(id.clone());
        });
        link.server.on_frame(link.now, &discover, false);
        link.pass(seconds(1));
    }
    assert_eq!((link.server.counters.offers, link.server.counters.client_full), (4, 46));
}

/// An identifier whose lease has ended gets its address again, but counts like a new one.
#[test]
fn a_host_with_many_ended_leases_gets_few_addresses() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(200)), ..config() });
    let send = |link: &mut Link, kind: MessageKind, n: u8, ciaddr: Ipv4Addr| {
        let frame = request(kind, 1, |message| {
            message.options.client_id = Some(vec![0, n]);
            message.ciaddr = ciaddr;
        });
        link.server.on_frame(link.now, &frame, false);
        link.pass(seconds(1));
    };
    let bound = |link: &Link, n: u8| link.server.bindings.of_client(&[0, n]).expect("an offer");
    for n in 0..9 {
        send(&mut link, MessageKind::Discover, n, Ipv4Addr::UNSPECIFIED);
        let address = bound(&link, n);
        send(&mut link, MessageKind::Release, n, address);
    }
    for n in 0..9 {
        let address = bound(&link, n);
        send(&mut link, MessageKind::Request, n, address);
    }
    assert_eq!((link.server.leases(link.now).len(), link.server.counters.naks), (4, 5));
    for n in 0..9 {
        send(&mut link, MessageKind::Discover, n, Ipv4Addr::UNSPECIFIED);
    }
    assert_eq!(link.server.counters.client_full, 5);
}

#[test]
fn a_full_pool_is_searched_again_when_a_binding_ends_or_changes() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(10)), ..config() });
    let discover = |link: &mut Link, n: u8| {
        let frame = request(MessageKind::Discover, n, |_| {});
        link.server.on_frame(link.now, &frame, false);
        link.pass(seconds(1));
        (link.server.counters.offers, link.server.counters.pool_full)
    };
    assert_eq!(discover(&mut link, 1), (1, 0));
    assert_eq!(discover(&mut link, 2), (1, 1));
    assert_eq!(discover(&mut link, 3), (1, 2));
    let release = request(MessageKind::Release, 1, |message| message.ciaddr = address(10));
    link.server.on_frame(link.now, &release, false);
    assert_eq!(discover(&mut link, 2), (2, 2));
    assert_eq!(discover(&mut link, 3), (2, 3));
    // The offer ends.
    link.pass(seconds(60));
    assert_eq!(discover(&mut link, 3), (3, 3));
}

#[test]
fn a_link_with_one_client_gives_its_address_to_the_next_one() {
    let mut link = Link::new(ServerConfig { pool: (address(10), address(10)), ..config() });
    link.server.set_one_client();
    for n in 1..4 {
        let client = link.client(n, None);
        link.pass(seconds(10));
        assert_eq!(link.ip(client), Some(address(10)), "client {n}");
        assert_eq!(link.server.leases(link.now).len(), 1);
        link.clients.clear();
    }
    assert_eq!(link.server.counters.pool_full, 0);
}

#[test]
fn requests_for_others_are_ignored() {
    let mut link = Link::new(config());
    let server = &mut link.server;
    let relayed = request(MessageKind::Discover, 1, |message| message.giaddr = address(9));
    assert!(!server.on_frame(link.now, &relayed, false));
    let reply = request(MessageKind::Discover, 1, |message| message.op = BootOp::Reply);
    assert!(!server.on_frame(link.now, &reply, false));
    let foreign = request(MessageKind::Request, 1, |message| {
        message.options.server = Some(address(2));
        message.options.requested = Some(address(10));
    });
    assert!(server.on_frame(link.now, &foreign, false));
    let unknown = request(MessageKind::Request, 1, |message| message.ciaddr = address(10));
    assert!(server.on_frame(link.now, &unknown, false));
    assert_eq!(server.poll_frame(), None);
}

#[test]
fn inform_is_answered_without_a_lease() {
    let mut link = Link::new(config());
    let inform = request(MessageKind::Inform, 1, |message| message.ciaddr = address(77));
    assert!(link.server.on_frame(link.now, &inform, false));
    let frame = link.server.poll_frame().expect("an answer");
    let Some(DhcpFrame::Datagram(datagram)) = frame::parse(&frame, false) else { panic!() };
    let ack = DhcpMessage::parse(datagram.payload).expect("a message");
    assert_eq!((ack.kind, ack.options.lease_s), (MessageKind::Ack, None));
    assert_eq!((ack.yiaddr, datagram.to.ip), (Ipv4Addr::UNSPECIFIED, address(77)));
    assert!(link.server.leases(link.now).is_empty());
}

#[test]
fn replies_return_the_identifier_of_the_client() {
    let mut link = Link::new(config());
    let id = Some(vec![0, 5]);
    for (kind, ciaddr, reply) in [
        (MessageKind::Inform, address(77), MessageKind::Ack),
        (MessageKind::Request, Ipv4Addr::new(192, 168, 0, 7), MessageKind::Nak),
    ] {
        let frame = request(kind, 1, |message| {
            (message.ciaddr, message.options.client_id) = (ciaddr, id.clone());
        });
        assert!(link.server.on_frame(link.now, &frame, false));
        let frame = link.server.poll_frame().expect("an answer");
        let Some(DhcpFrame::Datagram(datagram)) = frame::parse(&frame, false) else { panic!() };
        let found = DhcpMessage::parse(datagram.payload).expect("a message");
        assert_eq!((found.kind, found.options.client_id), (reply, id.clone()));
    }
}

proptest! {
    /// No input of clients causes a panic, a storm, or an address for two clients.
    #[test]
    fn hostile_clients_do_no_harm(
        steps in proptest::collection::vec(
            (1..8_u8, 0..6_u8, 0..6_u8, 8..14_u8, 0..4_u8, 0..2_000_000_u32), 1..150,
        ),
    ) {
        let reservations = vec![Reservation { mac: mac(1), address: address(10) }];
        let mut link = Link::new(ServerConfig { reservations, ..config() });
        for (kind, host, id, wanted, which, ms) in steps {
            link.now += Duration::from_millis(ms.into());
            link.server.on_timeout(link.now);
            let kinds = [
                MessageKind::Discover,
                MessageKind::Request,
                MessageKind::Decline,
                MessageKind::Release,
                MessageKind::Inform,
                MessageKind::Offer,
                MessageKind::Request,
            ];
            let frame = request(kinds[usize::from(kind - 1)], host, |message| {
                message.options.client_id = (id > 0).then(|| vec![0, id]);
                message.options.requested = (which & 1 != 0).then_some(address(wanted));
                message.options.server = (which & 2 != 0).then_some(SERVER);
                if which == 0 {
                    message.ciaddr = address(wanted);
                }
            });
            link.server.on_frame(link.now, &frame, false);
            let leases = link.server.leases(link.now);
            let in_range = |it: &LeaseRecord| (10..=12).contains(&it.address.octets()[3]);
            prop_assert!(leases.iter().all(in_range));
            let clients: std::collections::BTreeSet<_> =
                leases.iter().map(|it| &it.client).collect();
            prop_assert_eq!(clients.len(), leases.len(), "one address for each client");
            for lease in &leases {
                prop_assert!(lease.address != address(10) || lease.mac == mac(1), "reserved");
            }
            prop_assert!(link.server.bindings.len() <= 3);
            prop_assert!(link.server.frames.len() <= 4);
            link.server.frames.clear();
        }
    }
}
