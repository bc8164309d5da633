//! Fuzzes a DNS forwarder between clients and upstream servers that send any messages.
//!
//! Invariants:
//!
//! - Each accepted query gets one reply with its identifier, at the latest after the timeouts of
//!   all servers. Only queries of closed connections get none.
//! - Cache and waiting clients are within their limits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_nameserver::{
    DnsAction, DnsClient, DnsExchange, DnsForwarder, EDNS_SIZE, ForwarderConfig, LeasedName,
    LocalNames, ReplyPath,
};
use towpath_siit::TranslationPrefix;
use towpath_tcp::Instant;

use crate::input::Input;

/// Maximum steps of a case; more would only repeat states.
const STEPS_MAX: usize = 200;
const ENTRIES_MAX: u64 = 4;
const BYTES_MAX: u64 = 1500;
const PENDING_MAX: u64 = 6;
/// Time after which all servers have failed to answer a query about IPv6 and IPv4 addresses.
const PATIENCE_S: u64 = 60;

const NAMES: [&[u8]; 6] = [
    b"\x03www\x07example\x00",
    b"\x03WWW\x07example\x00",
    b"\x01a\x07example\x00",
    b"\x02pc\x04home\x04arpa\x00",
    b"\x011\x010\x010\x0210\x07in-addr\x04arpa\x00",
    b"\x00",
];
const KINDS: [u16; 6] = [1, 28, 12, 6, 255, 41];
const SERVERS: [&str; 3] = ["192.0.2.53:53", "[2001:db8::53]:53", "192.0.2.54:5353"];
const CLIENTS: [&str; 3] = ["10.1.0.2:4000", "[fd00::1]:4000", "[fd00::2]:4001"];

/// Runs a case.
///
/// # Panics
/// If a query gets no reply or two, or a limit is exceeded.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let config = ForwarderConfig {
        cache_entries: ENTRIES_MAX as usize,
        cache_bytes: BYTES_MAX as usize,
        ttl_min_s: u32::from(input.u8() % 4) * 10,
        ttl_max_s: 100,
        pending_max: PENDING_MAX as usize,
        pending_per_client: 4,
        dns64: input.bool().then_some(TranslationPrefix::WELL_KNOWN),
    };
    let names = LocalNames::new(None, &[]);
    let forwarder = DnsForwarder::new(config, names, [5, 6]);
    let (open, closed) = (BTreeMap::new(), [false; 4]);
    let mut case = Case { forwarder, now: Instant(1), open, waiting: BTreeMap::new(), closed };
    case.set_servers(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        case.step(&mut input);
        case.check_limits();
    }
    for _ in 0..PATIENCE_S {
        case.pass(1000);
    }
    assert_eq!(case.size("waiting"), 0);
    assert!(case.waiting.values().all(|count| *count == 0), "{:?}", case.waiting);
}

struct Case {
    forwarder: DnsForwarder,
    now: Instant,
    /// Messages to servers whose sockets are open.
    open: BTreeMap<DnsExchange, Vec<u8>>,
    /// Number of accepted queries without a reply, by their identifier.
    waiting: BTreeMap<u16, i32>,
    /// Whether each TCP connection was closed.
    closed: [bool; 4],
}

