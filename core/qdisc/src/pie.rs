//! PIE (RFC 8033): drops arriving packets with a probability that a controller computes from the
//! queueing delay.

use crate::timed::TimedQueue;
use crate::{Counter, Dice, DropCause, Dropped, Qdisc, Queueable, Stats};

/// Parameters of PIE, named as in tc-pie(8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PieParams {
    /// Maximum number of packets in the queue.
    pub limit: usize,
    /// Target of the queueing delay in nanoseconds; QDELAY_REF of RFC 8033.
    pub target_ns: u64,
    /// Time between two updates of the drop probability in nanoseconds; T_UPDATE of RFC 8033.
    pub tupdate_ns: u64,
    /// Weight of the difference between delay and target in the drop probability, per second. tc's
    /// value is 16 times as large.
    pub alpha: f64,
    /// Weight of the change of the delay in the drop probability, per second. tc's value is 16
    /// times as large.
    pub beta: f64,
    /// Time in nanoseconds for which no packet is dropped after an idle period; MAX_BURST of RFC
    /// 8033.
    pub max_burst_ns: u64,
    /// Whether to mark ECN-capable packets instead of dropping them, as long as the drop
    /// probability is below MARK_ECNTH.
    pub ecn: bool,
    /// Average packet length in bytes. While the queue has at most two packets of this length, no
    /// packet is dropped.
    pub mean_packet: u64,
}

impl Default for PieParams {
    fn default() -> Self {
        // The values are those of RFC 8033 sections 4 and 5; `limit` is the default of tc.
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

/// A FIFO queue controlled by PIE, as in RFC 8033 appendix A.
#[derive(Debug)]
pub struct Pie<T> {
    params: PieParams,
    queue: TimedQueue<T>,
    dice: Dice,
    drop_prob: f64,
    /// Queueing delay of the packet sent last, in nanoseconds; 0 if the queue is empty.
    delay_ns: u64,
    /// Queueing delay at the last update of the drop probability, in nanoseconds; `qdelay_old_` of
    /// RFC 8033.
    delay_old_ns: u64,
    burst_allowance_ns: u64,
    /// Time of the next update of the drop probability; `None` before the first packet.
    update_ns: Option<u64>,
    overlimit: u64,
    stats: Stats,
}

/// Drop probability above which ECN-capable packets are dropped instead of marked (RFC 8033 section
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

    /// Updates the drop probability as often as is due until `now_ns`.
    fn update(&mut self, now_ns: u64) {
        let mut due_ns = *self.update_ns.get_or_insert(now_ns + self.params.tupdate_ns);
        let tupdate_ns = self.params.tupdate_ns.max(1);
        while due_ns <= now_ns {
            due_ns += tupdate_ns;
            let before = (self.drop_prob, self.delay_old_ns, self.burst_allowance_ns);
            self.calculate_drop_prob();
            if before == (self.drop_prob, self.delay_old_ns, self.burst_allowance_ns) {
                // After a long idle period, further updates would not change the drop probability,
                // so skip the missed ones.
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

    /// Returns the divisor that makes the steps smaller while the drop probability is small (RFC
    /// 8033 section 4.2).
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

    /// Decides whether to drop an arriving packet: `drop_early` of RFC 8033 section 4.1, and the
    /// burst allowance of section 4.4.
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
