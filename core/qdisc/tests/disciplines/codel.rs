//! Tests of CoDel against the pseudo-code of RFC 8289 section 5, and with hand-computed values.

use std::collections::VecDeque;

use towpath_qdisc::{Codel, CodelParams, DropCause, Ecn, Qdisc, Queueable};

use crate::item::{Bench, Fate, MS, Numbered};
use crate::traffic::{Step, bottleneck};

/// A transcription of `codel_queue_t`, with the RFC's names. ECN is added as in Linux's
/// codel_impl.h.
#[derive(Default)]
pub struct Reference {
    pub queue: VecDeque<(f64, Numbered)>,
    first_above_time: f64,
    drop_next: f64,
    pub count: u32,
    lastcount: u32,
    dropping: bool,
    ecn: bool,
}

const TARGET: f64 = 5e6;
const INTERVAL: f64 = 100e6;
const MAXPACKET: usize = 1514;

impl Reference {
    pub fn new(ecn: bool) -> Self {
        Self { ecn, ..Self::default() }
    }

    pub fn bytes(&self) -> usize {
        self.queue.iter().map(|(_, packet)| packet.bytes).sum()
    }

    fn control_law(t: f64, count: u32) -> f64 {
        // Truncated, because times are whole nanoseconds.
        (t + INTERVAL / f64::from(count).sqrt()).trunc()
    }

    fn dodequeue(&mut self, now: f64) -> (Option<Numbered>, bool) {
        let Some((tstamp, packet)) = self.queue.pop_front() else {
            self.first_above_time = 0.;
            return (None, false);
        };
        let mut ok_to_drop = false;
        let sojourn_time = now - tstamp;
        if sojourn_time < TARGET || self.bytes() <= MAXPACKET {
            self.first_above_time = 0.;
        } else if self.first_above_time == 0. {
            self.first_above_time = now + INTERVAL;
        } else if now >= self.first_above_time {
            ok_to_drop = true;
        }
        (Some(packet), ok_to_drop)
    }

