//! Counters of a discipline.

use crate::Queueable;

/// An item that a discipline or a link dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The item, whose memory can be used again.
    pub item: T,
    /// Reason of the drop.
    pub cause: DropCause,
}

/// Reason of a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropCause {
    /// The queue had reached its limit.
    Overlimit,
    /// Active queue management dropped the item to signal congestion.
    Early,
    /// The dice of a lossy link fell so.
    Lost,
    /// The item is longer than the link's MTU, or than a bucket of tokens.
    TooLong,
}

impl DropCause {
    /// Name in tables and captures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlimit => "overlimit",
            Self::Early => "early",
            Self::Lost => "lost",
            Self::TooLong => "too-long",
        }
    }
}

/// A counter or a state by its name.
pub type Counter = (&'static str, u64);

/// Counters that every discipline has (gnet_stats_basic and gnet_stats_queue of Linux).
///
/// Each item that went in has left, was dropped or waits:
/// `enqueued_packets == sent_packets + dropped + backlog_packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Items that were offered.
    pub enqueued_packets: u64,
    /// Bytes of the items that were offered.
    pub enqueued_bytes: u64,
    /// Items that left.
    pub sent_packets: u64,
    /// Bytes of the items that left.
    pub sent_bytes: u64,
    /// Items that were dropped, for any reason.
    pub dropped: u64,
    /// Bytes of the items that were dropped.
    pub dropped_bytes: u64,
    /// Calls that met a limit: of the queue, of tokens, or of an average.
    pub overlimits: u64,
    /// Items that got CE instead of being dropped.
    pub ecn_mark: u64,
    /// Items that wait.
    pub backlog_packets: u64,
    /// Bytes of the items that wait.
    pub backlog_bytes: u64,
}

impl Stats {
    /// Counts an item that is offered; a drop or a departure follows.
    pub(crate) fn offer(&mut self, bytes: usize) {
        self.enqueued_packets += 1;
        self.enqueued_bytes += bytes as u64;
        self.backlog_packets += 1;
        self.backlog_bytes += bytes as u64;
    }

    /// Counts an item that leaves.
    pub(crate) fn send(&mut self, bytes: usize) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts an item that is dropped after [`Stats::offer`].
    pub(crate) fn drop(&mut self, bytes: usize) {
        self.dropped += 1;
        self.dropped_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts items that a discipline inside of this one has dropped.
    pub(crate) fn drop_all<T: Queueable>(&mut self, drops: &[Dropped<T>]) {
        drops.iter().for_each(|drop| self.drop(drop.item.bytes()));
    }

    /// The sum of two, as for the bands of a discipline.
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
