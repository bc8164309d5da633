//! The forwarder: answers clients from local names and the cache, and asks upstream servers.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use towpath_dns::{Protocol, rcode};
use towpath_tcp::Instant;

use crate::answer::{AnswerFault, UpstreamAnswer};
use crate::cache::{AnswerCache, CacheKey, CacheSize};
use crate::config::{DnsAction, DnsClient, DnsExchange, ForwarderConfig, ReplyPath};
use crate::counters::ForwarderCounters;
use crate::dns64;
use crate::ids::{QuerySecret, QuerySecrets};
use crate::local::{LeasedName, LocalNames};
use crate::pending::{ForwardedQuery, PendingExchange, PendingQueries, SentMessage, WaitingClient};
use crate::query::{ClientQuery, NOT_IMPLEMENTED, QueryFault, REFUSED};
use crate::records::kind;
use crate::reply::{AnswerParts, empty_reply, reply};
use crate::servers::ServerList;
use crate::zones::LocalZones;

/// Time after which a server has failed to answer over UDP. Resolvers of hosts wait for 5 s, so
/// that at least two further servers are asked before a host gives up.
const UDP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time after which a server has failed to answer over TCP, including the handshake.
const TCP_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of servers asked for one question, counting a server again for each time.
const ATTEMPTS_MAX: u32 = 4;
/// Number of messages with a wrong identifier or question after which the question is repeated over
/// TCP. There, a forged answer does not succeed (RFC 5452 §9.3).
const MISMATCHES_MAX: u32 = 8;
/// Time in seconds for which a question without an answer is not sent again (RFC 9520 §3.2).
const FAILURE_TTL_S: u32 = 5;

/// A DNS forwarder. Call [`Self::on_query`] for each query of a client, the other functions named
/// `on_` for the events of upstream sockets, and [`Self::on_timeout`] at [`Self::next_timeout`].
/// After each call, carry out the actions of [`Self::poll_action`].
#[derive(Debug)]
pub struct DnsForwarder {
    config: ForwarderConfig,
    zones: LocalZones,
    names: LocalNames,
    cache: AnswerCache,
    servers: ServerList,
    pending: PendingQueries,
    secrets: QuerySecrets,
    last_exchange: u64,
    actions: VecDeque<DnsAction>,
    counters: ForwarderCounters,
}

impl DnsForwarder {
    /// Creates a forwarder without upstream servers. `key` must be random and secret: it determines
    /// the identifiers and ports of messages to upstream servers.
    pub fn new(config: ForwarderConfig, names: LocalNames, key: [u64; 2]) -> Self {
        Self {
            zones: LocalZones::new(names.domain()),
            cache: AnswerCache::new(&config),
            config,
            names,
            servers: ServerList::default(),
            pending: PendingQueries::default(),
            secrets: QuerySecrets::new(key),
            last_exchange: 0,
            actions: VecDeque::new(),
            counters: ForwarderCounters::default(),
        }
    }

    /// Sets the upstream servers, in order of preference. At most eight are used.
    pub fn set_servers(&mut self, servers: &[SocketAddr]) {
        self.servers.set(servers);
    }

    /// Replaces the names of DHCP leases.
    pub fn set_leases(&mut self, leases: Vec<LeasedName>) {
        self.names.set_leases(leases);
    }

