//! RED: drops or marks at random, the more the longer the queue has been on average.
//!
//! - S. Floyd and V. Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993.
//! - S. Floyd, "Recommendation on using the gentle variant of RED", 2000.
//! - S. Floyd, R. Gummadi and S. Shenker, "Adaptive RED", 2001.

use std::collections::VecDeque;

use crate::{Counter, Dice, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of RED, by the names of tc-red(8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RedParams {
    /// Bytes that the queue holds.
    pub limit: u64,
    /// Average length in bytes below which no packet is dropped.
    pub min: u64,
    /// Average length in bytes at which the probability is reached.
    pub max: u64,
    /// Bytes of an average packet.
    pub avpkt: u64,
    /// Packets of a burst that passes without a drop: gives the weight of the average.
    pub burst: u32,
    /// Bits per second of the link, for the average of an idle queue.
    pub bandwidth: u64,
    /// Probability of a drop at `max`.
    pub probability: f64,
    /// Marks packets that can be marked, instead of dropping them.
    pub ecn: bool,
    /// Drops above `max` although packets could be marked.
    pub harddrop: bool,
    /// Adapts the probability so that the average stays in the middle between `min` and `max`.
    pub adaptive: bool,
    /// Above `max` the probability rises to 1 at twice `max`, instead of at once.
    pub gentle: bool,
}

/// A FIFO under RED.
#[derive(Debug)]
pub struct Red<T> {
    params: RedParams,
    queue: VecDeque<T>,
    dice: Dice,
    /// Weight of the newest length in the average.
    weight: f64,
    /// Average length in bytes.
    average: f64,
    /// Packets since the last drop or mark, while the average is between the thresholds.
    count: Option<u32>,
    /// Time since which the queue is empty.
    idle_since_ns: Option<u64>,
    probability: f64,
    adapt_ns: u64,
    early: u64,
    forced: u64,
    overlimit: u64,
    stats: Stats,
}

/// Decision about a packet.
enum Verdict {
    Pass,
    /// Drawn by the dice.
    Early,
    /// The average is above the thresholds.
    Forced,
}

/// Time between adaptations, and the bounds of the probability (Adaptive RED, section 4.2).
const ADAPT_INTERVAL_NS: u64 = 500_000_000;
const PROBABILITY_MIN: f64 = 0.01;
const PROBABILITY_MAX: f64 = 0.5;
/// Adaptations that are made up for after a pause: by then the probability is at a bound.
const ADAPTATIONS_MAX: u64 = 100;

impl<T: Queueable> Red<T> {
    /// An empty queue.
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

    /// Takes the length that an arriving packet meets into the average.
    fn measure(&mut self, now_ns: u64) {
        let Some(since_ns) = self.idle_since_ns else {
            self.average += self.weight * (self.stats.backlog_bytes as f64 - self.average);
            return;
        };
        // Small packets that could have been sent meanwhile, each of which would have met an empty
        // queue.
        let bits = self.params.avpkt.max(1) as f64 * 8.;
        let packets =
            now_ns.saturating_sub(since_ns) as f64 * self.params.bandwidth as f64 / 1e9 / bits;
        self.average *= (1. - self.weight).powf(packets);
    }

    /// Moves the probability towards the one that keeps the average in the middle.
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
        // The intervals between drops are spread evenly, and not as the dice alone would have them.
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
    /// The weight that lets a burst pass, as tc has it (`tc_red_eval_ewma`).
    ///
    /// Largest power of 2 for which an average that begins at 0 stays below `min` (equation 3).
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
        // The item itself is in the backlog already.
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
