//! Tests of PIE against the pseudo-code of RFC 8033 appendix A, and with hand-computed values.

use std::collections::VecDeque;

use towpath_qdisc::{Dice, DropCause, Ecn, Pie, PieParams, Qdisc, Queueable};

use crate::item::{Bench, Fate, MS, Numbered};
use crate::traffic::{Step, bottleneck};

const QDELAY_REF: f64 = 0.015;
const MAX_BURST: f64 = 0.150;
const MEAN_PKTSIZE: usize = 1024;
const MARK_ECNTH: f64 = 0.1;

/// A transcription of the pseudo-code, with the RFC's names. An empty queue has no delay, as in
/// Linux's sch_pie.c; marking follows section 5.1.
struct Reference {
    queue: VecDeque<(u64, Numbered)>,
    random: Dice,
    drop_prob: f64,
    current_qdelay: f64,
    qdelay_old: f64,
    burst_allowance: f64,
    ecn: bool,
}

impl Reference {
    fn enque(&mut self, now_ns: u64, mut packet: Numbered, fates: &mut Vec<Fate>) {
        let is_low = self.current_qdelay < QDELAY_REF / 2. && self.qdelay_old < QDELAY_REF / 2.;
        if self.drop_prob == 0. && is_low {
            self.burst_allowance = MAX_BURST;
        }
        if self.burst_allowance == 0. && self.drop_early() {
            let marks = self.ecn && self.drop_prob < MARK_ECNTH && packet.mark_ce();
            if !marks {
                let (number, cause) = (packet.number, DropCause::Early);
                return fates.push(Fate::Dropped { now_ns, number, cause });
            }
        }
        self.queue.push_back((now_ns, packet));
    }

    fn drop_early(&mut self) -> bool {
        let bytes: usize = self.queue.iter().map(|(_, packet)| packet.bytes).sum();
        if (self.qdelay_old < QDELAY_REF / 2. && self.drop_prob < 0.2) || bytes <= 2 * MEAN_PKTSIZE
        {
            return false;
        }
        self.random.unit() < self.drop_prob
    }

    fn deque(&mut self, now_ns: u64, fates: &mut Vec<Fate>) {
        let Some((since_ns, packet)) = self.queue.pop_front() else { return };
        let delay = if self.queue.is_empty() { 0 } else { now_ns - since_ns };
        self.current_qdelay = delay as f64 / 1e9;
        let (number, marked) = (packet.number, packet.ecn == Ecn::Ce);
        fates.push(Fate::Sent { now_ns, number, marked });
    }

    fn calculate_drop_prob(&mut self) {
        let mut p = 0.125 * (self.current_qdelay - QDELAY_REF)
            + 1.25 * (self.current_qdelay - self.qdelay_old);
        if self.drop_prob < 0.000001 {
            p /= 2048.;
        } else if self.drop_prob < 0.00001 {
            p /= 512.;
        } else if self.drop_prob < 0.0001 {
            p /= 128.;
        } else if self.drop_prob < 0.001 {
            p /= 32.;
        } else if self.drop_prob < 0.01 {
            p /= 8.;
        } else if self.drop_prob < 0.1 {
            p /= 2.;
        }
        self.drop_prob += p;
        if self.current_qdelay == 0. && self.qdelay_old == 0. {
            self.drop_prob *= 0.98;
        }
        // Bounds of the probability.
        self.drop_prob = self.drop_prob.clamp(0., 1.);
        self.qdelay_old = self.current_qdelay;
        // Round to whole nanoseconds, so that the allowance reaches exactly 0.
        self.burst_allowance = ((self.burst_allowance - 0.015).max(0.) * 1e9).round() / 1e9;
    }
}

#[test]
fn drops_and_marks_are_those_of_the_pseudo_code_of_rfc_8033() {
    let (mut drops, mut marks) = (0, 0);
    for seed in 0..20 {
        let ecn = seed % 2 == 1;
        let params = PieParams { ecn, limit: usize::MAX, ..PieParams::default() };
        let mut bench = Bench::new(Pie::new(params, Dice::new(seed, 1)));
        let mut reference = Reference {
            queue: VecDeque::new(),
            random: Dice::new(seed, 1),
            drop_prob: 0.,
            current_qdelay: 0.,
            qdelay_old: 0.,
            burst_allowance: 0.,
            ecn,
        };
        let (mut expected, mut update_ns) = (Vec::new(), None);
        for (now_ns, step) in bottleneck(seed, 6000, 1, ecn) {
            let update_ns = update_ns.get_or_insert(now_ns + 15 * MS);
            while *update_ns <= now_ns {
                reference.calculate_drop_prob();
                *update_ns += 15 * MS;
            }
            match step {
                Step::Put(item) => {
                    reference.enque(now_ns, item.clone(), &mut expected);
                    bench.put(now_ns, item);
                }
                Step::Take => {
                    reference.deque(now_ns, &mut expected);
                    bench.take(now_ns);
                }
            }
        }
        let first = bench.fates.iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!(
            first,
            None,
            "seed {seed}: {:?}",
            first.map(|at| (bench.fates[at], expected[at]))
        );
        assert_eq!(bench.fates.len(), expected.len());
        drops += bench.dropped().len();
        marks += bench.marked().len();
    }
    assert!(drops > 1000 && marks > 100, "{drops} drops and {marks} marks are no test");
}

#[test]
fn a_burst_after_a_quiet_time_passes() {
    let mut bench = Bench::new(Pie::new(PieParams::default(), Dice::new(1, 0)));
    (0..100).for_each(|n| bench.put(0, Numbered::new(n, 1500)));
    for n in 0..100 {
        bench.take(n * MS);
        bench.put(n * MS, Numbered::new(100 + n, 1500));
    }
    assert_eq!(bench.dropped(), []);
}

#[test]
fn a_standing_queue_comes_down_to_the_target() {
    let mut bench = Bench::new(Pie::new(PieParams::default(), Dice::new(1, 0)));
    // The arrival rate exceeds the departure rate by a tenth for 60 s.
    let (mut number, mut late) = (0, 0);
    for n in 0..60_000u64 {
        let count = 1 + u64::from(n % 10 == 0);
        for _ in 0..count {
            bench.put(n * MS, Numbered::new(number, 1500));
            number += 1;
        }
        bench.take(n * MS);
        late += u64::from(n > 30_000 && bench.counter("delay_ns") > 45 * MS);
    }
    assert!(bench.dropped().len() > 3000, "{} drops", bench.dropped().len());
    assert!(late < 300, "{late} of 30000 packets waited for three times the target");
}

#[test]
fn a_pause_of_hours_takes_the_probability_to_0() {
    let mut bench = Bench::new(Pie::new(PieParams::default(), Dice::new(1, 0)));
    for n in 0..4000 {
        bench.put(n * MS, Numbered::new(2 * n, 1500));
        bench.put(n * MS, Numbered::new(2 * n + 1, 1500));
        bench.take(n * MS);
    }
    assert!(bench.counter("prob_ppm") > 10_000);
    while bench.take(5000 * MS).is_some() {}
    bench.put(20_000_000 * MS, Numbered::new(9999, 1500));
    assert_eq!(bench.counter("prob_ppm"), 0);
    assert_eq!(bench.queue.stats().backlog_packets, 1);
}
