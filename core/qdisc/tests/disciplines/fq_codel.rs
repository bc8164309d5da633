//! Tests of FQ-CoDel against the text of RFC 8290 section 4, and with hand-computed values.

use std::collections::{BTreeMap, VecDeque};

use towpath_qdisc::{Codel, DropCause, Ecn, FqCodel, FqCodelParams, Qdisc};

use crate::codel;
use crate::item::{Bench, Fate, MS, Numbered};
use crate::traffic::{Step, bottleneck};

const QUANTUM: i64 = 1514;
const BATCH: usize = 64;

/// The scheduler as described in the RFC; each flow has its own queue, without a hash.
#[derive(Default)]
struct Reference {
    queues: BTreeMap<u32, (codel::Reference, i64)>,
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    limit: usize,
    ecn: bool,
}

impl Reference {
    fn enqueue(&mut self, now_ns: u64, packet: Numbered, fates: &mut Vec<Fate>) {
        let id = packet.flow;
        let ecn = self.ecn;
        let fresh = || (codel::Reference::new(ecn), 0);
        let (queue, credits) = self.queues.entry(id).or_insert_with(fresh);
        queue.queue.push_back((now_ns as f64, packet));
        if !self.new.contains(&id) && !self.old.contains(&id) {
            self.new.push_back(id);
            *credits = QUANTUM;
        }
        let total: usize = self.queues.values().map(|(queue, _)| queue.queue.len()).sum();
        if total <= self.limit {
            return;
        }
        let longest = self.queues.values_mut().max_by_key(|(queue, _)| queue.bytes());
        let (queue, _) = longest.expect("a packet was just enqueued");
        let half = queue.queue.len().div_ceil(2);
        for _ in 0..half.min(BATCH) {
            let (_, packet) = queue.queue.pop_front().expect("half of it is not all");
            queue.count += 1;
            let cause = DropCause::Overlimit;
            fates.push(Fate::Dropped { now_ns, number: packet.number, cause });
        }
    }

    fn dequeue(&mut self, now_ns: u64, fates: &mut Vec<Fate>) -> Option<Numbered> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let id = list.pop_front()?;
            let (queue, credits) = self.queues.get_mut(&id).expect("a listed queue");
            if *credits <= 0 {
                *credits += QUANTUM;
                self.old.push_back(id);
                continue;
            }
            match queue.dequeue(now_ns, fates) {
                Some(packet) => {
                    *credits -= packet.bytes as i64;
                    list.push_front(id);
                    return Some(packet);
                }
                None if is_new => self.old.push_back(id),
                None => {}
            }
        }
    }
}

/// Creates a discipline in which the flows do not collide, so that the reference needs no hash.
fn discipline(flows: u32, params: FqCodelParams) -> FqCodel<Numbered> {
    let lands = |perturbation| {
        let params = FqCodelParams { perturbation, ..params };
        let mut bench = Bench::new(FqCodel::new(params));
        (0..flows).for_each(|flow| bench.put(0, Numbered { flow, ..Numbered::new(0, 1) }));
        bench.counter("new_flow_count") == u64::from(flows)
    };
    let perturbation =
        (0..).find(|perturbation| lands(*perturbation)).expect("some do not collide");
    FqCodel::new(FqCodelParams { perturbation, ..params })
}

