//! RED: drops or marks arriving packets at random, with a probability that grows with the average
//! queue length.
//!
//! - S. Floyd and V. Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993.
//! - S. Floyd, "Recommendation on using the gentle variant of RED", 2000.
//! - S. Floyd, R. Gummadi and S. Shenker, "Adaptive RED", 2001.

use std::collections::VecDeque;

use crate::{Counter, Dice, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of RED, named as in tc-red(8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RedParams {
    /// Maximum number of bytes in the queue.
    pub limit: u64,
    /// Average queue length in bytes below which no packet is dropped.
    pub min: u64,
    /// Average queue length in bytes at which the drop probability is `probability`.
    pub max: u64,
    /// Average packet length in bytes.
    pub avpkt: u64,
    /// Length in packets of a burst that passes without drops. The length determines the weight of
    /// a new sample in the average.
    pub burst: u32,
    /// Rate of the link in bits per second. The rate determines how fast the average decreases
    /// while the queue is empty.
    pub bandwidth: u64,
    /// Drop probability at an average queue length of `max`.
    pub probability: f64,
    /// Whether to mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
    /// Whether to drop even ECN-capable packets while the average queue length exceeds `max`.
    pub harddrop: bool,
    /// Whether to adapt the drop probability so that the average queue length stays midway between
    /// `min` and `max`.
    pub adaptive: bool,
    /// Whether the drop probability rises gradually from `probability` at `max` to 1 at twice
    /// `max`. Otherwise it becomes 1 at `max`.
    pub gentle: bool,
}

/// A FIFO queue controlled by RED.
#[derive(Debug)]
pub struct Red<T> {
    params: RedParams,
    queue: VecDeque<T>,
    dice: Dice,
    /// Weight of the newest sample in the average queue length.
    weight: f64,
    /// Average queue length in bytes.
    average: f64,
    /// Number of packets since the last drop or mark; `None` if the average queue length is below
    /// `min`.
    count: Option<u32>,
    /// Time in nanoseconds at which the queue became empty; `None` if it is not empty.
    idle_since_ns: Option<u64>,
    probability: f64,
    adapt_ns: u64,
    early: u64,
    forced: u64,
    overlimit: u64,
    stats: Stats,
}

/// Decision about an arriving packet: enqueue, drop or mark it.
enum Verdict {
    Pass,
    /// Drop or mark the packet, because a random draw selected it.
    Early,
    /// Drop or mark the packet, because the average queue length is above the thresholds.
    Forced,
}

/// Time between two adaptations of the drop probability in nanoseconds, and its bounds (Adaptive
/// RED, section 4.2).
const ADAPT_INTERVAL_NS: u64 = 500_000_000;
const PROBABILITY_MIN: f64 = 0.01;
const PROBABILITY_MAX: f64 = 0.5;
/// Maximum number of adaptations that are made up after an idle period. After so many, the drop
/// probability is at a bound.
const ADAPTATIONS_MAX: u64 = 100;

impl<T: Queueable> Red<T> {
    /// Creates an empty queue.
    pub fn new(params: RedParams, dice: Dice) -> Self {
        Self {
            params,
            queue: VecDeque::new(),
            dice,
            weight: params.weight(),
            average: 0.,
            count: None,
            idle_since_ns: Some(0),
            probability: params.probability,
            adapt_ns: 0,
            early: 0,
            forced: 0,
            overlimit: 0,
            stats: Stats::default(),
        }
    }

    /// Updates the average with the queue length at the arrival of a packet.
    fn measure(&mut self, now_ns: u64) {
        let Some(since_ns) = self.idle_since_ns else {
            self.average += self.weight * (self.stats.backlog_bytes as f64 - self.average);
            return;
        };
        // Compute the number of average packets that could have been sent while the queue was
        // empty. The average decreases as if each of them had arrived at the empty queue.
        let bits = self.params.avpkt.max(1) as f64 * 8.;
        let packets =
            now_ns.saturating_sub(since_ns) as f64 * self.params.bandwidth as f64 / 1e9 / bits;
        self.average *= (1. - self.weight).powf(packets);
    }

    /// Adapts the drop probability so that the average queue length stays midway between the
    /// thresholds.
    fn adapt(&mut self, now_ns: u64) {
        let due = now_ns.saturating_sub(self.adapt_ns) / ADAPT_INTERVAL_NS;
        if !self.params.adaptive || due == 0 {
            return;
        }
        self.adapt_ns += due * ADAPT_INTERVAL_NS;
        let (min, max) = (self.params.min as f64, self.params.max as f64);
        let target = min + 0.4 * (max - min)..=min + 0.6 * (max - min);
        for _ in 0..due.min(ADAPTATIONS_MAX) {
            if self.average > *target.end() && self.probability <= PROBABILITY_MAX {
                self.probability += f64::min(0.01, self.probability / 4.);
            } else if self.average < *target.start() && self.probability >= PROBABILITY_MIN {
                self.probability *= 0.9;
            }
        }
    }

    fn judge(&mut self) -> Verdict {
        let (min, max) = (self.params.min as f64, self.params.max as f64);
        let above = self.average - max;
        if self.average < min {
            self.count = None;
            return Verdict::Pass;
        }
        let chance = if above < 0. {
            self.probability * (self.average - min) / (max - min)
        } else if self.params.gentle && above < max {
            self.probability + (1. - self.probability) * above / max
        } else {
            self.count = Some(0);
            return Verdict::Forced;
        };
        let count = self.count.map_or(0, |count| count.saturating_add(1));
        self.count = Some(count);
        // Increase the probability with each packet since the last drop. The distances between
        // drops are then distributed uniformly, not geometrically.
        let rest = 1. - f64::from(count) * chance;
        if rest > 0. && !self.dice.falls(chance / rest) {
            return Verdict::Pass;
        }
        self.count = Some(0);
        Verdict::Early
    }

    fn drop_item(&mut self, item: T, cause: DropCause, drops: &mut Vec<Dropped<T>>) {
        self.stats.drop(item.bytes());
        drops.push(Dropped { item, cause });
    }
}

impl RedParams {
    /// Returns the weight of a new sample in the average for which a burst passes, as in tc's
    /// `tc_red_eval_ewma`.
    ///
    /// The weight is the largest power of 2 for which an average that starts at 0 stays below `min`
    /// during the burst (equation 3).
    fn weight(&self) -> f64 {
        let burst = f64::from(self.burst);
        let room = burst + 1. - self.min as f64 / self.avpkt.max(1) as f64;
        let mut weights = (1..32).map(|log| 0.5f64.powi(log));
        let fits = |weight: &f64| room <= (1. - (1. - weight).powf(burst)) / weight;
        weights.clone().find(fits).or(weights.next_back()).unwrap_or(0.002)
    }
}

impl<T: Queueable> Qdisc<T> for Red<T> {
    fn enqueue(&mut self, now_ns: u64, mut item: T, drops: &mut Vec<Dropped<T>>) {
        let bytes = item.bytes();
        self.measure(now_ns);
        self.adapt(now_ns);
        self.idle_since_ns = self.idle_since_ns.map(|_| now_ns);
        self.stats.offer(bytes);
        let may_mark = match self.judge() {
            Verdict::Pass => None,
            Verdict::Early => Some((self.params.ecn, &mut self.early)),
            Verdict::Forced => Some((self.params.ecn && !self.params.harddrop, &mut self.forced)),
        };
        if let Some((may_mark, counter)) = may_mark {
            self.stats.overlimits += 1;
            if !(may_mark && item.mark_ce()) {
                *counter += 1;
                return self.drop_item(item, DropCause::Early, drops);
            }
            self.stats.ecn_mark += 1;
        }
        // The backlog already includes the arriving item.
        if self.stats.backlog_bytes > self.params.limit {
            self.overlimit += 1;
            self.stats.overlimits += 1;
            return self.drop_item(item, DropCause::Overlimit, drops);
        }
        self.idle_since_ns = None;
        self.queue.push_back(item);
    }

    fn dequeue(&mut self, now_ns: u64, _drops: &mut Vec<Dropped<T>>) -> Option<T> {
        let item = self.queue.pop_front()?;
        self.stats.send(item.bytes());
        if self.queue.is_empty() {
            self.idle_since_ns = Some(now_ns);
        }
        Some(item)
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            ("marked", self.stats.ecn_mark),
            ("early", self.early + self.forced),
            ("pdrop", self.overlimit),
            ("average", self.average as u64),
            ("probability_ppm", (self.probability * 1e6) as u64),
        ]
    }

    fn memory_bytes(&self) -> u64 {
        (self.queue.capacity() * size_of::<T>()) as u64
    }

    fn kind(&self) -> &'static str {
        "red"
    }
}
