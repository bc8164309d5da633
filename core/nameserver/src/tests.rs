//! Tests of the forwarder by messages and times.

mod dns64;
mod hostile;
mod local;
mod queries;
mod upstream;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use towpath_dns::{A, Name, Protocol};
use towpath_tcp::Instant;

use crate::{
    DnsAction, DnsClient, DnsExchange, DnsForwarder, ForwarderConfig, LocalNames, ReplyPath,
};

const START: Instant = Instant(1_000_000_000);
const SERVERS: [&str; 2] = ["192.0.2.53:53", "192.0.2.54:53"];
const SOA: u16 = 6;
const OPT: u16 = 41;

/// A forwarder with two upstream servers.
struct ForwarderBench {
    forwarder: DnsForwarder,
    now: Instant,
}

/// A message to an upstream server.
#[derive(Debug, Clone)]
struct UpstreamMessage {
    exchange: DnsExchange,
    server: SocketAddr,
    protocol: Protocol,
    message: Vec<u8>,
}

impl ForwarderBench {
    fn new() -> Self {
        Self::with(ForwarderConfig::default())
    }

    fn with(config: ForwarderConfig) -> Self {
        Self::with_names(config, LocalNames::new(Name::new(b"home.arpa", b""), &[]))
    }

    fn with_names(config: ForwarderConfig, names: LocalNames) -> Self {
        let mut forwarder = DnsForwarder::new(config, names, [1, 2]);
        forwarder.set_servers(&SERVERS.map(|server| server.parse().expect("an address")));
        Self { forwarder, now: START }
    }

    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.forwarder.on_timeout(self.now);
    }

    fn ask(&mut self, message: &[u8]) {
        self.forwarder.on_query(self.now, datagram_client("10.1.0.2"), message);
    }

    /// Returns the messages to upstream servers and the replies of all actions.
    fn actions(&mut self) -> (Vec<UpstreamMessage>, Vec<Vec<u8>>) {
        let (mut sent, mut replies) = (Vec::new(), Vec::new());
        while let Some(action) = self.forwarder.poll_action() {
            match action {
                DnsAction::Send { exchange, server, protocol, message, .. } => {
                    sent.push(UpstreamMessage { exchange, server, protocol, message });
                }
                DnsAction::Reply { message, .. } => replies.push(message),
                DnsAction::Close { .. } => {}
            }
        }
        (sent, replies)
    }

    /// Returns the only message to an upstream server.
    fn sent(&mut self) -> UpstreamMessage {
        let (mut sent, replies) = self.actions();
        assert!(sent.len() == 1 && replies.is_empty(), "{sent:?} {replies:?}");
        sent.remove(0)
    }

    /// Returns the only reply.
    fn reply(&mut self) -> Vec<u8> {
        let (sent, mut replies) = self.actions();
        assert!(sent.is_empty() && replies.len() == 1, "{sent:?} {replies:?}");
        replies.remove(0)
    }

    fn answer(&mut self, sent: &UpstreamMessage, message: &[u8]) {
        self.forwarder.on_answer(self.now, sent.exchange, message);
    }

    /// Asks for the address of a name, and lets the first server answer.
    fn resolve(&mut self, name: &str, ttl: u32) -> Vec<u8> {
        self.ask(&query(7, name, A));
        let sent = self.sent();
        self.answer(&sent, &answer(&sent.message, 0, &[address(ttl)], &[]));
        self.reply()
    }

    fn counter(&self, name: &str) -> u64 {
        let forwarder = &self.forwarder;
        let all = forwarder.counters().list().into_iter().chain(forwarder.sizes());
        all.into_iter().find(|(known, _)| *known == name).expect(name).1
    }
}

fn datagram_client(ip: &str) -> DnsClient {
    let remote = SocketAddr::new(ip.parse().expect("an address"), 4000);
    let local = IpAddr::V4([10, 1, 0, 1].into());
    DnsClient { remote, path: ReplyPath::Datagram { socket: 0, local } }
}

/// Returns a question section.
fn question(name: &str, kind: u16) -> Vec<u8> {
    let name = Name::new(name.as_bytes(), b"").expect("a name");
    [name.wire(), &kind.to_be_bytes(), &[0, 1]].concat()
}

/// Returns a query without an OPT record.
fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let header = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&id.to_be_bytes()[..], &header, &question(name, kind)].concat()
}

/// Returns a query with an OPT record.
fn edns_query(id: u16, name: &str, kind: u16, size: u16, flags: u16) -> Vec<u8> {
    let mut message = query(id, name, kind);
    message[11] = 1;
    let opt = TestRecord { owner: vec![0], kind: OPT, ttl: flags.into(), data: Vec::new() };
    let mut opt = opt.bytes();
    opt[3..5].copy_from_slice(&size.to_be_bytes());
    message.extend(opt);
    message
}

/// A record of an answer.
#[derive(Debug, Clone)]
struct TestRecord {
    owner: Vec<u8>,
    kind: u16,
    ttl: u32,
    data: Vec<u8>,
}

impl TestRecord {
    fn bytes(&self) -> Vec<u8> {
        let Self { owner, kind, ttl, data } = self;
        let len = (data.len() as u16).to_be_bytes();
        [owner, &kind.to_be_bytes()[..], &[0, 1], &ttl.to_be_bytes(), &len, data].concat()
    }
}

/// Returns an address record of the name in the question.
fn address(ttl: u32) -> TestRecord {
    TestRecord { owner: vec![0xc0, 12], kind: A, ttl, data: vec![192, 0, 2, 80] }
}

/// Returns an SOA record with a negative lifetime.
fn soa(ttl: u32, minimum: u32) -> TestRecord {
    let mut data = vec![0, 0];
    data.extend([0; 16]);
    data.extend(minimum.to_be_bytes());
    TestRecord { owner: vec![0xc0, 12], kind: SOA, ttl, data }
}

/// Returns an answer to a query of the forwarder, with an OPT record.
fn answer(query: &[u8], code: u8, answers: &[TestRecord], authority: &[TestRecord]) -> Vec<u8> {
    let end = query_end(query);
    let mut message = query[..end].to_vec();
    (message[2], message[3]) = (0x81, 0x80 | code);
    message[7] = answers.len() as u8;
    message[9] = authority.len() as u8;
    message[11] = 1;
    answers.iter().chain(authority).for_each(|record| message.extend(record.bytes()));
    let opt = TestRecord { owner: vec![0], kind: OPT, ttl: 0, data: Vec::new() };
    message.extend(opt.bytes());
    message
}

/// Returns the offset after the question of a query.
fn query_end(query: &[u8]) -> usize {
    crate::records::plain_name_end(query, 12).expect("a name") + 4
}

/// Returns the response code of a message.
fn code(message: &[u8]) -> u8 {
    message[3] & 15
}

/// Returns the numbers of records of a message: answers, authority, additional.
fn counts(message: &[u8]) -> [u16; 3] {
    crate::records::section_counts(message).expect("a header")
}

/// Returns the times to live of the records of a message.
fn ttls(message: &[u8]) -> Vec<u32> {
    let mut at = query_end(message);
    let count = counts(message).iter().sum();
    let next = |_| {
        let place = crate::records::record(message, at).expect("a record");
        at = place.end;
        place.ttl
    };
    (0..count).map(next).collect()
}
