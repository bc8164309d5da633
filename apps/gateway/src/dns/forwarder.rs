//! Forwards DNS queries over UDP: asks one nameserver after the other until one gives a usable
//! answer.
//!
//! ```text
//!   question ──► ask ──► a socket of its own ──► nameserver
//!                 ▲                                  │
//!                 └── nothing in time, an error, ◄───┤
//!                     SERVFAIL, REFUSED, NOTIMP      │
//!   program ◄─────────────── answer ◄────────────────┘
//! ```
//!
//! Each query leaves from its own port with its own identifier, both unpredictable. So an attacker
//! cannot forge an answer, and no program receives the answer to another program's query.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::SocketType;
use siphasher::sip::SipHasher13;
use towpath_ring::Payload;
use towpath_shm::Fragments;
use towpath_stack::{DatagramFrom, DatagramMeta, Host};

use super::message;
use crate::context::{Context, Shared};
use crate::dialer;
use crate::events::{Interest, Readiness, Token};
use crate::icmp::About;
use crate::idle::{Class, IdleTable};
use crate::limits::{DATAGRAMS_PER_TURN, NAMESERVER_REPEAT_NS};
use crate::nameservers::ServerRotation;
use crate::slab::SlabKey;
use crate::sys::{self, Destination, IpOption};

/// The DNS forwarder: queries of the program that wait for a nameserver's answer.
#[derive(Debug)]
pub(crate) struct Forwarder {
    queries: IdleTable<Asked, Query>,
    /// Keys of queries that are handled in the next iteration of the event loop. Contains each key
    /// at most once.
    due: VecDeque<SlabKey>,
    /// Whether the thread that watches /etc/resolv.conf has detected a change.
    renamed: bool,
    ids: Ids,
}

/// Key of a query: the program's address and the DNS identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asked {
    program: SocketAddr,
    forwarder: SocketAddr,
    /// DNS identifier that the program has chosen for the query.
    id: u16,
}

/// A query that was sent to a nameserver and waits for the answer.
#[derive(Debug)]
struct Query {
    wanted: Wanted,
    /// Host socket, connected to the nameserver.
    host: Fd,
    asked_ns: u64,
    /// Whether the program has repeated the query, so that another nameserver should be tried.
    repeated: bool,
    queued: bool,
}

/// Message of a query, and the nameservers still to be tried.
#[derive(Debug)]
struct Wanted {
    message: Vec<u8>,
    tour: ServerRotation,
    /// Failure to report to the program if no other nameserver gives a usable answer.
    failure: Option<Failure>,
}

/// Reason why a nameserver gave no usable answer.
#[derive(Debug)]
enum Failure {
    /// The nameserver answered with an error. Contains the bytes of the answer.
    Answer(Vec<u8>),
    /// The host could not send to the nameserver.
    Error(Errno),
}

/// Generator of unpredictable DNS identifiers.
#[derive(Debug)]
struct Ids {
    keys: [u64; 2],
    count: u64,
}

/// Eviction class of queries in the table. All queries have the same class.
const CLASS: usize = 0;

impl Forwarder {
    /// Creates a forwarder for at most `max` queries at a time. Each nameserver has `timeout_ns` to
    /// answer.
    pub(crate) fn new(max: usize, timeout_ns: u64, seed: &[u8; 32]) -> Self {
        let class = Class { idle_ns: timeout_ns, owner: 0, max, worth: 0 };
        Self {
            queries: IdleTable::new(&[class]),
            due: VecDeque::new(),
            renamed: false,
            ids: Ids::new(seed),
        }
    }

    /// Returns whether [`Forwarder::serve`] has work.
    pub(crate) fn is_due(&self) -> bool {
        self.renamed || !self.due.is_empty()
    }

