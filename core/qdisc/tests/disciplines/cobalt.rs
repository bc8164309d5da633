//! Tests of COBALT against a port of Linux's sch_cake.c, and with hand-computed values.

use std::collections::VecDeque;

use towpath_qdisc::{Cobalt, CobaltParams, Dice, DropCause, Ecn, Qdisc, Queueable};

use crate::item::{Bench, Fate, MS, Numbered};
use crate::traffic::{Step, bottleneck};

const TARGET: i64 = 5_000_000;
const INTERVAL: f64 = 100e6;

/// State of a queue as in Linux, with signed times.
struct Reference {
    queue: VecDeque<(i64, Numbered)>,
    random: Dice,
    limit: usize,
    count: u32,
    dropping: bool,
    drop_next: i64,
    p_drop: f64,
    blue_timer: i64,
}

impl Reference {
    fn control(t: i64, count: u32) -> i64 {
        t + (INTERVAL / f64::from(count.max(1)).sqrt()) as i64
    }

    fn queue_full(&mut self, now: i64) {
        if now - self.blue_timer > TARGET {
            self.p_drop = (self.p_drop + 1. / 256.).min(1.);
            self.blue_timer = now;
        }
        self.dropping = true;
        self.drop_next = now;
        if self.count == 0 {
            self.count = 1;
        }
    }

    fn queue_empty(&mut self, now: i64) {
        if self.p_drop > 0. && now - self.blue_timer > TARGET {
            self.p_drop = (self.p_drop - 1. / 4096.).max(0.);
            self.blue_timer = now;
        }
        self.dropping = false;
        if self.count > 0 && now - self.drop_next >= 0 {
            self.count -= 1;
            self.drop_next = Self::control(self.drop_next, self.count);
        }
    }

    fn should_drop(&mut self, now: i64, since: i64, packet: &mut Numbered) -> bool {
        let mut drop = false;
        let mut schedule = now - self.drop_next;
        let over_target = now - since > TARGET;
        let mut next_due = self.count > 0 && schedule >= 0;
        if over_target {
            if !self.dropping {
                self.dropping = true;
                self.drop_next = Self::control(now, self.count);
            }
            if self.count == 0 {
                self.count = 1;
            }
        } else if self.dropping {
            self.dropping = false;
        }
        if next_due && self.dropping {
            drop = !packet.mark_ce();
            self.count += 1;
            self.drop_next = Self::control(self.drop_next, self.count);
            schedule = now - self.drop_next;
        } else {
            while next_due {
                self.count -= 1;
                self.drop_next = Self::control(self.drop_next, self.count);
                schedule = now - self.drop_next;
                next_due = self.count > 0 && schedule >= 0;
            }
        }
        if self.p_drop > 0. && !drop && self.random.unit() < self.p_drop {
            drop = true;
        }
        if self.count == 0 {
            self.drop_next = now + INTERVAL as i64;
        } else if schedule > 0 && !drop {
            self.drop_next = now;
        }
        drop
    }
}

#[test]
fn drops_and_marks_are_those_of_the_steps_of_linux() {
    let (mut drops, mut marks) = (0, 0);
    for seed in 0..20 {
        let limit = if seed % 4 < 2 { 1000 } else { 30 };
        let params = CobaltParams { limit, ..CobaltParams::default() };
        let mut bench = Bench::new(Cobalt::new(params, Dice::new(seed, 1)));
        let mut reference = Reference {
            queue: VecDeque::new(),
            random: Dice::new(seed, 1),
            limit,
            count: 0,
            dropping: false,
            drop_next: 0,
            p_drop: 0.,
            blue_timer: 0,
        };
        let mut expected = Vec::new();
        for (now_ns, step) in bottleneck(seed, 4000, 1, seed % 2 == 1) {
            let now = now_ns as i64;
            let dropped = |number, cause| Fate::Dropped { now_ns, number, cause };
            match step {
                Step::Put(item) => {
                    if reference.queue.len() < reference.limit {
                        reference.queue.push_back((now, item.clone()));
                    } else {
                        reference.queue_full(now);
                        expected.push(dropped(item.number, DropCause::Overlimit));
                    }
                    bench.put(now_ns, item);
                }
                Step::Take => {
                    bench.take(now_ns);
                    loop {
                        let Some((since, mut packet)) = reference.queue.pop_front() else {
                            reference.queue_empty(now);
                            break;
                        };
                        let number = packet.number;
                        if reference.should_drop(now, since, &mut packet) {
                            expected.push(dropped(number, DropCause::Early));
                            continue;
                        }
                        let marked = packet.ecn == Ecn::Ce;
                        expected.push(Fate::Sent { now_ns, number, marked });
                        break;
                    }
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
fn a_flow_that_does_not_listen_is_dropped_by_blue_and_forgotten_when_it_ends() {
    let params = CobaltParams { limit: 20, ..CobaltParams::default() };
    let mut bench = Bench::new(Cobalt::new(params, Dice::new(1, 0)));
    for n in 0..4000 {
        bench.put(n * MS, Numbered::new(3 * n, 1500));
        bench.put(n * MS, Numbered::new(3 * n + 1, 1500));
        bench.take(n * MS);
    }
    assert!(bench.counter("p_drop_ppm") > 100_000, "{}", bench.counter("p_drop_ppm"));
    for n in 4000..30_000 {
        bench.take(n * MS);
    }
    assert_eq!((bench.counter("p_drop_ppm"), bench.counter("count")), (0, 0));
    assert_eq!(bench.queue.stats().backlog_packets, 0);
}
