//! Counters of a discipline.

use crate::Queueable;

/// An item dropped by a discipline or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The item, so that its memory can be reused.
    pub item: T,
    /// Reason of the drop.
    pub cause: DropCause,
}

/// Reason of a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropCause {
    /// The queue was at its limit.
    Overlimit,
    /// Active queue management dropped the item to signal congestion.
    Early,
    /// A lossy link lost the item at random.
    Lost,
    /// The item exceeds the link's MTU, or the size of a token bucket.
    TooLong,
}

impl DropCause {
    /// Returns the name used in tables and captures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlimit => "overlimit",
            Self::Early => "early",
            Self::Lost => "lost",
            Self::TooLong => "too-long",
        }
    }
}

/// A named counter or state.
pub type Counter = (&'static str, u64);

/// Counters of every discipline (Linux's gnet_stats_basic and gnet_stats_queue).
///
/// Each enqueued item was sent, was dropped, or waits: `enqueued_packets == sent_packets + dropped
/// + backlog_packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Items enqueued, including dropped ones.
    pub enqueued_packets: u64,
    /// Bytes enqueued, including dropped ones.
    pub enqueued_bytes: u64,
    /// Items sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Items dropped, for any reason.
    pub dropped: u64,
    /// Bytes dropped.
    pub dropped_bytes: u64,
    /// Number of calls that reached a limit: of the queue, of tokens, or of an average.
    pub overlimits: u64,
    /// Items marked with CE instead of being dropped.
    pub ecn_mark: u64,
    /// Items waiting.
    pub backlog_packets: u64,
    /// Bytes waiting.
    pub backlog_bytes: u64,
}

impl Stats {
    /// Counts an enqueued item, which will be sent or dropped later.
    pub(crate) fn offer(&mut self, bytes: usize) {
        self.enqueued_packets += 1;
        self.enqueued_bytes += bytes as u64;
        self.backlog_packets += 1;
        self.backlog_bytes += bytes as u64;
    }

    /// Counts a sent item.
    pub(crate) fn send(&mut self, bytes: usize) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts a dropped item after [`Stats::offer`].
    pub(crate) fn drop(&mut self, bytes: usize) {
        self.dropped += 1;
        self.dropped_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts items that an inner discipline has dropped.
    pub(crate) fn drop_all<T: Queueable>(&mut self, drops: &[Dropped<T>]) {
        drops.iter().for_each(|drop| self.drop(drop.item.bytes()));
    }

    /// Returns the sum of two counters, for example of the bands of a discipline.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            enqueued_packets: self.enqueued_packets + other.enqueued_packets,
            enqueued_bytes: self.enqueued_bytes + other.enqueued_bytes,
            sent_packets: self.sent_packets + other.sent_packets,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            dropped: self.dropped + other.dropped,
            dropped_bytes: self.dropped_bytes + other.dropped_bytes,
            overlimits: self.overlimits + other.overlimits,
            ecn_mark: self.ecn_mark + other.ecn_mark,
            backlog_packets: self.backlog_packets + other.backlog_packets,
            backlog_bytes: self.backlog_bytes + other.backlog_bytes,
        }
    }
}
