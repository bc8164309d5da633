//! COBALT: combines CoDel, for flows that respond to congestion signals, with BLUE, for
//! unresponsive flows that fill the queue.
//!
//! J. Palmei and others, "Design and Evaluation of COBALT Queue Discipline", 2019. Implemented like
//! the queue of Linux's sch_cake.c.

use crate::timed::TimedQueue;
use crate::{Counter, Dice, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of COBALT.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CobaltParams {
    /// Maximum number of packets in the queue.
    pub limit: usize,
    /// Target for the sojourn time of packets in a standing queue, in nanoseconds.
    pub target_ns: u64,
    /// Time in nanoseconds for which the sojourn time may exceed the target before packets are
    /// dropped.
    pub interval_ns: u64,
    /// Whether CoDel marks ECN-capable packets instead of dropping them; BLUE always drops.
    pub ecn: bool,
    /// Amount by which BLUE's drop probability increases when the queue is full; 1/256 by default,
    /// as in sch_cake.c (`p_inc`).
    pub increment: f64,
    /// Amount by which BLUE's drop probability decreases when the queue is empty; 1/4096 by
    /// default, as in sch_cake.c (`p_dec`).
    pub decrement: f64,
}

impl Default for CobaltParams {
    fn default() -> Self {
        Self {
            limit: 1000,
            target_ns: 5_000_000,
            interval_ns: 100_000_000,
            ecn: true,
            increment: 1. / 256.,
            decrement: 1. / 4096.,
        }
    }
}

/// A FIFO queue controlled by COBALT.
#[derive(Debug)]
pub struct Cobalt<T> {
    params: CobaltParams,
    queue: TimedQueue<T>,
    dice: Dice,
    /// Strength of CoDel's signal: the time between two drops or marks is `interval_ns /
    /// sqrt(count)`.
    count: u32,
    is_dropping: bool,
    drop_next_ns: u64,
    /// BLUE's drop probability, and the time in nanoseconds at which it last changed.
    p_drop: f64,
    blue_ns: u64,
    delay_ns: u64,
    overlimit: u64,
    stats: Stats,
}

impl<T: Queueable> Cobalt<T> {
    /// Creates an empty queue.
    pub fn new(params: CobaltParams, dice: Dice) -> Self {
        Self {
            params,
            queue: TimedQueue::new(),
            dice,
            count: 0,
            is_dropping: false,
            drop_next_ns: 0,
            p_drop: 0.,
            blue_ns: 0,
            delay_ns: 0,
            overlimit: 0,
            stats: Stats::default(),
        }
    }

    fn control(&self, from_ns: u64) -> u64 {
        from_ns + (self.params.interval_ns as f64 / f64::from(self.count.max(1)).sqrt()) as u64
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.count > 0 && now_ns >= self.drop_next_ns
    }

    /// Changes BLUE's drop probability by `step`, at most once per target time.
    fn blue(&mut self, now_ns: u64, step: f64) {
        if now_ns.saturating_sub(self.blue_ns) > self.params.target_ns {
            self.p_drop = (self.p_drop + step).clamp(0., 1.);
            self.blue_ns = now_ns;
        }
    }

    /// Handles a full queue. CoDel's signals did not prevent this, so drops begin immediately.
    fn on_full(&mut self, now_ns: u64) {
        self.blue(now_ns, self.params.increment);
        self.is_dropping = true;
        self.drop_next_ns = now_ns;
        self.count = self.count.max(1);
    }

    fn on_empty(&mut self, now_ns: u64) {
        if self.p_drop > 0. {
            self.blue(now_ns, -self.params.decrement);
        }
        self.is_dropping = false;
        if self.is_due(now_ns) {
            self.relax();
        }
    }

    /// Weakens CoDel's signal by one step, which increases the time between two drops.
    fn relax(&mut self) {
        self.count -= 1;
        self.drop_next_ns = self.control(self.drop_next_ns);
    }

    /// Returns whether to drop the packet at the head of the queue. If CoDel would drop an
    /// ECN-capable packet and ECN is enabled, CoDel marks it instead. BLUE always drops.
    fn drops(&mut self, now_ns: u64, item: &mut T) -> bool {
        let is_due = self.is_due(now_ns);
        let is_over = self.delay_ns > self.params.target_ns;
        if is_over && !self.is_dropping {
            self.drop_next_ns = self.control(now_ns);
        }
        self.is_dropping = is_over;
        if is_over {
            self.count = self.count.max(1);
        }
        let mut drops = false;
        if is_due && is_over {
            let is_marked = self.params.ecn && item.mark_ce();
            self.stats.ecn_mark += u64::from(is_marked);
            drops = !is_marked;
            self.count = self.count.saturating_add(1);
            self.drop_next_ns = self.control(self.drop_next_ns);
        } else if is_due {
            while self.is_due(now_ns) {
                self.relax();
            }
        }
        drops = drops || (self.p_drop > 0. && self.dice.falls(self.p_drop));
        // While CoDel gives no signal, `drop_next_ns` is the time after which the queue counts as
        // idle.
        if self.count == 0 {
            self.drop_next_ns = now_ns + self.params.interval_ns;
        } else if !drops {
            self.drop_next_ns = self.drop_next_ns.max(now_ns);
        }
        drops
    }

    fn drop_item(&mut self, item: T, cause: DropCause, drops: &mut Vec<Dropped<T>>) {
        self.stats.drop(item.bytes());
        self.stats.overlimits += 1;
        drops.push(Dropped { item, cause });
    }
}

impl<T: Queueable> Qdisc<T> for Cobalt<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        self.stats.offer(item.bytes());
        if self.queue.len() < self.params.limit {
            return self.queue.push(now_ns, item);
        }
        self.on_full(now_ns);
        self.overlimit += 1;
        self.drop_item(item, DropCause::Overlimit, drops);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        while let Some((since_ns, mut item)) = self.queue.pop() {
            self.delay_ns = now_ns.saturating_sub(since_ns);
            if !self.drops(now_ns, &mut item) {
                self.stats.send(item.bytes());
                return Some(item);
            }
            self.drop_item(item, DropCause::Early, drops);
        }
        self.on_empty(now_ns);
        None
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            ("count", self.count.into()),
            ("dropping", self.is_dropping.into()),
            ("ldelay_ns", self.delay_ns),
            ("p_drop_ppm", (self.p_drop * 1e6) as u64),
            ("drop_overlimit", self.overlimit),
            ("ecn_mark", self.stats.ecn_mark),
        ]
    }

    fn memory_bytes(&self) -> u64 {
        self.queue.memory_bytes()
    }

    fn kind(&self) -> &'static str {
        "cobalt"
    }
}
