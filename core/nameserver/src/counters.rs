//! Counters of a forwarder.

/// Counters of a DNS forwarder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwarderCounters {
    /// Valid queries of clients.
    pub queries: u64,
    /// Messages of clients that are not valid queries.
    pub rejected: u64,
    /// Queries answered from local names or special-use names.
    pub local: u64,
    /// Queries answered from the cache.
    pub hits: u64,
    /// Queries that are not in the cache.
    pub misses: u64,
    /// Misses that joined a pending query with the same question.
    pub merged: u64,
    /// Queries refused because the client or all clients together have too many pending queries.
    pub refused: u64,
    /// Messages sent to upstream servers.
    pub sent: u64,
    /// Messages sent to upstream servers over TCP.
    pub sent_tcp: u64,
    /// Messages to upstream servers that were not answered in time, or that could not be sent.
    pub timeouts: u64,
    /// Received messages with a wrong identifier or question, which may be forged.
    pub mismatches: u64,
    /// Answers that cannot be parsed.
    pub malformed: u64,
    /// Answers by which an upstream server reports a failure.
    pub server_failures: u64,
    /// Queries for which no upstream server had an answer.
    pub failures: u64,
    /// Answers with IPv6 addresses that were synthesized from IPv4 addresses.
    pub synthesized: u64,
}

impl ForwarderCounters {
    /// Returns all counters with their names.
    pub fn list(&self) -> [(&'static str, u64); 15] {
        let Self { queries, rejected, local, hits, misses, merged, refused, .. } = *self;
        let Self { sent, sent_tcp, timeouts, mismatches, malformed, .. } = *self;
        [
            ("queries", queries),
            ("rejected", rejected),
            ("local", local),
            ("hits", hits),
            ("misses", misses),
            ("merged", merged),
            ("refused", refused),
            ("sent", sent),
            ("sent_tcp", sent_tcp),
            ("timeouts", timeouts),
            ("mismatches", mismatches),
            ("malformed", malformed),
            ("server_failures", self.server_failures),
            ("failures", self.failures),
            ("synthesized", self.synthesized),
        ]
    }
}