    /// Returns the earliest time at which a nameserver's timeout ends.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.queries.next_expiry_ns()
    }

    /// Handles a DNS query of the program.
    pub(crate) fn on_question(
        &mut self,
        shared: &mut Shared,
        meta: &DatagramMeta,
        payload: &Payload<'_>,
    ) {
        let mut message = vec![0; payload.len() as usize];
        payload.copy_to(0, &mut message);
        let Some(id) = message::query_id(&message) else {
            shared.counters.dns_malformed += 1;
            return;
        };
        shared.counters.dns_questions += 1;
        let asked = Asked { program: meta.remote, forwarder: meta.local, id };
        if shared.is_loop(meta.remote, meta.local) {
            return;
        }
        if let Some(key) = self.queries.find(&asked) {
            if self.is_repeated(key, &message) {
                shared.counters.dns_repeated += 1;
                return self.on_repeated(shared.now_ns, key);
            }
            // The program has reused the identifier for another query, so it no longer waits for
            // the first one.
            self.queries.remove(key);
        }
        let tour = shared.nameservers.rotation(shared.now_ns);
        let wanted = Wanted { message, tour, failure: None };
        if let Err(failure) = self.ask(shared, asked, wanted) {
            asked.tell_error(shared, failure);
        }
    }

    /// Schedules a query whose socket epoll has reported as readable or failed.
    pub(crate) fn on_ready(&mut self, key: SlabKey, ready: Readiness) {
        if ready.readable || ready.failed {
            self.enqueue(key);
        }
    }

    /// Records that the thread that watches /etc/resolv.conf has detected a change.
    pub(crate) fn on_renamed(&mut self) {
        self.renamed = true;
    }

    /// Passes answers to the program. Sends queries without a usable answer to the next nameserver.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_, impl Host>) {
        if std::mem::take(&mut self.renamed) && cx.shared.nameservers.refresh() {
            self.queries.set_idle_ns(CLASS, cx.shared.nameservers.timeout_ns());
            self.leave_nameless(cx);
        }
        while let Some((asked, query)) = self.queries.expire(cx.shared.now_ns) {
            if let Some(silent) = query.wanted.tour.current() {
                cx.shared.nameservers.on_silence(cx.shared.now_ns, silent);
            }
            self.go_on(cx, asked, query.wanted);
        }
        for _ in 0..self.due.len() {
            if cx.is_link_busy() {
                break;
            }
            let Some(key) = self.due.pop_front() else { break };
            self.step(cx, key);
        }
    }

    /// Stops waiting for nameservers that resolv.conf no longer lists. The host may have moved to
    /// another network, where they cannot be reached.
    fn leave_nameless(&mut self, cx: &mut Context<'_, impl Host>) {
        for key in self.queries.keys() {
            let current = self.queries.get(key).and_then(|(_, query)| query.wanted.tour.current());
            if current.is_some_and(|current| !cx.shared.nameservers.has(current))
                && let Some((asked, query)) = self.queries.remove(key)
            {
                let tour = cx.shared.nameservers.rotation(cx.shared.now_ns);
                self.go_on(cx, asked, Wanted { tour, failure: None, ..query.wanted });
            }
        }
    }

    fn is_repeated(&self, key: SlabKey, message: &[u8]) -> bool {
        self.queries
            .get(key)
            .is_some_and(|(_, query)| message::is_same(&query.wanted.message, message))
    }

    /// Handles a repetition of a query, which the program sends after its own timeout. Tries the
    /// next nameserver if the current one has not answered for [`NAMESERVER_REPEAT_NS`].
    fn on_repeated(&mut self, now_ns: u64, key: SlabKey) {
        let Some((_, query)) = self.queries.get_mut(key) else { return };
        let waited_ns = now_ns.saturating_sub(query.asked_ns);
        if waited_ns >= NAMESERVER_REPEAT_NS && query.wanted.tour.goes_on() {
            query.repeated = true;
            self.enqueue(key);
        }
    }

    fn enqueue(&mut self, key: SlabKey) {
        if let Some((_, query)) = self.queries.get_mut(key)
            && !std::mem::replace(&mut query.queued, true)
        {
            self.due.push_back(key);
        }
    }

    /// Handles one query: reads the nameserver's answer, or tries the next nameserver.
    fn step(&mut self, cx: &mut Context<'_, impl Host>, key: SlabKey) {
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        let heard = self.hear(cx, key, &mut scratch);
        cx.shared.scratch = scratch;
        let Some((_, query)) = self.queries.get_mut(key) else { return };
        query.queued = false;
        let failure = match heard {
            QueryHeard::Nothing if query.repeated => None,
            QueryHeard::Nothing => return,
            QueryHeard::More => return self.enqueue(key),
            QueryHeard::Answer => {
                self.queries.remove(key);
                return;
            }
            QueryHeard::Failure(failure) => Some(failure),
        };
        let Some((asked, Query { mut wanted, .. })) = self.queries.remove(key) else { return };
        if let Some(failure) = failure {
            wanted.on_failure(failure);
        }
        self.go_on(cx, asked, wanted);
    }

    /// Reads datagrams from a query's socket, and passes a usable answer to the program.
    fn hear(
        &self,
        cx: &mut Context<'_, impl Host>,
        key: SlabKey,
        scratch: &mut [u8],
    ) -> QueryHeard {
        let Some((asked, query)) = self.queries.get(key) else { return QueryHeard::Nothing };
        let Some(to) = query.wanted.tour.current() else { return QueryHeard::Nothing };
        for _ in 0..DATAGRAMS_PER_TURN {
            let received = match sys::recv_datagram(query.host.as_fd(), scratch) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return QueryHeard::Nothing,
                Err(Errno::INTR) => continue,
                Err(error) => return QueryHeard::Failure(Failure::Error(error)),
            };
            let answer = scratch.get_mut(..received.len).unwrap_or_default();
            // Check the sender: before the socket was connected, it accepted datagrams from any
            // address.
            let its =
                received.from.is_some_and(|from| (from.ip(), from.port()) == (to.ip(), to.port()));
            if !its || !message::answers(answer, &query.wanted.message) {
                cx.shared.counters.dns_mismatched += 1;
                continue;
            }
            cx.shared.nameservers.on_answer(to);
            return match message::response_code(answer) {
                message::SERVER_FAILURE | message::NOT_IMPLEMENTED | message::REFUSED => {
                    QueryHeard::Failure(Failure::Answer(answer.to_vec()))
                }
                _ => {
                    asked.tell(cx, answer);
                    QueryHeard::Answer
                }
            };
        }
        QueryHeard::More
    }

    /// Sends a query to the next nameserver. If none is left, reports the failure to the program.
    fn go_on(&mut self, cx: &mut Context<'_, impl Host>, asked: Asked, wanted: Wanted) {
        match self.ask(cx.shared, asked, wanted) {
            Ok(()) => cx.shared.counters.dns_next += 1,
            Err(Some(Failure::Answer(mut answer))) => asked.tell(cx, &mut answer),
            Err(failure) => asked.tell_error(cx.shared, failure),
        }
    }

    /// Sends the query to the next nameserver to which the host can send.
    ///
    /// # Errors
    /// Fails if no nameserver is left. With a failure, each was asked once, and at least one
    /// answered with an error or was unreachable. Without a failure, each was asked as often as
    /// configured, and none answered.
    fn ask(
        &mut self,
        shared: &mut Shared,
        asked: Asked,
        mut wanted: Wanted,
    ) -> Result<(), Option<Failure>> {
        loop {
            if wanted.failure.is_some() && wanted.tour.is_round() {
                return Err(wanted.failure);
            }
            let Some(to) = wanted.tour.advance() else { return Err(wanted.failure) };
            message::set_id(&mut wanted.message, self.ids.next());
            match send(shared, to, &wanted.message) {
                Ok(host) => return self.await_answer(shared, asked, wanted, host),
                Err(error) => wanted.on_failure(Failure::Error(error)),
            }
        }
    }

    fn await_answer(
        &mut self,
        shared: &mut Shared,
        asked: Asked,
        wanted: Wanted,
        host: Fd,
    ) -> Result<(), Option<Failure>> {
        let client = shared.config.client(asked.program.ip());
        if self.queries.is_full(CLASS) && self.queries.evict(CLASS, client).is_some() {
            shared.counters.dns_displaced += 1;
        }
        let asked_ns = shared.now_ns;
        let query = Query { wanted, host, asked_ns, repeated: false, queued: false };
        let key = self.queries.insert(asked_ns, CLASS, client, asked, query);
        let Some((_, query)) = self.queries.get(key) else { return Ok(()) };
        match shared.events.watch(&query.host, Token::Dns(key), Interest::Readable) {
            Ok(()) => Ok(()),
            Err(error) => match self.queries.remove(key) {
                Some((_, Query { mut wanted, .. })) => {
                    wanted.on_failure(Failure::Error(error));
                    Err(wanted.failure)
                }
                None => Ok(()),
            },
        }
    }
}