    pub fn dequeue(&mut self, now_ns: u64, fates: &mut Vec<Fate>) -> Option<Numbered> {
        let now = now_ns as f64;
        let drop = |packet: Option<Numbered>, fates: &mut Vec<Fate>| {
            let number = packet.expect("only a packet is dropped").number;
            fates.push(Fate::Dropped { now_ns, number, cause: DropCause::Early });
        };
        let (mut packet, mut ok_to_drop) = self.dodequeue(now);
        let marks = |packet: &mut Option<Numbered>, ecn: bool| {
            ecn && packet.as_mut().is_some_and(Queueable::mark_ce)
        };
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while now >= self.drop_next && self.dropping {
                if marks(&mut packet, self.ecn) {
                    self.count += 1;
                    self.drop_next = Self::control_law(self.drop_next, self.count);
                    break;
                }
                drop(packet, fates);
                self.count += 1;
                (packet, ok_to_drop) = self.dodequeue(now);
                if ok_to_drop {
                    self.drop_next = Self::control_law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            if !marks(&mut packet, self.ecn) {
                drop(packet, fates);
                (packet, _) = self.dodequeue(now);
            }
            self.dropping = true;
            let delta = self.count - self.lastcount;
            self.count = 1;
            if delta > 1 && now - self.drop_next < 16. * INTERVAL {
                self.count = delta;
            }
            self.drop_next = Self::control_law(now, self.count);
            self.lastcount = self.count;
        }
        packet
    }
}

/// Returns the fates of the items of `steps` according to the reference.
fn expected(steps: Vec<(u64, Step)>, ecn: bool) -> Vec<Fate> {
    let mut reference = Reference::new(ecn);
    let mut fates = Vec::new();
    for (now_ns, step) in steps {
        match step {
            Step::Put(item) => reference.queue.push_back((now_ns as f64, item)),
            Step::Take => {
                if let Some(item) = reference.dequeue(now_ns, &mut fates) {
                    let (number, marked) = (item.number, item.ecn == Ecn::Ce);
                    fates.push(Fate::Sent { now_ns, number, marked });
                }
            }
        }
    }
    fates
}

#[test]
fn drops_and_marks_are_those_of_the_pseudo_code_of_rfc_8289() {
    let (mut drops, mut marks) = (0, 0);
    for seed in 0..20 {
        let ecn = seed % 2 == 1;
        let steps = || bottleneck(seed, 4000, 1, ecn);
        let params = CodelParams { ecn, limit: usize::MAX, ..CodelParams::default() };
        let mut bench = Bench::new(Codel::new(params));
        for (now_ns, step) in steps() {
            match step {
                Step::Put(item) => bench.put(now_ns, item),
                Step::Take => {
                    bench.take(now_ns);
                }
            }
        }
        let expected = expected(steps(), ecn);
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
    assert!(drops > 1000 && marks > 200, "{drops} drops and {marks} marks are no test");
}

#[test]
fn a_queue_within_its_target_is_left_alone() {
    let mut bench = Bench::new(Codel::new(CodelParams::default()));
    for n in 0..10_000 {
        bench.put(n * MS, Numbered::new(n, 1500));
        assert_eq!(bench.take(n * MS + 4 * MS), Some(n));
    }
    assert_eq!((bench.counter("count"), bench.counter("ldelay_ns")), (0, 4 * MS));
}

#[test]
fn a_standing_queue_is_dropped_from_after_an_interval_and_then_ever_faster() {
    let mut bench = Bench::new(Codel::new(CodelParams::default()));
    (0..400).for_each(|n| bench.put(0, Numbered::new(n, 1500)));
    for n in 0..400 {
        bench.take(10 * MS + n * MS);
    }
    let times = bench.fates.iter().filter_map(|fate| match fate {
        Fate::Dropped { now_ns, .. } => Some(now_ns / MS),
        Fate::Sent { .. } => None,
    });
    // The first drop is one interval after the first check, then after 100 ms, 100 / sqrt(2) ms and
    // 100 / sqrt(3) ms.
    let times: Vec<_> = times.collect();
    assert_eq!(times[..4], [110, 210, 281, 339]);
}

/// The drop that ends the dropping state counts: in RFC 8289 section 5.5, `++count_` follows each
/// `drop`. The next state therefore starts with the last rate.
#[test]
fn the_last_drop_counts_for_the_rate_of_the_next_time() {
    let mut bench = Bench::new(Codel::new(CodelParams::default()));
    (0..6).for_each(|n| bench.put(0, Numbered::new(n, 1500)));
    // The sojourn time exceeds the target from 10 ms on, so drops are due at 110 and at 210 ms.
    assert_eq!(bench.take(10 * MS), Some(0));
    assert_eq!(bench.take(110 * MS), Some(2));
    assert_eq!((bench.counter("count"), bench.counter("dropping")), (1, 1));
    // The drop at 210 ms leaves at most one packet, which ends the state.
    assert_eq!(bench.take(210 * MS), Some(4));
    assert_eq!((bench.counter("count"), bench.counter("dropping")), (2, 0));
}

#[test]
fn a_late_packet_that_can_be_marked_is_marked_by_the_ce_threshold() {
    let params = CodelParams { ce_threshold_ns: Some(MS), ..CodelParams::default() };
    let mut bench = Bench::new(Codel::new(params));
    for (number, ecn) in [(0, Ecn::Ect1), (1, Ecn::NotEct), (2, Ecn::Ect0)] {
        bench.put(0, Numbered { ecn, ..Numbered::new(number, 100) });
    }
    bench.take(MS);
    bench.take(2 * MS);
    bench.take(3 * MS);
    assert_eq!((bench.marked(), bench.counter("ce_mark")), (vec![2], 1));
    assert_eq!(bench.queue.stats().ecn_mark, 0);
}

#[test]
fn the_limit_drops_at_the_tail() {
    let mut bench = Bench::new(Codel::new(CodelParams { limit: 2, ..CodelParams::default() }));
    (0..3).for_each(|n| bench.put(0, Numbered::new(n, 100)));
    assert_eq!((bench.dropped(), bench.counter("drop_overlimit")), (vec![2], 1));
}
