//! Tests of RED against figure 2 of Floyd and Jacobson's paper, and with hand-computed values.

use std::collections::VecDeque;

use towpath_qdisc::{Dice, DropCause, Ecn, Qdisc, Queueable, Red, RedParams};

use crate::item::{Bench, Fate, MS, Numbered};
use crate::traffic::{Step, bottleneck};

/// At this bandwidth a packet of 750 bytes takes one millisecond.
const PARAMS: RedParams = RedParams {
    limit: 60_000,
    min: 5000,
    max: 15_000,
    avpkt: 750,
    burst: 12,
    bandwidth: 6_000_000,
    probability: 0.1,
    ecn: false,
    harddrop: false,
    adaptive: false,
    gentle: false,
};

/// The algorithm of the figure, with its names; the weight is the one that tc computes from the
/// burst.
struct Reference {
    params: RedParams,
    queue: VecDeque<Numbered>,
    random: Dice,
    weight: f64,
    avg: f64,
    count: i64,
    q_time: Option<u64>,
}

impl Reference {
    fn length(&self) -> f64 {
        self.queue.iter().map(|packet| packet.bytes).sum::<usize>() as f64
    }

    fn arrival(&mut self, now_ns: u64, mut packet: Numbered, fates: &mut Vec<Fate>) {
        if self.queue.is_empty() {
            let idle_s = (now_ns - self.q_time.unwrap_or(0)) as f64 / 1e9;
            let m = idle_s * self.params.bandwidth as f64 / 8. / self.params.avpkt as f64;
            self.avg *= (1. - self.weight).powf(m);
            self.q_time = Some(now_ns);
        } else {
            self.avg = (1. - self.weight) * self.avg + self.weight * self.length();
        }
        let (min_th, max_th) = (self.params.min as f64, self.params.max as f64);
        let mut drop = false;
        let mut forced = false;
        if min_th <= self.avg && self.avg < self.upper() {
            self.count += 1;
            let p_b = if self.avg < max_th {
                self.params.probability * (self.avg - min_th) / (max_th - min_th)
            } else {
                self.params.probability
                    + (1. - self.params.probability) * (self.avg - max_th) / max_th
            };
            let rest = 1. - self.count as f64 * p_b;
            drop = rest <= 0. || self.random.unit() < p_b / rest;
        } else if self.upper() <= self.avg {
            (drop, forced) = (true, true);
        } else {
            self.count = -1;
        }
        if drop {
            self.count = 0;
            let marks = self.params.ecn && !(forced && self.params.harddrop) && packet.mark_ce();
            if !marks {
                return fates.push(dropped(now_ns, &packet, DropCause::Early));
            }
        }
        if self.length() + packet.bytes as f64 > self.params.limit as f64 {
            return fates.push(dropped(now_ns, &packet, DropCause::Overlimit));
        }
        self.queue.push_back(packet);
    }

    fn upper(&self) -> f64 {
        self.params.max as f64 * if self.params.gentle { 2. } else { 1. }
    }

    fn departure(&mut self, now_ns: u64, fates: &mut Vec<Fate>) {
        let Some(packet) = self.queue.pop_front() else { return };
        if self.queue.is_empty() {
            self.q_time = Some(now_ns);
        }
        let (number, marked) = (packet.number, packet.ecn == Ecn::Ce);
        fates.push(Fate::Sent { now_ns, number, marked });
    }
}

fn dropped(now_ns: u64, packet: &Numbered, cause: DropCause) -> Fate {
    Fate::Dropped { now_ns, number: packet.number, cause }
}

#[test]
fn drops_and_marks_are_those_of_the_algorithm_of_the_paper() {
    let (mut drops, mut marks) = (0, 0);
    for seed in 0..24 {
        let (ecn, gentle, harddrop) = (seed % 2 == 1, seed % 4 > 1, seed % 8 > 3);
        let params = RedParams { ecn, gentle, harddrop, ..PARAMS };
        let mut bench = Bench::new(Red::new(params, Dice::new(seed, 1)));
        let mut reference = Reference {
            params,
            queue: VecDeque::new(),
            random: Dice::new(seed, 1),
            // 12 + 1 - 5000 / 750 is 6.33; (1 - (1 - W)^12) / W is 3.87 for 1/4, 6.39 for 1/8.
            weight: 1. / 8.,
            avg: 0.,
            count: -1,
            q_time: None,
        };
        let mut expected = Vec::new();
        for (now_ns, step) in bottleneck(seed, 4000, 1, ecn) {
            match step {
                Step::Put(item) => {
                    reference.arrival(now_ns, item.clone(), &mut expected);
                    bench.put(now_ns, item);
                }
                Step::Take => {
                    reference.departure(now_ns, &mut expected);
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
fn an_average_below_the_minimum_drops_nothing_and_one_above_the_maximum_all() {
    let mut bench = Bench::new(Red::new(PARAMS, Dice::new(1, 0)));
    for n in 0..1000 {
        bench.put(n * MS, Numbered::new(n, 750));
        if n >= 6 {
            bench.take(n * MS);
        }
    }
    assert_eq!(bench.dropped(), [], "a queue of 4500 bytes");
    let mut bench = Bench::new(Red::new(RedParams { limit: 40_000, ..PARAMS }, Dice::new(1, 0)));
    (0..400).for_each(|n| bench.put(MS, Numbered::new(n, 750)));
    // The average follows the queue length until both exceed the maximum.
    assert!(bench.counter("average") > PARAMS.max);
    let last: Vec<_> = (380..400).collect();
    assert!(bench.dropped().ends_with(&last), "{:?}", bench.dropped());
    assert_eq!(bench.counter("early") + bench.counter("pdrop"), bench.queue.stats().dropped);
}

#[test]
fn an_idle_queue_forgets_its_average() {
    let mut bench = Bench::new(Red::new(PARAMS, Dice::new(1, 0)));
    (0..60).for_each(|n| bench.put(MS, Numbered::new(n, 750)));
    while bench.take(2 * MS).is_some() {}
    let before = bench.counter("average");
    bench.put(14 * MS, Numbered::new(99, 750));
    // 12 packets could have been sent meanwhile, and (7 / 8)^12 is about a fifth.
    let after = bench.counter("average");
    assert!(before > 5000 && (before / 6..before / 4).contains(&after), "{before} to {after}");
}

#[test]
fn an_adaptive_queue_finds_a_probability_that_keeps_the_average_in_the_middle() {
    let params = RedParams { adaptive: true, gentle: true, ecn: true, ..PARAMS };
    let mut bench = Bench::new(Red::new(params, Dice::new(1, 0)));
    let mut number = 0;
    let mut averages = Vec::new();
    for n in 0..60_000 {
        // The arrival rate exceeds the departure rate by a fifth, so only drops keep the queue
        // short.
        for _ in 0..1 + u64::from(n % 5 == 0) {
            bench.put(n * MS, Numbered::new(number, 750));
            number += 1;
        }
        bench.take(n * MS);
        averages.push(bench.counter("average"));
    }
    assert!(bench.counter("probability_ppm") > 120_000, "{}", bench.counter("probability_ppm"));
    let mean = averages[30_000..].iter().sum::<u64>() / 30_000;
    assert!((8000..12_000).contains(&mean), "{mean}");
}
