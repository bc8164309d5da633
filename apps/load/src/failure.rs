//! Failures of connections and requests, counted by their kind.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kind of the failure of a connection or a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// No program listens at the address: RST (TCP) or ICMP port unreachable (UDP).
    Refused,
    /// The host or its network is unreachable.
    Unreachable,
    /// The SYN was not answered within [`Plan::connect_timeout`](crate::Plan::connect_timeout).
    ConnectTimeout,
    /// The ephemeral ports of the local addresses are exhausted (EADDRNOTAVAIL).
    NoLocalPorts,
    /// The file descriptors of the process or the machine are exhausted (EMFILE, ENFILE).
    NoDescriptors,
    /// The server reset an established connection.
    Reset,
    /// The server closed the connection before an answer was complete.
    Closed,
    /// No byte of the answer arrived within [`Plan::timeout`](crate::Plan::timeout), or the
    /// datagram was lost.
    NoAnswer,
    /// Only a part of the answer arrived within [`Plan::timeout`](crate::Plan::timeout).
    ShortAnswer,
    /// The server sent more bytes than expected.
    LongAnswer,
    /// The bytes of the answer differ from the expected ones.
    WrongAnswer,
    /// The answer reports a failure: an HTTP status of 400 or more, or a redis error.
    Status,
    /// The run ended before the answer arrived.
    Unanswered,
    /// The kernel returned another error, which the example contains.
    Other,
}

impl Failure {
    /// All kinds of failures, in the order in which reports contain them.
    pub const ALL: [Self; 14] = [
        Self::Refused,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::NoLocalPorts,
        Self::NoDescriptors,
        Self::Reset,
        Self::Closed,
        Self::NoAnswer,
        Self::ShortAnswer,
        Self::LongAnswer,
        Self::WrongAnswer,
        Self::Status,
        Self::Unanswered,
        Self::Other,
    ];

    /// Returns a short description for a table, for example "connection refused".
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Refused => "connection refused",
            Self::Unreachable => "host unreachable",
            Self::ConnectTimeout => "connect timed out",
            Self::NoLocalPorts => "no local port left",
            Self::NoDescriptors => "no file descriptor left",
            Self::Reset => "connection reset",
            Self::Closed => "closed by the server",
            Self::NoAnswer => "no answer in time",
            Self::ShortAnswer => "answer too short",
            Self::LongAnswer => "answer too long",
            Self::WrongAnswer => "answer with other bytes",
            Self::Status => "answer is an error",
            Self::Unanswered => "unanswered at the end",
            Self::Other => "other error",
        }
    }

    /// Returns advice if the failure means that a resource of the tester's own machine is
    /// exhausted. `None` for other failures.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::NoLocalPorts => Some("give more local addresses, or keep connections open"),
            Self::NoDescriptors => Some("raise the limit on descriptors: ulimit -n"),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phrase())
    }
}

/// Number of failures of one kind, with an example of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureCount {
    /// Kind of the counted failures.
    pub kind: Failure,
    /// Number of requests lost by these failures, plus the number of connections lost without a
    /// request in flight.
    pub count: u64,
    /// Error message of the first failure, with its address and value.
    pub example: String,
}

/// Numbers of failures in a run by their kind, in the order of [`Failure::ALL`]. Kinds without
/// failures are omitted.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failures(Vec<FailureCount>);

impl Failures {
    /// Returns the total number of failures of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|it| it.count).sum()
    }

    /// Returns the number of failures of one kind.
    pub fn count(&self, kind: Failure) -> u64 {
        self.0.iter().find(|it| it.kind == kind).map_or(0, |it| it.count)
    }

    /// Returns whether there were no failures.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the kinds of failures that occurred.
    pub fn iter(&self) -> impl Iterator<Item = &FailureCount> {
        self.0.iter()
    }

    /// Adds `count` failures of one kind. Calls `example` only for the first failure of the kind.
    pub fn add(&mut self, kind: Failure, count: u64, example: impl FnOnce() -> String) {
        match self.0.binary_search_by_key(&kind, |it| it.kind) {
            Ok(at) => self.0[at].count += count,
            Err(at) => self.0.insert(at, FailureCount { kind, count, example: example() }),
        }
    }

    /// Adds the failures of another run or thread. Keeps the existing examples.
    pub fn merge(&mut self, other: &Self) {
        for it in &other.0 {
            self.add(it.kind, it.count, || it.example.clone());
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_stand_in_the_order_of_kinds_and_keep_their_first_example() {
        let mut failures = Failures::default();
        failures.add(Failure::Reset, 2, || "first".into());
        failures.add(Failure::Refused, 1, || "refused".into());
        failures.add(Failure::Reset, 3, || panic!("an example is made once"));
        let kinds: Vec<_> = failures.iter().map(|it| (it.kind, it.count)).collect();
        assert_eq!(kinds, [(Failure::Refused, 1), (Failure::Reset, 5)]);
        assert_eq!((failures.total(), failures.count(Failure::Closed)), (6, 0));
        let mut other = Failures::default();
        other.add(Failure::Closed, 4, || "closed".into());
        other.add(Failure::Reset, 1, || "second".into());
        failures.merge(&other);
        let examples: Vec<_> = failures.iter().map(|it| it.example.as_str()).collect();
        assert_eq!(examples, ["refused", "first", "closed"]);
        assert_eq!(failures.total(), 11);
    }

    #[test]
    fn all_kinds_are_listed_once_and_in_order() {
        assert!(Failure::ALL.is_sorted_by(|a, b| a < b));
        let phrases: std::collections::BTreeSet<_> = Failure::ALL.map(Failure::phrase).into();
        assert_eq!(phrases.len(), Failure::ALL.len());
    }
}