#[test]
fn packets_drops_and_marks_are_those_of_the_text_of_rfc_8290() {
    for seed in 0..16 {
        let ecn = seed % 2 == 1;
        let limit = if seed % 4 < 2 { 10_240 } else { 40 };
        let mut params = FqCodelParams::default();
        (params.codel.ecn, params.codel.limit) = (ecn, limit);
        let mut bench = Bench::new(discipline(5, params));
        let mut reference = Reference { ecn, limit, ..Reference::default() };
        let mut expected = Vec::new();
        for (now_ns, step) in bottleneck(seed, 4000, 5, ecn) {
            match step {
                Step::Put(item) => {
                    reference.enqueue(now_ns, item.clone(), &mut expected);
                    bench.put(now_ns, item);
                }
                Step::Take => {
                    bench.take(now_ns);
                    if let Some(item) = reference.dequeue(now_ns, &mut expected) {
                        let (number, marked) = (item.number, item.ecn == Ecn::Ce);
                        expected.push(Fate::Sent { now_ns, number, marked });
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
        assert!(!bench.dropped().is_empty(), "no drops: no test");
    }
}

#[test]
fn a_sparse_flow_overtakes_a_queue() {
    let mut bench = Bench::new(discipline(2, FqCodelParams::default()));
    (0..20).for_each(|n| bench.put(0, Numbered::new(n, 1500)));
    assert_eq!([bench.take(0), bench.take(0)], [Some(0), Some(1)]);
    bench.put(MS, Numbered { flow: 1, ..Numbered::new(99, 100) });
    assert_eq!([bench.take(MS), bench.take(MS)], [Some(99), Some(2)]);
    assert_eq!((bench.counter("new_flow_count"), bench.counter("old_flows_len")), (2, 2));
}

/// A queue that is empty at its turn becomes old, and stays listed until its next turn (RFC 8290
/// section 4.2). If it gets a packet before then, it does not overtake new queues.
#[test]
fn an_empty_new_queue_becomes_old_before_it_goes() {
    let mut bench = Bench::new(discipline(3, FqCodelParams::default()));
    let item = |number, flow| Numbered { flow, ..Numbered::new(number, 100) };
    bench.put(0, item(0, 0));
    assert_eq!(bench.take(0), Some(0));
    bench.put(0, item(1, 1));
    bench.put(0, item(2, 1));
    // The first queue is found empty before the second one is served, and becomes old.
    assert_eq!(bench.take(0), Some(1));
    assert_eq!(bench.counter("old_flows_len"), 1);
    bench.put(0, item(3, 0));
    assert_eq!([bench.take(0), bench.take(0)], [Some(2), Some(3)]);
    assert_eq!(bench.counter("new_flow_count"), 2);
}

#[test]
fn flows_share_by_bytes_and_not_by_packets() {
    let mut bench = Bench::new(discipline(2, FqCodelParams::default()));
    for n in 0..300 {
        bench.put(0, Numbered { flow: 0, ..Numbered::new(2 * n, 1500) });
        bench.put(0, Numbered { flow: 1, ..Numbered::new(2 * n + 1, 300) });
    }
    let sent: Vec<_> = (0..240).filter_map(|_| bench.take(0)).collect();
    let large = sent.iter().filter(|number| *number % 2 == 0).count();
    assert!((38..=42).contains(&large), "{large} large ones of 240: 40 have the bytes of 200");
}

#[test]
fn a_batch_is_dropped_from_the_longest_queue_alone() {
    let mut params = FqCodelParams::default();
    params.codel.limit = 200;
    let mut bench = Bench::new(discipline(2, params));
    (0..20).for_each(|n| bench.put(0, Numbered { flow: 1, ..Numbered::new(1000 + n, 1500) }));
    (0..181).for_each(|n| bench.put(0, Numbered::new(n, 1500)));
    assert_eq!(bench.dropped(), (0..64).collect::<Vec<_>>());
    assert_eq!(bench.counter("drop_overlimit"), 64);
    // The memory limit also drops half of the longest queue.
    let mut bench = Bench::new(discipline(1, FqCodelParams { memory_limit: 3000, ..params }));
    (0..3).for_each(|n| bench.put(0, Numbered::new(n, 1001)));
    assert_eq!((bench.dropped(), bench.counter("drop_overmemory")), (vec![0, 1], 2));
}

#[test]
fn one_flow_alone_is_a_codel_queue() {
    let mut params = FqCodelParams::default();
    params.codel.ecn = false;
    let mut fair = Bench::new(FqCodel::new(params));
    let mut plain = Bench::new(Codel::new(params.codel));
    for (now_ns, step) in bottleneck(7, 4000, 1, false) {
        match step {
            Step::Put(item) => {
                fair.put(now_ns, item.clone());
                plain.put(now_ns, item);
            }
            Step::Take => assert_eq!(fair.take(now_ns), plain.take(now_ns)),
        }
    }
    assert_eq!(fair.fates, plain.fates);
    assert!(plain.queue.stats().dropped > 50);
}

#[test]
fn queues_are_allocated_when_a_flow_uses_them() {
    let params = FqCodelParams { flows: 65_536, ..FqCodelParams::default() };
    let mut queue: FqCodel<Numbered> = FqCodel::new(params);
    let table = 65_536 * 4;
    assert_eq!(queue.memory_bytes(), table);
    let mut drops = Vec::new();
    for flow in 0..64 {
        let item = Numbered { number: 0, bytes: 100, flow, ecn: Ecn::NotEct, priority: 0 };
        queue.enqueue(0, item, &mut drops);
    }
    let used = queue.memory_bytes() - table;
    assert!((64 * 100..64 * 1_000).contains(&used), "{used} bytes for 64 queues with a packet");
}