/// Result of reading a query's socket.
enum QueryHeard {
    /// No answer has arrived yet.
    Nothing,
    /// `DATAGRAMS_PER_TURN` datagrams were read, and none was the answer. More may be queued.
    More,
    /// The nameserver answered, and the answer was sent to the program. SERVFAIL, NOTIMP and
    /// REFUSED are a `Failure`.
    Answer,
    Failure(Failure),
}

impl Asked {
    /// Sends an answer to the program, with the DNS identifier that the program has chosen.
    fn tell(&self, cx: &mut Context<'_, impl Host>, answer: &mut [u8]) {
        message::set_id(answer, self.id);
        let out = DatagramFrom { local: self.forwarder, remote: self.program, ttl: None, tos: 0 };
        let payload = Payload::new(answer, Fragments::empty());
        match cx.stack.send_datagram_from(cx.now, &out, &payload, cx.pool) {
            Ok(()) => cx.shared.counters.dns_answers += 1,
            Err(_) => cx.shared.counters.udp_dropped += 1,
        }
        cx.touched = true;
    }

    /// Passes an error of the host to the program if no nameserver could be reached. If nameservers
    /// did not answer, the program gets no answer either.
    fn tell_error(&self, shared: &mut Shared, failure: Option<Failure>) {
        shared.counters.dns_unanswered += 1;
        if let Some(Failure::Error(error)) = failure {
            let about = About::Datagram { program: self.program, peer: self.forwarder };
            shared.errors.refused(about, error, &[], &mut shared.counters);
        }
    }
}

