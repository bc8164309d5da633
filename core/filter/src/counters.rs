//! Packet and byte counters of filter rules. Each shard (thread of the router) has its own
//! [`Counters`], and readers add them up.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

use crate::fields::Hook;
use crate::rule::{RateLimit, RuleList};
use crate::rules::{Judgement, Rules};

/// Number of packets and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Total length in bytes of the counted packets.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Cell {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// Counters of one shard (thread of the router) for compiled [`Rules`]: one per rule, and one per
/// hook for packets that match no rule.
///
/// # Threads
/// Only the shard's thread may call [`on_judged`](Self::on_judged),
/// [`is_log_due`](Self::is_log_due) and [`take_token`](Self::take_token). A counter is updated by a
/// load and a store without a lock, so a second writer would lose counts. Any thread may read.
#[derive(Debug)]
pub struct Counters {
    rules: Box<[Cell]>,
    defaults: [Cell; Hook::ALL.len()],
    /// Earliest time at which each rule may log again, in nanoseconds of the caller's clock.
    next_log_ns: Box<[AtomicU64]>,
    /// Time at which the token bucket of each rule will be full, in nanoseconds of the caller's
    /// clock. Empty if no rule has a rate.
    full_ns: Box<[AtomicU64]>,
}

impl Counters {
    /// Creates counters for `rules`, all of them 0.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        let buckets = if rules.has_rates() { rules.len() } else { 0 };
        Self {
            full_ns: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            rules: (0..rules.len()).map(|_| Cell::default()).collect(),
            defaults: Default::default(),
            next_log_ns: (0..rules.len()).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a packet of `bytes` bytes under the rule, or the hook's default, that `judgement`
    /// names.
    #[inline]
    pub fn on_judged(&self, hook: Hook, judgement: &Judgement, bytes: usize) {
        let cell = match judgement.rule {
            Some(index) => self.rules.get(index as usize),
            None => Some(&self.defaults[hook as usize]),
        };
        // Ignore the judgement if its rule index is out of bounds, because it was made with another
        // list of rules.
        let Some(cell) = cell else { return };
        cell.add(Count { packets: 1, bytes: bytes as u64 });
    }

    /// Adds the count of a rule from a previous list to the rule at `index`. Use this only while no
    /// shard (thread) is updating the counters.
    pub fn add_to_rule(&self, index: u32, count: Count) {
        if let Some(cell) = self.rules.get(index as usize) {
            cell.add(count);
        }
    }

    /// Adds a count of packets at `hook` that matched no rule of a previous list.
    pub fn add_to_default(&self, hook: Hook, count: Count) {
        self.defaults[hook as usize].add(count);
    }

    /// Returns whether the rule's maximum rate of log entries allows one now. If so, counts the
    /// entry.
    pub fn is_log_due(&self, rules: &Rules, judgement: &Judgement, now_ns: u64) -> bool {
        let Some(index) = judgement.rule else { return false };
        let Some(log) = rules.rule(index).and_then(|rule| rule.log) else { return false };
        let Some(rate) = log.rate else { return true };
        let Some(next) = self.next_log_ns.get(index as usize) else { return false };
        let is_due = now_ns >= next.load(Ordering::Relaxed);
        if is_due {
            let pause_ns = 1_000_000_000 / u64::from(rate.max(1));
            next.store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        }
        is_due
    }

    /// Takes a token from the bucket of the rule at `index`. Returns false if the bucket is empty.
    ///
    /// The bucket is stored as the time at which it will be full. A token moves this time by the
    /// interval between tokens. The bucket is empty if the time is too far ahead.
    pub fn take_token(&self, index: u32, rate: RateLimit, now_ns: u64) -> bool {
        let Some(full) = self.full_ns.get(index as usize) else { return false };
        let interval_ns = rate.interval_ns();
        let full_ns = full.load(Ordering::Relaxed).max(now_ns);
        let missing_ns = full_ns - now_ns;
        let is_there = missing_ns <= interval_ns.saturating_mul(u64::from(rate.burst.max(1) - 1));
        if is_there {
            full.store(full_ns.saturating_add(interval_ns), Ordering::Relaxed);
        }
        is_there
    }

    /// Copies the tokens of the rule at `place` in `before`, the counters of an earlier list, to
    /// the bucket of the rule at `index`.
    pub fn copy_bucket(&self, index: u32, before: &Self, place: u32) {
        let buckets = self.full_ns.get(index as usize).zip(before.full_ns.get(place as usize));
        if let Some((bucket, known)) = buckets {
            bucket.store(known.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the number of packets and bytes that matched the rule at `index`.
    #[must_use]
    pub fn of_rule(&self, index: u32) -> Count {
        self.rules.get(index as usize).map(Cell::read).unwrap_or_default()
    }

    /// Returns the number of packets and bytes at `hook` that matched no rule.
    #[must_use]
    pub fn of_default(&self, hook: Hook) -> Count {
        self.defaults[hook as usize].read()
    }
}

/// Packet and byte counts by rule number, added up over all shards and over replaced lists of
/// rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    rules: BTreeMap<u32, Count>,
    defaults: [Count; Hook::ALL.len()],
}

impl Totals {
    /// Adds a shard's counters for the compiled list `rules`.
    pub fn add(&mut self, rules: &Rules, counters: &Counters) {
        for (index, rule) in (0..).zip(rules.iter()) {
            self.rules.entry(rule.id).or_default().add(counters.of_rule(index));
        }
        for hook in Hook::ALL {
            self.defaults[hook as usize].add(counters.of_default(hook));
        }
    }

    /// Removes the counts of rules that `list` does not contain. Otherwise a new rule with the
    /// number of a removed rule would start with its counts.
    pub fn retain(&mut self, list: &RuleList) {
        self.rules.retain(|id, _| list.rule(*id).is_some());
    }

    /// Returns the number of packets and bytes that matched rule number `id`.
    #[must_use]
    pub fn of_rule(&self, id: u32) -> Count {
        self.rules.get(&id).copied().unwrap_or_default()
    }

    /// Returns the number of packets and bytes at `hook` that matched no rule.
    #[must_use]
    pub const fn of_default(&self, hook: Hook) -> Count {
        self.defaults[hook as usize]
    }
}

impl Count {
    const fn add(&mut self, more: Self) {
        self.packets = self.packets.wrapping_add(more.packets);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }
}

impl Cell {
    #[inline]
    fn add(&self, more: Count) {
        add(&self.packets, more.packets);
        add(&self.bytes, more.bytes);
    }

    fn read(&self) -> Count {
        Count {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[inline]
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