impl Case {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0..=2 => self.ask(input),
            3 | 4 => self.answer(input),
            5 => self.pass(u64::from(input.u16()) * 10),
            6 => {
                if let Some((exchange, _)) = self.open.first_key_value() {
                    self.forwarder.on_failure(self.now, *exchange);
                }
            }
            _ => match input.u8() % 5 {
                0 => drop(self.forwarder.flush()),
                1 => self.set_servers(input),
                2 => self.set_leases(input),
                _ => self.close_stream(input),
            },
        }
        self.act();
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let remote: SocketAddr = input.pick(&CLIENTS).parse().expect("an address");
        let stream = usize::from(input.u8() % 8);
        let path = match self.closed.get(stream) {
            Some(true) => return,
            Some(false) => ReplyPath::Stream(stream as u64),
            None => ReplyPath::Datagram { socket: 0, local: [10, 1, 0, 1].into() },
        };
        // Streams 0 to 3 use identifiers of their own, so that they can be forgotten.
        let id = u16::from(input.u8()) << 3 | stream as u16;
        let mut message = id.to_be_bytes().to_vec();
        message.extend([input.pick(&[1, 1, 1, 0]), input.pick(&[0, 0x10, 0x20]), 0, 1]);
        message.extend([0; 6]);
        message.extend(input.pick(&NAMES));
        message.extend(input.pick(&KINDS).to_be_bytes());
        message.extend([0, 1]);
        if input.bool() {
            message[11] = 1;
            message.extend([0, 0, 41]);
            message.extend(input.u16().to_be_bytes());
            message.extend([0, 0, input.pick(&[0, 0x80]), 0, 0, 0]);
        }
        change(&mut message, input, 2);
        if self.forwarder.on_query(self.now, DnsClient { remote, path }, &message) {
            *self.waiting.entry(id).or_default() += 1;
        }
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        let place = usize::from(input.u8()) % self.open.len().max(1);
        let Some((exchange, query)) = self.open.iter().nth(place) else { return };
        let (exchange, mut message) = (*exchange, query.clone());
        let end = 12 + message[12..].iter().position(|byte| *byte == 0).unwrap_or(0) + 5;
        message.truncate(end);
        message[2..4]
            .copy_from_slice(&[input.pick(&[0x81, 0x81, 0x83]), input.pick(&[0, 0, 2, 3])]);
        let (answers, authority) = (input.u8() % 4, input.u8() % 2);
        (message[7], message[9], message[11]) = (answers, authority, input.u8() % 2);
        for _ in 0..answers {
            message.extend([0xc0, 12, 0, input.pick(&[1, 5, 28]), 0, 1]);
            message.extend((input.u32() % 200).to_be_bytes());
            message.extend([0, 4, 1, 2, 3, 4]);
        }
        if authority == 1 {
            message.extend([0xc0, 12, 0, 6, 0, 1, 0, 0, 0, input.u8(), 0, 22, 0, 0]);
            message.extend([0; 16]);
            message.extend(u32::from(input.u8()).to_be_bytes());
        }
        if message[11] == 1 {
            message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        }
        change(&mut message, input, 0);
        self.forwarder.on_answer(self.now, exchange, &message);
    }

    fn pass(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
        self.forwarder.on_timeout(self.now);
        self.act();
    }

    fn set_servers(&mut self, input: &mut Input<'_>) {
        let servers: Vec<_> = SERVERS.map(|server| server.parse().expect("an address")).into();
        self.forwarder.set_servers(&servers[..usize::from(input.u8() % 4)]);
    }

    fn set_leases(&mut self, input: &mut Input<'_>) {
        let lease = LeasedName {
            host_name: String::from_utf8_lossy(input.pick(&[b"pc", b"\xff", b""])).into_owned(),
            address: [10, 0, 0, 1].into(),
            until: self.now + Duration::from_secs(input.u8().into()),
        };
        self.forwarder.set_leases(vec![lease]);
    }

    fn close_stream(&mut self, input: &mut Input<'_>) {
        let stream = input.u8() % 4;
        self.closed[usize::from(stream)] = true;
        self.forwarder.on_stream_closed(stream.into());
        self.waiting.retain(|id, _| id & 7 != u16::from(stream));
    }

    fn act(&mut self) {
        while let Some(action) = self.forwarder.poll_action() {
            match action {
                DnsAction::Reply { client, message } => self.check_reply(client, &message),
                DnsAction::Send { exchange, message, .. } => {
                    assert!(self.open.insert(exchange, message).is_none());
                }
                DnsAction::Close { exchange } => {
                    assert!(self.open.remove(&exchange).is_some());
                }
            }
        }
    }

    fn check_reply(&mut self, client: DnsClient, message: &[u8]) {
        let id = u16::from_be_bytes([message[0], message[1]]);
        let count = self.waiting.entry(id).or_default();
        *count -= 1;
        assert!(message[2] & 0x80 != 0);
        let is_stream = matches!(client.path, ReplyPath::Stream(_));
        assert!(is_stream || message.len() <= usize::from(EDNS_SIZE), "{}", message.len());
    }

    fn check_limits(&self) {
        let sizes =
            [("cache_entries", ENTRIES_MAX), ("cache_bytes", BYTES_MAX), ("waiting", PENDING_MAX)];
        for (name, max) in sizes {
            assert!(self.size(name) <= max, "{name}: {}", self.size(name));
        }
        assert!(self.open.len() as u64 <= PENDING_MAX);
    }

    fn size(&self, name: &str) -> u64 {
        let sizes = self.forwarder.sizes();
        sizes.into_iter().find(|(known, _)| *known == name).expect(name).1
    }
}

/// Changes a few bytes of a message, from offset `from` on, and shortens it at times.
fn change(message: &mut Vec<u8>, input: &mut Input<'_>, from: usize) {
    for _ in 0..input.u8().saturating_sub(250) {
        let at = from + usize::from(input.u8()) % (message.len() - from);
        message[at] = input.u8();
    }
    if input.one_in(32) {
        message.truncate(from + usize::from(input.u8()) % (message.len() - from));
    }
}