impl Wanted {
    /// Records the failure of a nameserver. A nameserver's error answer has priority over an error
    /// of the host.
    fn on_failure(&mut self, failure: Failure) {
        match (&self.failure, &failure) {
            (Some(Failure::Answer(_)), Failure::Error(_)) => {}
            _ => self.failure = Some(failure),
        }
    }
}

impl Ids {
    fn new(seed: &[u8; 32]) -> Self {
        let (words, _) = seed.as_chunks::<8>();
        let word = |n: usize| u64::from_le_bytes(words[n]);
        // Hash the seed, because the inner stack uses it, too. Identifiers, which nameservers see,
        // must reveal nothing about the stack's other secrets.
        let keys = [0, 1].map(|n| {
            let mut hasher = SipHasher13::new_with_keys(word(0), word(1));
            hasher.write_u64(word(2));
            hasher.write_u64(word(3));
            hasher.write(b"dns");
            hasher.write_u8(n);
            hasher.finish()
        });
        Self { keys, count: 0 }
    }

    //= https://www.rfc-editor.org/rfc/rfc5452#section-9.2
    //# o  Use an unpredictable query ID for outgoing queries, utilizing the
    //# full range available (0-65535).
    fn next(&mut self) -> u16 {
        self.count += 1;
        let mut hasher = SipHasher13::new_with_keys(self.keys[0], self.keys[1]);
        hasher.write_u64(self.count);
        hasher.finish() as u16
    }
}

/// Sends a query to a nameserver from a new socket.
//= https://www.rfc-editor.org/rfc/rfc5452#section-9.2
//# o  Use an unpredictable source port for outgoing queries from the
//# range of available ports (53, or 1024 and above) that is as large
//# as possible and practicable;
fn send(shared: &mut Shared, to: SocketAddr, message: &[u8]) -> Result<Fd, Errno> {
    let host = dialer::socket(SocketType::DGRAM, to)?;
    // Set IP_RECVERR. Without it the kernel reports only closed ports, but not unreachable hosts.
    sys::set_ip(host.as_fd(), to.is_ipv6(), IpOption::ReceiveErrors, 1)?;
    // The kernel chooses a random source port.
    shared.dialer.connect(&host, to)?;
    shared.loops.note(&host, to);
    sys::send_datagram(host.as_fd(), message, &Fragments::empty(), &Destination::default())?;
    Ok(host)
}
