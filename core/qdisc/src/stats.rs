//! Counters of a queueing discipline.

use crate::Queueable;

/// An item that a queueing discipline or a link dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The dropped item, so that its memory can be reused.
    pub item: T,
    /// Reason of the drop.
    pub cause: DropCause,
}

/// Reason why an item was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropCause {
    /// The queue or link had reached its limit.
    Overlimit,
    /// Active queue management, such as CoDel, dropped the item to signal congestion.
    Early,
    /// A lossy link dropped the item at random.
    Lost,
    /// The item is longer than the MTU of the link, or than the size of a token bucket.
    TooLong,
}

impl DropCause {
    /// Returns the name of the reason, for tables and captures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlimit => "overlimit",
            Self::Early => "early",
            Self::Lost => "lost",
            Self::TooLong => "too-long",
        }
    }
}

/// A counter or state value with its name.
pub type Counter = (&'static str, u64);

/// Counters that every queueing discipline has (Linux's gnet_stats_basic and gnet_stats_queue).
///
/// Each enqueued item was sent, was dropped, or still waits: `enqueued_packets == sent_packets +
/// dropped + backlog_packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Number of items enqueued, including items that were dropped.
    pub enqueued_packets: u64,
    /// Number of bytes enqueued, including those of dropped items.
    pub enqueued_bytes: u64,
    /// Items sent.
    pub sent_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Number of items dropped for any reason.
    pub dropped: u64,
    /// Number of bytes of the dropped items.
    pub dropped_bytes: u64,
    /// Number of times that an item was dropped or delayed because of a limit: of the queue, of
    /// tokens, or of an average.
    pub overlimits: u64,
    /// Items marked with CE instead of being dropped.
    pub ecn_mark: u64,
    /// Number of items in the queue.
    pub backlog_packets: u64,
    /// Number of bytes in the queue.
    pub backlog_bytes: u64,
}

impl Stats {
    /// Counts an item that was enqueued. The item must be counted as sent or dropped later.
    pub(crate) fn offer(&mut self, bytes: usize) {
        self.enqueued_packets += 1;
        self.enqueued_bytes += bytes as u64;
        self.backlog_packets += 1;
        self.backlog_bytes += bytes as u64;
    }

    /// Counts an item that was sent.
    pub(crate) fn send(&mut self, bytes: usize) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts a dropped item that [`Stats::offer`] has counted before.
    pub(crate) fn drop(&mut self, bytes: usize) {
        self.dropped += 1;
        self.dropped_bytes += bytes as u64;
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes as u64;
    }

    /// Counts items that an inner queueing discipline has dropped.
    pub(crate) fn drop_all<T: Queueable>(&mut self, drops: &[Dropped<T>]) {
        drops.iter().for_each(|drop| self.drop(drop.item.bytes()));
    }

    /// Returns the sums of two sets of counters, for example of two bands.
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
