//! PIE (RFC 8033): drops packets at the tail with a probability that a controller derives from the
//! queueing delay.

use crate::timed::TimedQueue;
use crate::{Counter, Dice, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of PIE, named as in tc-pie(8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PieParams {
    /// Maximum packets in the queue.
    pub limit: usize,
    /// Target delay in ns: QDELAY_REF.
    pub target_ns: u64,
    /// Update interval of the probability in ns: T_UPDATE.
    pub tupdate_ns: u64,
    /// Weight of the delay's deviation from the target, per second. tc's value is 16 times as
    /// large.
    pub alpha: f64,
    /// Weight of the delay's change, per second. tc's value is 16 times as large.
    pub beta: f64,
    /// Burst allowance after an idle period, in ns: MAX_BURST.
    pub max_burst_ns: u64,
    /// Whether to mark ECN-capable packets instead of dropping them, while the probability is below
    /// MARK_ECNTH.
    pub ecn: bool,
    /// Average packet length in bytes. While the queue has at most two packets of this length, no
    /// packet is dropped.
    pub mean_packet: u64,
}

impl Default for PieParams {
    fn default() -> Self {
        // RFC 8033 sections 4 and 5; the limit is tc's.
        Self {
            limit: 1000,
            target_ns: 15_000_000,
            tupdate_ns: 15_000_000,
            alpha: 0.125,
            beta: 1.25,
            max_burst_ns: 150_000_000,
            ecn: false,
            mean_packet: 1024,
        }
    }
}

/// A FIFO controlled by PIE, as in RFC 8033 appendix A.
#[derive(Debug)]
pub struct Pie<T> {
    params: PieParams,
    queue: TimedQueue<T>,
    dice: Dice,
    drop_prob: f64,
    /// Delay of the packet sent last, in ns; 0 for an empty queue.
    delay_ns: u64,
    /// Value of `delay_ns` at the last update: `qdelay_old_`.
    delay_old_ns: u64,
    burst_allowance_ns: u64,
    /// Time of the next update; `None` before the first packet.
    update_ns: Option<u64>,
    overlimit: u64,
    stats: Stats,
}

/// Probability above which ECN-capable packets are dropped instead of marked (RFC 8033 section
/// 5.1).
const MARK_ECNTH: f64 = 0.1;

impl<T: Queueable> Pie<T> {
    /// Creates an empty queue.
    pub fn new(params: PieParams, dice: Dice) -> Self {
        Self {
            params,
            queue: TimedQueue::new(),
            dice,
            drop_prob: 0.,
            delay_ns: 0,
            delay_old_ns: 0,
            burst_allowance_ns: 0,
            update_ns: None,
            overlimit: 0,
            stats: Stats::default(),
        }
    }

    /// Executes the updates that are due.
    fn update(&mut self, now_ns: u64) {
        let mut due_ns = *self.update_ns.get_or_insert(now_ns + self.params.tupdate_ns);
        let tupdate_ns = self.params.tupdate_ns.max(1);
        while due_ns <= now_ns {
            due_ns += tupdate_ns;
            let before = (self.drop_prob, self.delay_old_ns, self.burst_allowance_ns);
            self.calculate_drop_prob();
            if before == (self.drop_prob, self.delay_old_ns, self.burst_allowance_ns) {
                // Further updates would change nothing, so skip a long pause.
                due_ns += now_ns.saturating_sub(due_ns) / tupdate_ns * tupdate_ns;
            }
        }
        self.update_ns = Some(due_ns);
    }

    fn calculate_drop_prob(&mut self) {
        let PieParams { alpha, beta, .. } = self.params;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (delay, old) = (seconds(self.delay_ns), seconds(self.delay_old_ns));
        let step = alpha * (delay - seconds(self.params.target_ns)) + beta * (delay - old);
        self.drop_prob += step / self.divisor();
        //= https://www.rfc-editor.org/rfc/rfc8033#section-4.2
        //# decay the drop probability exponentially:
        if self.delay_ns == 0 && self.delay_old_ns == 0 {
            self.drop_prob *= 0.98;
        }
        self.drop_prob = self.drop_prob.clamp(0., 1.);
        self.delay_old_ns = self.delay_ns;
        let burst_ns = self.burst_allowance_ns;
        self.burst_allowance_ns = burst_ns.saturating_sub(self.params.tupdate_ns);
    }

    /// Returns the divisor by which small probabilities change in smaller steps (RFC 8033 section
    /// 4.2).
    fn divisor(&self) -> f64 {
        match self.drop_prob {
            p if p < 0.000_001 => 2048.,
            p if p < 0.000_01 => 512.,
            p if p < 0.000_1 => 128.,
            p if p < 0.001 => 32.,
            p if p < 0.01 => 8.,
            p if p < 0.1 => 2.,
            _ => 1.,
        }
    }

    /// Implements `drop_early` of RFC 8033 section 4.1, and the burst allowance of section 4.4.
    fn drops_early(&mut self) -> bool {
        let half_ns = self.params.target_ns / 2;
        //= https://www.rfc-editor.org/rfc/rfc8033#section-4.4
        //# When the congestion goes away -- defined here as PIE->drop_prob_
        //# equals 0 and both the current and previous samples of estimated
        //# latency are less than half of QDELAY_REF -- PIE->burst_allowance_ is
        //# reset to MAX_BURST.
        if self.drop_prob == 0. && self.delay_ns < half_ns && self.delay_old_ns < half_ns {
            self.burst_allowance_ns = self.params.max_burst_ns;
        }
        //= https://www.rfc-editor.org/rfc/rfc8033#section-4.1
        //# To ensure that PIE is "work conserving", we bypass the random drop if
        //# the latency sample, PIE->qdelay_old_, is smaller than half of the
        //# target latency value (QDELAY_REF) when the drop probability is not
        //# too high (i.e., PIE->drop_prob_ < 0.2), or if the queue has less than
        //# a couple of packets.
        let is_quiet = self.delay_old_ns < half_ns && self.drop_prob < 0.2;
        let is_short = self.queue.bytes() <= 2 * self.params.mean_packet;
        self.burst_allowance_ns == 0 && !is_quiet && !is_short && self.dice.falls(self.drop_prob)
    }

    fn drop_item(&mut self, item: T, cause: DropCause, drops: &mut Vec<Dropped<T>>) {
        self.stats.drop(item.bytes());
        self.stats.overlimits += 1;
        drops.push(Dropped { item, cause });
    }
}

impl<T: Queueable> Qdisc<T> for Pie<T> {
    fn enqueue(&mut self, now_ns: u64, mut item: T, drops: &mut Vec<Dropped<T>>) {
        self.update(now_ns);
        self.stats.offer(item.bytes());
        if self.queue.len() >= self.params.limit {
            self.overlimit += 1;
            return self.drop_item(item, DropCause::Overlimit, drops);
        }
        if self.drops_early() {
            //= https://www.rfc-editor.org/rfc/rfc8033#section-5.1
            //# if the calculated
            //# drop probability exceeds mark_ecnth, PIE reverts to packet-dropping
            //# for ECN-capable packets.
            let may_mark = self.params.ecn && self.drop_prob < MARK_ECNTH;
            if !(may_mark && item.mark_ce()) {
                return self.drop_item(item, DropCause::Early, drops);
            }
            self.stats.ecn_mark += 1;
        }
        self.queue.push(now_ns, item);
    }

    fn dequeue(&mut self, now_ns: u64, _drops: &mut Vec<Dropped<T>>) -> Option<T> {
        self.update(now_ns);
        let (since_ns, item) = self.queue.pop()?;
        //= https://www.rfc-editor.org/rfc/rfc8033#appendix-A
        //= type=exception
        //= reason=The delay of an empty queue is 0, as in Linux: of a queue that stays empty no packet would ever say so, and the probability would not decay.
        //# current_qdelay = packet.timestamp_delay();
        let is_empty = self.queue.len() == 0;
        self.delay_ns = if is_empty { 0 } else { now_ns.saturating_sub(since_ns) };
        self.stats.send(item.bytes());
        Some(item)
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            ("prob_ppm", (self.drop_prob * 1e6) as u64),
            ("delay_ns", self.delay_ns),
            ("overlimit", self.overlimit),
            ("ecn_mark", self.stats.ecn_mark),
        ]
    }

    fn memory_bytes(&self) -> u64 {
        self.queue.memory_bytes()
    }

    fn kind(&self) -> &'static str {
        "pie"
    }
}
