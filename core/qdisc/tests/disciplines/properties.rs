//! Properties of all disciplines: no packet is lost silently, duplicated, or reordered within a
//! flow.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use towpath_qdisc::{
    Cobalt, CobaltParams, Codel, CodelParams, Dice, Ecn, Fifo, FqCodel, FqCodelParams, Mq, PRIOMAP,
    Pie, PieParams, Prio, Qdisc, Red, RedParams, Tbf, TbfParams,
};

use crate::item::{Bench, Fate, MS, Numbered};

type Boxed = Box<dyn Qdisc<Numbered>>;

/// Time since the previous packet in ns, flow, length in bytes, priority, and number of dequeues
/// after.
type Arrival = (u64, u32, usize, u8, usize);

fn disciplines() -> Vec<Boxed> {
    let codel = CodelParams {
        limit: 40,
        target_ns: MS / 2,
        interval_ns: 5 * MS,
        ecn: true,
        ce_threshold_ns: Some(20 * MS),
        mtu: 1514,
    };
    let fq_codel = FqCodelParams { codel, flows: 4, memory_limit: 30_000, ..Default::default() };
    let tbf = TbfParams { rate: 8_000_000, burst: 1400, peakrate: None, mtu: 0, limit: 20_000 };
    let peak = TbfParams { peakrate: Some(16_000_000), mtu: 1300, ..tbf };
    let red = RedParams {
        limit: 25_000,
        min: 3000,
        max: 9000,
        avpkt: 700,
        burst: 8,
        bandwidth: 8_000_000,
        probability: 0.1,
        ecn: true,
        harddrop: false,
        adaptive: true,
        gentle: true,
    };
    let pie = PieParams {
        limit: 40,
        target_ns: MS / 2,
        max_burst_ns: 0,
        tupdate_ns: MS / 2,
        alpha: 20.,
        ecn: true,
        ..PieParams::default()
    };
    let cobalt = CobaltParams {
        limit: 20,
        target_ns: MS / 2,
        interval_ns: 5 * MS,
        ..CobaltParams::default()
    };
    let dice = || Dice::new(11, 0);
    let queues: Vec<Boxed> = vec![Box::new(Red::new(red, dice())), Box::new(Pie::new(pie, dice()))];
    let bands: Vec<Boxed> = vec![
        Box::new(Tbf::new(tbf)),
        Box::new(Codel::new(codel)),
        Box::new(FqCodel::new(fq_codel)),
    ];
    vec![
        Box::new(Fifo::packets(20)),
        Box::new(Fifo::bytes(20_000)),
        Box::new(Prio::pfifo_fast(10)),
        Box::new(Prio::new(bands, PRIOMAP)),
        Box::new(Tbf::new(tbf)),
        Box::new(Tbf::with_queue(peak, Box::new(Codel::new(codel)))),
        Box::new(Codel::new(codel)),
        Box::new(FqCodel::new(fq_codel)),
        Box::new(Red::new(red, dice())),
        Box::new(Red::new(RedParams { harddrop: true, gentle: false, ..red }, dice())),
        Box::new(Pie::new(pie, dice())),
        Box::new(Cobalt::new(cobalt, dice())),
        Box::new(Mq::new(queues)),
    ]
}

/// Returns the lane of a packet: packets may overtake only packets of a different lane.
fn lane(kind: &str, item: &Numbered) -> u32 {
    match kind {
        "fq_codel" | "mq" => item.flow,
        "prio" => item.flow << 8 | u32::from(item.priority),
        "pfifo_fast" => item.priority.into(),
        _ => 0,
    }
}

fn run(queue: Boxed, arrivals: &[Arrival]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(queue);
    let mut items = BTreeMap::new();
    let mut now_ns = 0;
    for (number, &(after_ns, flow, bytes, priority, takes)) in (0..).zip(arrivals) {
        now_ns += after_ns;
        let ecn = if number % 3 == 0 { Ecn::Ect0 } else { Ecn::NotEct };
        let item = Numbered { number, bytes, flow, ecn, priority };
        items.insert(number, item.clone());
        bench.put(now_ns, item);
        for _ in 0..takes {
            bench.take(now_ns);
        }
        check_stats(&bench)?;
    }
    while bench.queue.stats().backlog_packets > 0 {
        if bench.take(now_ns).is_none() {
            now_ns = bench.queue.next_timeout_ns().unwrap_or(now_ns).max(now_ns + 1);
        }
    }
    check_stats(&bench)?;
    prop_assert_eq!(bench.queue.next_timeout_ns(), None);

    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::new();
    for fate in &bench.fates {
        let (Fate::Sent { number, .. } | Fate::Dropped { number, .. }) = fate;
        prop_assert!(seen.insert(*number), "{} twice", number);
        if matches!(fate, Fate::Sent { .. }) {
            let lane = lane(bench.queue.kind(), &items[number]);
            let before = last.insert(lane, *number);
            prop_assert!(before < Some(*number), "{:?} before {}", before, number);
        }
    }
    prop_assert_eq!(seen.len(), arrivals.len());
    let unmarkable = bench.marked().iter().all(|number| items[number].ecn == Ecn::Ect0);
    prop_assert!(unmarkable, "only packets that can be marked are");
    Ok(())
}

fn check_stats(bench: &Bench<Boxed>) -> Result<(), TestCaseError> {
    let stats = bench.queue.stats();
    let (offered, left) = (stats.enqueued_packets, stats.sent_packets + stats.dropped);
    prop_assert_eq!(offered, left + stats.backlog_packets);
    let left = stats.sent_bytes + stats.dropped_bytes;
    prop_assert_eq!(stats.enqueued_bytes, left + stats.backlog_bytes);
    prop_assert_eq!(bench.fates.len() as u64, stats.sent_packets + stats.dropped);
    prop_assert_eq!(bench.dropped().len() as u64, stats.dropped);
    // tbf stores one item outside its queue.
    let queued = stats.backlog_packets.saturating_sub(1) * size_of::<Numbered>() as u64;
    prop_assert!(bench.queue.memory_bytes() >= queued, "{} bytes", bench.queue.memory_bytes());
    Ok(())
}

#[test]
fn every_packet_leaves_or_is_dropped_exactly_once_and_lanes_keep_their_order() {
    for (at, queue) in disciplines().iter().enumerate() {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[at as u8; 32]);
        let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
        let arrivals = (0..2 * MS, 0u32..6, 1usize..1500, 0u8..16, 0usize..3);
        let arrivals = prop::collection::vec(arrivals, 1..200);
        let result = TestRunner::new_with_rng(config, rng)
            .run(&arrivals, |arrivals| run(disciplines().swap_remove(at), &arrivals));
        assert!(result.is_ok(), "{} ({at}): {}", queue.kind(), result.unwrap_err());
    }
}