    /// Removes all answers from the cache, and returns their number.
    pub fn flush(&mut self) -> usize {
        self.cache.flush()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &ForwarderCounters {
        &self.counters
    }

    /// Returns the current sizes and their names: answers and bytes in the cache, evicted answers,
    /// waiting clients, upstream servers, and failed ones.
    pub fn sizes(&self) -> [(&'static str, u64); 6] {
        let CacheSize { entries, bytes, evicted } = self.cache.size();
        [
            ("cache_entries", entries as u64),
            ("cache_bytes", bytes as u64),
            ("cache_evicted", evicted),
            ("waiting", self.pending.waiting() as u64),
            ("servers", self.servers.addresses().count() as u64),
            ("servers_failed", self.servers.failed().count() as u64),
        ]
    }

    /// Removes and returns the next action.
    pub fn poll_action(&mut self) -> Option<DnsAction> {
        self.actions.pop_front()
    }

    /// Returns the time at which [`Self::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.pending.next_deadline().map(|(at, _)| at)
    }

    /// Handles a message of a client. Returns whether the client gets a reply.
    pub fn on_query(&mut self, now: Instant, client: DnsClient, message: &[u8]) -> bool {
        let query = match ClientQuery::parse(message) {
            Ok(query) => query,
            Err(fault) => {
                self.counters.rejected += 1;
                let QueryFault::Refused(message) = fault else { return false };
                self.actions.push_back(DnsAction::Reply { client, message });
                return true;
            }
        };
        self.counters.queries += 1;
        if let Some(message) = self.known_reply(now, client, &query) {
            self.actions.push_back(DnsAction::Reply { client, message });
            return true;
        }
        self.counters.misses += 1;
        let ForwarderConfig { pending_max, pending_per_client, .. } = self.config;
        if !self.pending.has_room(&client, pending_max, pending_per_client) {
            self.counters.refused += 1;
            let message = empty_reply(&query, REFUSED);
            self.actions.push_back(DnsAction::Reply { client, message });
            return true;
        }
        self.wait(now, WaitingClient { client, query })
    }

    /// Returns the reply to a query that needs no upstream server.
    fn known_reply(
        &mut self,
        now: Instant,
        client: DnsClient,
        query: &ClientQuery,
    ) -> Option<Vec<u8>> {
        let is_stream = matches!(client.path, ReplyPath::Stream(_));
        if let Some(local) = self.names.answer(now, &self.zones, &query.question) {
            self.counters.local += 1;
            let answer = AnswerParts { message: &local.message, code: local.code, age_s: 0 };
            return Some(reply(query, answer, is_stream));
        }
        if !query.wants_recursion {
            // Otherwise a client could find out which names other clients look up.
            return Some(empty_reply(query, REFUSED));
        }
        let found = self.cache.find(now, &CacheKey::of(&query.question))?;
        self.counters.hits += 1;
        Some(reply(query, found, is_stream))
    }

    /// Lets a client wait for the answer of an upstream server, which is asked unless it was asked
    /// before. Returns false if the client has repeated its query.
    fn wait(&mut self, now: Instant, waiting: WaitingClient) -> bool {
        let key = CacheKey::of(&waiting.query.question);
        self.pending.count(&waiting.client);
        if let Some(pending) = self.pending.of_key(&key) {
            self.counters.merged += 1;
            let is_same = |known: &WaitingClient| {
                known.client == waiting.client && known.query.id == waiting.query.id
            };
            let is_repeated = pending.waiting.iter().any(is_same);
            match is_repeated {
                true => self.pending.discount(&waiting.client),
                false => pending.waiting.push(waiting),
            }
            return !is_repeated;
        }
        self.ask_next(now, ForwardedQuery::new(key, waiting));
        true
    }

    /// Handles a message from the server of an exchange.
    pub fn on_answer(&mut self, now: Instant, exchange: DnsExchange, message: &[u8]) {
        let Some(PendingExchange { query, sent }) = self.pending.get_mut(exchange) else { return };
        let server = sent.server;
        match UpstreamAnswer::parse(message, sent.id, &query.question) {
            Err(AnswerFault::Mismatch) => {
                self.counters.mismatches += 1;
                sent.mismatches += 1;
                if sent.mismatches >= MISMATCHES_MAX && sent.protocol == Protocol::Udp {
                    self.repeat(now, exchange, Protocol::Tcp);
                }
            }
            Err(AnswerFault::Truncated) if sent.protocol == Protocol::Udp => {
                self.servers.on_answer(server);
                self.repeat(now, exchange, Protocol::Tcp);
            }
            Err(AnswerFault::Truncated | AnswerFault::Malformed) => {
                self.counters.malformed += 1;
                self.servers.on_answer(server);
                self.leave(now, exchange, Some(rcode::SERVER_FAILURE.into()));
            }
            Ok(answer) => {
                self.servers.on_answer(server);
                self.take(now, exchange, &answer);
            }
        }
    }

    /// Handles a valid answer.
    fn take(&mut self, now: Instant, exchange: DnsExchange, answer: &UpstreamAnswer) {
        let Some(PendingExchange { query, sent }) = self.pending.get_mut(exchange) else { return };
        let rejects_edns = [rcode::FORMAT_ERROR, NOT_IMPLEMENTED].map(u16::from);
        if answer.is_usable() {
            // Only an answer without EDNS(0) shows that the server rejects EDNS(0) rather than the
            // question: clients could otherwise disable EDNS(0) by unusual record types.
            if query.is_plain {
                self.servers.on_edns_rejected(now, sent.server);
            }
            let Some(mut query) = self.end_exchange(exchange) else { return };
            let is_first = self.config.dns64.is_some() && query.synthesis.is_none();
            if is_first
                && dns64::is_for(&query.question)
                && dns64::lacks_addresses(&query.question, answer)
            {
                query.ask_for_v4(Some(answer.clone()));
                return self.ask_next(now, query);
            }
            self.conclude(now, query, answer);
        } else if sent.with_edns && rejects_edns.contains(&answer.code) {
            let protocol = sent.protocol;
            query.is_plain = true;
            self.repeat(now, exchange, protocol);
        } else {
            self.counters.server_failures += 1;
            self.leave(now, exchange, Some(answer.code));
        }
    }

    /// Handles the last answer about a query. After a lookup of A records, clients get synthesized
    /// AAAA records, or the answer without any.
    fn conclude(&mut self, now: Instant, query: ForwardedQuery, answer: &UpstreamAnswer) {
        let Some((prefix, synthesis)) = self.config.dns64.zip(query.synthesis.as_deref()) else {
            return self.reply_to_all(now, query, answer);
        };
        let synthesized = dns64::synthesized(prefix, synthesis, answer);
        self.counters.synthesized += u64::from(synthesized.is_some());
        match synthesized.or_else(|| synthesis.answer.clone()) {
            Some(answer) => self.reply_to_all(now, query, &answer),
            None => {
                let code = rcode::SERVER_FAILURE.into();
                self.cache.insert_failure(now, &query.key, code, FAILURE_TTL_S);
                self.finish(query, AnswerParts { message: &[], code, age_s: 0 });
            }
        }
    }

    /// Caches an answer, and sends it to all clients that wait for it.
    fn reply_to_all(&mut self, now: Instant, query: ForwardedQuery, answer: &UpstreamAnswer) {
        self.cache.insert(now, &query.key, answer);
        let UpstreamAnswer { message, code, .. } = answer;
        self.finish(query, AnswerParts { message, code: *code, age_s: 0 });
    }

    /// Handles the failure of an exchange's socket: the server is unreachable, or has closed the
    /// connection.
    pub fn on_failure(&mut self, now: Instant, exchange: DnsExchange) {
        let Some(PendingExchange { sent, .. }) = self.pending.get_mut(exchange) else { return };
        self.counters.timeouts += 1;
        self.servers.on_failure(now, sent.server);
        self.leave(now, exchange, None);
    }

    /// Asks other servers the questions whose servers have not answered in time.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((_, exchange)) = self.pending.next_deadline().filter(|(at, _)| *at <= now) {
            self.on_failure(now, exchange);
        }
    }

    /// Forgets the queries of a TCP connection of a client, which was closed.
    pub fn on_stream_closed(&mut self, stream: u64) {
        for exchange in self.pending.remove_stream(stream) {
            self.end_exchange(exchange);
        }
    }

    /// Ends an exchange without a usable answer, and asks the next server. `failure` is the
    /// response code of a server that has answered.
    fn leave(&mut self, now: Instant, exchange: DnsExchange, failure: Option<u16>) {
        let Some(mut query) = self.end_exchange(exchange) else { return };
        query.failure = failure.or(query.failure);
        self.ask_next(now, query);
    }

    /// Sends the question of an exchange again to the same server.
    fn repeat(&mut self, now: Instant, exchange: DnsExchange, protocol: Protocol) {
        let Some(query) = self.end_exchange(exchange) else { return };
        self.send(now, query, protocol);
    }

    fn end_exchange(&mut self, exchange: DnsExchange) -> Option<ForwardedQuery> {
        let query = self.pending.remove(exchange)?;
        self.actions.push_back(DnsAction::Close { exchange });
        Some(query)
    }

    /// Asks the next server, or gives up if there is none.
    fn ask_next(&mut self, now: Instant, mut query: ForwardedQuery) {
        match self.choose(now, &mut query) {
            Some(server) => {
                query.attempts += 1;
                query.tried.push(server);
                query.is_plain = false;
                self.send(now, query, Protocol::Udp);
            }
            None => self.give_up(now, query),
        }
    }

    /// Returns the server to ask next. After all servers were asked, they are asked again, unless
    /// one has reported a failure, which it would report again.
    fn choose(&mut self, now: Instant, query: &mut ForwardedQuery) -> Option<SocketAddr> {
        if query.attempts >= ATTEMPTS_MAX {
            return None;
        }
        let next = self.servers.choose(now, &query.tried);
        if next.is_none() && query.failure.is_none() {
            query.tried.clear();
            return self.servers.choose(now, &[]);
        }
        next
    }

    /// Sends a question to the server that was tried last.
    fn send(&mut self, now: Instant, query: ForwardedQuery, protocol: Protocol) {
        let Some(server) = query.tried.last().copied() else { return };
        self.last_exchange += 1;
        let exchange = DnsExchange(self.last_exchange);
        let QuerySecret { id, port } = self.secrets.next_secret();
        let with_edns = !query.is_plain && self.servers.has_edns(now, server);
        let message = query.question.message(id, with_edns);
        self.actions.push_back(DnsAction::Send { exchange, server, protocol, port, message });
        self.counters.sent += 1;
        let deadline = match protocol {
            Protocol::Udp => now + UDP_TIMEOUT,
            Protocol::Tcp => {
                self.counters.sent_tcp += 1;
                now + TCP_TIMEOUT
            }
        };
        let sent = SentMessage { id, server, protocol, with_edns, deadline, mismatches: 0 };
        self.pending.insert(exchange, PendingExchange { query, sent });
    }

    /// Tells the waiting clients that there is no answer.
    fn give_up(&mut self, now: Instant, mut query: ForwardedQuery) {
        if let Some(synthesis) = query.synthesis.take()
            && let Some(UpstreamAnswer { message, code, .. }) = &synthesis.answer
        {
            // The lookup of A records has failed. There are no AAAA records, as servers have said.
            self.counters.failures += 1;
            return self.finish(query, AnswerParts { message, code: *code, age_s: 0 });
        }
        // Servers that fail for AAAA records may know A records (RFC 6147 section 5.1.3).
        let is_first = self.config.dns64.is_some() && query.question.kind() == kind::AAAA;
        if is_first && query.failure.is_some() && dns64::is_for(&query.question) {
            query.ask_for_v4(None);
            return self.ask_next(now, query);
        }
        self.counters.failures += 1;
        let code = query.failure.unwrap_or(rcode::SERVER_FAILURE.into());
        // Without servers, do not remember the failure: a lease may bring servers at any time.
        if query.attempts > 0 {
            self.cache.insert_failure(now, &query.key, code, FAILURE_TTL_S);
        }
        self.finish(query, AnswerParts { message: &[], code, age_s: 0 });
    }

    /// Replies to all clients that wait for an answer.
    fn finish(&mut self, query: ForwardedQuery, answer: AnswerParts<'_>) {
        for WaitingClient { client, query } in query.waiting {
            self.pending.discount(&client);
            let is_stream = matches!(client.path, ReplyPath::Stream(_));
            let message = reply(&query, answer, is_stream);
            self.actions.push_back(DnsAction::Reply { client, message });
        }
    }
}
