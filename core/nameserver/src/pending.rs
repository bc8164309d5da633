//! Queries that wait for the answer of an upstream server, with the clients that wait for them.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use towpath_dns::Protocol;
use towpath_tcp::Instant;

use crate::answer::UpstreamAnswer;
use crate::cache::CacheKey;
use crate::config::{DnsClient, DnsExchange, ReplyPath};
use crate::dns64::{Synthesis, question_of_v4};
use crate::query::{AskedQuestion, ClientQuery};

/// A client that waits for an answer, with its query.
#[derive(Debug)]
pub struct WaitingClient {
    /// The client.
    pub client: DnsClient,
    /// Its query.
    pub query: ClientQuery,
}

/// A message to an upstream server.
#[derive(Debug, Clone, Copy)]
pub struct SentMessage {
    /// Identifier of the message.
    pub id: u16,
    /// Address of the server.
    pub server: SocketAddr,
    /// Transport protocol of the message.
    pub protocol: Protocol,
    /// Whether the message has an OPT record.
    pub with_edns: bool,
    /// Time at which the server has failed to answer.
    pub deadline: Instant,
    /// Number of received messages with a wrong identifier or question.
    pub mismatches: u32,
}

/// A question to upstream servers, with the clients that wait for the answer.
#[derive(Debug)]
pub struct ForwardedQuery {
    /// Key of the question in the cache.
    pub key: CacheKey,
    /// The question as the first client has spelled it.
    pub question: AskedQuestion,
    /// Clients that wait for the answer.
    pub waiting: Vec<WaitingClient>,
    /// Servers that were asked in this round.
    pub tried: Vec<SocketAddr>,
    /// Number of servers asked so far, counting a server again for each time.
    pub attempts: u32,
    /// Response code of a server that has reported a failure.
    pub failure: Option<u16>,
    /// Whether the server that was tried last has rejected the question with an OPT record.
    pub is_plain: bool,
    /// Lookup of A records in place of the AAAA records that clients have asked for; `question`
    /// then asks for A records.
    pub synthesis: Option<Box<Synthesis>>,
}

impl ForwardedQuery {
    /// Creates the query of the first client that asks a question.
    pub fn new(key: CacheKey, first: WaitingClient) -> Self {
        let question = first.query.question.clone();
        let (waiting, tried) = (vec![first], Vec::new());
        let (attempts, failure, is_plain, synthesis) = (0, None, false, None);
        Self { key, question, waiting, tried, attempts, failure, is_plain, synthesis }
    }

    /// Asks for A records instead of AAAA records, for which servers have given `answer`.
    pub fn ask_for_v4(&mut self, answer: Option<UpstreamAnswer>) {
        let of_v4 = question_of_v4(&self.question);
        let question = core::mem::replace(&mut self.question, of_v4);
        self.synthesis = Some(Box::new(Synthesis { question, answer }));
        (self.attempts, self.failure, self.is_plain) = (0, None, false);
        self.tried.clear();
    }
}

/// A query with the message to the server that is being asked.
#[derive(Debug)]
pub struct PendingExchange {
    /// The query.
    pub query: ForwardedQuery,
    /// The message.
    pub sent: SentMessage,
}

/// Pending queries, with limits on their number in total and for each client.
#[derive(Debug, Default)]
pub struct PendingQueries {
    exchanges: BTreeMap<DnsExchange, PendingExchange>,
    by_key: BTreeMap<CacheKey, DnsExchange>,
    deadlines: BTreeSet<(Instant, DnsExchange)>,
    /// Number of waiting clients in total, by address, and by [`client_group`].
    waiting: usize,
    by_address: BTreeMap<IpAddr, usize>,
    by_group: BTreeMap<IpAddr, usize>,
}

impl PendingQueries {
    /// Returns whether a client may wait for an answer, by the limits on waiting clients. All IPv6
    /// addresses with the same first 64 bits have half of the places. The hosts of a link share
    /// these bits, and one host can use all such addresses.
    pub fn has_room(&self, client: &DnsClient, max: usize, max_per_client: usize) -> bool {
        let ip = client.remote.ip();
        let own = self.by_address.get(&ip).copied().unwrap_or(0);
        let group = self.by_group.get(&client_group(ip)).copied().unwrap_or(0);
        let max_of_group = if ip.is_ipv6() { max / 2 } else { max };
        self.waiting < max && own < max_per_client && group < max_of_group
    }

    /// Counts a client that begins to wait.
    pub fn count(&mut self, client: &DnsClient) {
        let ip = client.remote.ip();
        self.waiting += 1;
        *self.by_address.entry(ip).or_default() += 1;
        *self.by_group.entry(client_group(ip)).or_default() += 1;
    }

    /// Counts a client that no longer waits.
    pub fn discount(&mut self, client: &DnsClient) {
        let ip = client.remote.ip();
        self.waiting -= 1;
        decrement(&mut self.by_address, ip);
        decrement(&mut self.by_group, client_group(ip));
    }

    /// Returns the pending query with this question.
    pub fn of_key(&mut self, key: &CacheKey) -> Option<&mut ForwardedQuery> {
        let pending = self.exchanges.get_mut(self.by_key.get(key)?)?;
        Some(&mut pending.query)
    }

    /// Returns a pending exchange.
    pub fn get_mut(&mut self, exchange: DnsExchange) -> Option<&mut PendingExchange> {
        self.exchanges.get_mut(&exchange)
    }

    /// Adds an exchange.
    pub fn insert(&mut self, exchange: DnsExchange, pending: PendingExchange) {
        self.by_key.insert(pending.query.key.clone(), exchange);
        self.deadlines.insert((pending.sent.deadline, exchange));
        self.exchanges.insert(exchange, pending);
    }

    /// Removes and returns the query of an exchange.
    pub fn remove(&mut self, exchange: DnsExchange) -> Option<ForwardedQuery> {
        let PendingExchange { query, sent } = self.exchanges.remove(&exchange)?;
        self.by_key.remove(&query.key);
        self.deadlines.remove(&(sent.deadline, exchange));
        Some(query)
    }

    /// Returns the earliest deadline, with its exchange.
    pub fn next_deadline(&self) -> Option<(Instant, DnsExchange)> {
        self.deadlines.first().copied()
    }

    /// Removes the clients that wait on a TCP connection. Returns the exchanges for which no client
    /// waits. The caller must end them, because the limits count only waiting clients.
    pub fn remove_stream(&mut self, stream: u64) -> Vec<DnsExchange> {
        let is_its = |waiting: &WaitingClient| waiting.client.path == ReplyPath::Stream(stream);
        let (mut removed, mut abandoned) = (Vec::new(), Vec::new());
        for (exchange, pending) in &mut self.exchanges {
            removed.extend(pending.query.waiting.extract_if(.., |it| is_its(it)));
            abandoned.extend(pending.query.waiting.is_empty().then_some(*exchange));
        }
        removed.iter().for_each(|waiting| self.discount(&waiting.client));
        abandoned
    }

    /// Returns the number of waiting clients.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

/// Decrements the count of an address, and removes it if it becomes 0.
fn decrement(counts: &mut BTreeMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

/// Returns the address that stands for all addresses that one client may use: an IPv4 address, or
/// the first 64 bits of an IPv6 address.
pub fn client_group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}
