//! Tests of a link by delivery times and counters.

use crate::{Carried, Chance, Dice, DropCause, Dropped, Ecn, Link, LinkConfig, Loss};
use crate::{Probability, Queueable};

const MS: u64 = 1_000_000;

/// A test packet with a number.
#[derive(Debug, Clone, PartialEq)]
struct Numbered {
    number: u64,
    bytes: usize,
    ecn: Ecn,
    flipped: Vec<u64>,
}

impl Queueable for Numbered {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) -> bool {
        let is_capable = self.ecn != Ecn::NotEct;
        if is_capable {
            self.ecn = Ecn::Ce;
        }
        is_capable
    }
}

impl Carried for Numbered {
    fn duplicate(&self) -> Self {
        self.clone()
    }

    fn flip_bit(&mut self, bit: u64) {
        self.flipped.push(bit);
    }
}

/// A link under test, with its dropped packets.
struct Bench {
    link: Link<Numbered>,
    drops: Vec<Dropped<Numbered>>,
    next: u64,
}

impl Bench {
    fn new(config: LinkConfig) -> Self {
        Self { link: Link::new(config, Dice::new(7, 0)), drops: Vec::new(), next: 0 }
    }

    fn put(&mut self, now_ns: u64, bytes: usize) {
        self.put_marked(now_ns, bytes, Ecn::NotEct);
    }

    fn put_marked(&mut self, now_ns: u64, bytes: usize, ecn: Ecn) {
        let item = Numbered { number: self.next, bytes, ecn, flipped: Vec::new() };
        self.next += 1;
        self.link.on_packet(now_ns, item, &mut self.drops);
    }

    /// Polls at the times that the link returns until it is empty. Returns numbers and delivery
    /// times.
    fn drain(&mut self) -> Vec<(u64, u64)> {
        self.drain_items().into_iter().map(|(now_ns, item)| (item.number, now_ns)).collect()
    }

    fn drain_items(&mut self) -> Vec<(u64, Numbered)> {
        let mut out = Vec::new();
        while let Some(now_ns) = self.link.next_timeout_ns() {
            while let Some(item) = self.link.poll_packet(now_ns, &mut self.drops) {
                out.push((now_ns, item));
            }
        }
        out
    }
}

fn chance(probability: f64) -> Chance {
    Chance::independent(Probability::new(probability).unwrap())
}

#[test]
fn a_packet_comes_out_when_its_delay_is_over() {
    let mut bench = Bench::new(LinkConfig { delay_ns: 10_000, ..LinkConfig::default() });
    assert_eq!(bench.link.next_timeout_ns(), None);
    bench.put(500, 100);
    bench.put(700, 100);
    assert_eq!(bench.link.poll_packet(10_499, &mut bench.drops), None);
    assert_eq!((bench.link.held(), bench.link.held_bytes()), (2, 200));
    assert_eq!(bench.drain(), [(0, 10_500), (1, 10_700)]);
}

#[test]
fn a_rate_sends_packets_one_after_the_other_and_saves_nothing_up() {
    // A byte takes a microsecond.
    let config = LinkConfig { rate: Some(8 * MS), delay_ns: 10_000, ..LinkConfig::default() };
    let mut bench = Bench::new(config);
    bench.put(0, 100);
    bench.put(0, 50);
    assert_eq!(bench.drain(), [(0, 110_000), (1, 160_000)]);
    bench.put(MS, 100);
    assert_eq!(bench.drain(), [(2, 1_110_000)]);
}

#[test]
fn a_change_is_for_packets_that_have_not_been_sent_yet() {
    let slow = LinkConfig { rate: Some(8 * MS), delay_ns: MS, ..LinkConfig::default() };
    let mut bench = Bench::new(slow);
    (0..3).for_each(|_| bench.put(0, 100));
    bench.link.configure(LinkConfig { rate: Some(16 * MS), delay_ns: 0, ..slow });
    // The first packet was sent at the old rate and has the old delay, so the later ones overtake
    // it.
    assert_eq!(bench.drain(), [(1, 150_000), (2, 200_000), (0, 1_100_000)]);
}

#[test]
fn a_late_caller_does_not_slow_the_link_down() {
    let mut bench = Bench::new(LinkConfig { rate: Some(8 * MS), ..LinkConfig::default() });
    (0..10).for_each(|_| bench.put(0, 100));
    let mut out = 0;
    while bench.link.poll_packet(950_000, &mut bench.drops).is_some() {
        out += 1;
    }
    assert_eq!((out, bench.link.next_timeout_ns()), (9, Some(1_000_000)));
}

#[test]
fn a_limit_counts_packets_that_wait_and_packets_on_their_way() {
    let config = LinkConfig { delay_ns: MS, limit: Some(3), ..LinkConfig::default() };
    let mut bench = Bench::new(config);
    (0..5).for_each(|now_ns| bench.put(now_ns, 100));
    assert_eq!((bench.link.held(), bench.link.stats().overlimit), (3, 2));
    assert!(bench.drops.iter().all(|drop| drop.cause == DropCause::Overlimit));
    assert!(bench.link.poll_packet(MS, &mut bench.drops).is_some());
    bench.put(MS, 100);
    bench.put(MS, 100);
    let numbers: Vec<_> = bench.drain().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 5]);
    assert_eq!(bench.link.stats().overlimit, 3);
}

#[test]
fn a_packet_longer_than_the_mtu_is_dropped() {
    let mut bench = Bench::new(LinkConfig { mtu: Some(1514), ..LinkConfig::default() });
    bench.put(0, 1514);
    bench.put(0, 1515);
    assert_eq!((bench.drain().len(), bench.link.stats().too_long), (1, 1));
    assert_eq!(bench.drops[0].cause, DropCause::TooLong);
}

#[test]
fn losses_are_as_many_as_asked_for_and_the_seed_says_which() {
    let run = |seed| {
        let config = LinkConfig { loss: Loss::Random(chance(0.01)), ..LinkConfig::default() };
        let mut bench = Bench::new(config);
        bench.link = Link::new(config, Dice::new(seed, 0));
        (0..100_000).for_each(|now_ns| bench.put(now_ns, 100));
        let lost = bench.link.stats().lost;
        assert!((850..1150).contains(&lost), "{lost} of about 1000");
        assert_eq!(bench.drops.len() as u64, lost);
        bench.drain()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn another_loss_does_not_change_the_delays_of_packets() {
    let run = |loss| {
        let jitter = LinkConfig { delay_ns: 5 * MS, jitter_ns: MS, ..LinkConfig::default() };
        let mut bench = Bench::new(LinkConfig { corrupt: loss, ..jitter });
        (0..1000).for_each(|n| bench.put(n * MS, 100));
        bench.drain()
    };
    assert_eq!(run(chance(0.)), run(chance(0.5)));
}

#[test]
fn a_correlated_loss_comes_in_bursts() {
    // Probability of a loss after a lost packet, divided by the overall loss probability.
    let bursts = |correlation: f64| {
        let correlation = Probability::new(correlation).unwrap();
        let loss = Loss::Random(Chance { correlation, ..chance(0.3) });
        let mut bench = Bench::new(LinkConfig { loss, ..LinkConfig::default() });
        (0..100_000).for_each(|now_ns| bench.put(now_ns, 100));
        let numbers: Vec<_> = bench.drops.iter().map(|drop| drop.item.number).collect();
        let pairs = numbers.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() as f64;
        let lost = numbers.len() as f64;
        (pairs / lost) / (lost / 100_000.)
    };
    let (independent, correlated) = (bursts(0.), bursts(0.5));
    assert!((0.95..1.05).contains(&independent), "{independent}");
    assert!(correlated > 2., "{correlated}");
}

#[test]
fn gilbert_elliott_loses_in_bursts_of_the_mean_length_of_its_bad_state() {
    let p = |number| Probability::new(number).unwrap();
    let loss = Loss::GilbertElliott {
        to_bad: p(0.01),
        to_good: p(0.25),
        in_bad: Probability::ALWAYS,
        in_good: Probability::NEVER,
    };
    let mut bench = Bench::new(LinkConfig { loss, ..LinkConfig::default() });
    (0..200_000).for_each(|now_ns| bench.put(now_ns, 100));
    // Fraction of time in the bad state: p / (p + r). Mean duration of that state: 1 / r.
    let lost = bench.drops.len() as f64;
    assert!((lost / 200_000. - 0.01 / 0.26).abs() < 0.003, "{lost}");
    let numbers: Vec<_> = bench.drops.iter().map(|drop| drop.item.number).collect();
    let bursts = 1 + numbers.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    assert!((3.6..4.4).contains(&(lost / bursts as f64)), "{lost} in {bursts} bursts");
}

#[test]
fn an_ecn_link_marks_what_can_be_marked_and_loses_the_rest() {
    let loss = Loss::Random(chance(1.));
    let mut bench = Bench::new(LinkConfig { loss, ecn: true, ..LinkConfig::default() });
    bench.put_marked(0, 100, Ecn::Ect0);
    bench.put_marked(0, 100, Ecn::NotEct);
    let out = bench.drain_items();
    assert_eq!((out.len(), out[0].1.ecn), (1, Ecn::Ce));
    let stats = bench.link.stats();
    assert_eq!((stats.marked, stats.lost, bench.drops.len()), (1, 1, 1));
}

#[test]
fn a_duplicate_follows_its_original_and_a_corrupt_packet_has_one_bit_flipped() {
    let always = chance(1.);
    let config = LinkConfig { duplicate: always, corrupt: always, ..LinkConfig::default() };
    let mut bench = Bench::new(config);
    bench.put(0, 10);
    bench.put(0, 10);
    let out = bench.drain_items();
    let numbers: Vec<_> = out.iter().map(|(_, item)| item.number).collect();
    assert_eq!(numbers, [0, 0, 1, 1]);
    assert!(out.iter().all(|(_, item)| item.flipped.len() == 1 && item.flipped[0] < 80));
    assert_eq!((bench.link.stats().duplicated, bench.link.stats().corrupted), (2, 4));
}

#[test]
fn numbered_losses_are_those_packets_alone() {
    let loss = Loss::Numbered { first: 3, count: 2 };
    let mut bench = Bench::new(LinkConfig { loss, ..LinkConfig::default() });
    (0..8).for_each(|n| bench.put(n * MS, 100));
    let out: Vec<_> = bench.drain().iter().map(|(number, _)| *number).collect();
    assert_eq!((out, bench.link.stats().lost), (vec![0, 1, 2, 5, 6, 7], 2));
    let all = Loss::Numbered { first: 1, count: u64::MAX };
    let mut bench = Bench::new(LinkConfig { loss: all, ..LinkConfig::default() });
    (0..3).for_each(|n| bench.put(n * MS, 100));
    assert_eq!(bench.drain().len(), 1);
}

#[test]
fn each_gap_th_packet_overtakes_the_others() {
    let reorder = LinkConfig { delay_ns: 10 * MS, reorder: chance(1.), ..LinkConfig::default() };
    let mut bench = Bench::new(LinkConfig { gap: 5, ..reorder });
    (0..10).for_each(|n| bench.put(n * MS, 100));
    let out = bench.drain();
    assert_eq!(
        out.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        [4, 9, 0, 1, 2, 3, 5, 6, 7, 8]
    );
    assert_eq!((out[0], out[2]), ((4, 4 * MS), (0, 10 * MS)));
    assert_eq!(bench.link.stats().reordered, 2);
}

#[test]
fn jitter_stays_within_its_bounds_and_keeps_the_order_if_told_to() {
    for keeps_order in [false, true] {
        let jitter = LinkConfig { delay_ns: 5 * MS, jitter_ns: 2 * MS, ..LinkConfig::default() };
        let mut bench = Bench::new(LinkConfig { keeps_order, ..jitter });
        (0..5000).for_each(|n| bench.put(n * MS / 10, 100));
        let out = bench.drain();
        let delays = out.iter().map(|(number, now_ns)| now_ns - number * MS / 10);
        let (min, max) = (delays.clone().min().unwrap(), delays.max().unwrap());
        assert!((3 * MS..=7 * MS).contains(&min) && (3 * MS..=7 * MS).contains(&max));
        assert!(keeps_order || max - min > 3 * MS, "{min} to {max}");
        assert_eq!(out.is_sorted_by_key(|(number, _)| *number), keeps_order);
    }
}

#[test]
fn correlated_jitter_changes_slowly() {
    let step = |correlation| {
        let jitter = LinkConfig { delay_ns: 5 * MS, jitter_ns: 2 * MS, ..LinkConfig::default() };
        let jitter_correlation = Probability::new(correlation).unwrap();
        let mut bench = Bench::new(LinkConfig { jitter_correlation, ..jitter });
        (0..2000).for_each(|n| bench.put(n * 10 * MS, 100));
        let delays: Vec<_> = bench.drain().iter().map(|(n, now_ns)| now_ns - n * 10 * MS).collect();
        delays.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum::<u64>() / 2000
    };
    assert!(step(0.9) < step(0.) / 4, "{} and {}", step(0.9), step(0.));
}

#[test]
fn a_jitter_longer_than_the_delay_never_delivers_before_the_packet_came() {
    let config = LinkConfig { delay_ns: MS, jitter_ns: 5 * MS, ..LinkConfig::default() };
    let mut bench = Bench::new(config);
    (0..1000).for_each(|n| bench.put(n * MS, 100));
    assert!(bench.drain().iter().all(|(number, now_ns)| *now_ns >= number * MS));
}

mod properties {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    use super::*;

    fn configs() -> impl Strategy<Value = LinkConfig> {
        let some = |n: u64| prop_oneof![Just(0), 0..n];
        let chances = || prop_oneof![Just(0.), Just(1.), 0f64..0.5];
        let rate = prop::option::of(1000u64..1_000_000_000);
        let limit = prop::option::of(0usize..50);
        let mtu = prop::option::of(100usize..1500);
        let all = (chances(), chances(), chances(), chances(), any::<bool>(), any::<bool>());
        (rate, some(20 * MS), some(20 * MS), limit, mtu, all, 0u32..5).prop_map(
            |(rate, delay_ns, jitter_ns, limit, mtu, all, gap)| {
                let (lost, duplicate, corrupt, reorder, keeps_order, ecn) = all;
                LinkConfig {
                    rate,
                    delay_ns,
                    jitter_ns,
                    jitter_correlation: Probability::NEVER,
                    keeps_order,
                    loss: Loss::Random(chance(lost)),
                    ecn,
                    duplicate: chance(duplicate),
                    corrupt: chance(corrupt),
                    reorder: chance(reorder),
                    gap,
                    mtu,
                    limit,
                }
            },
        )
    }

    /// Packets with the time since the previous one in ns, their length, and whether to poll after
    /// each.
    fn arrivals() -> impl Strategy<Value = Vec<(u64, usize, bool)>> {
        prop::collection::vec((0..3 * MS, 0usize..2000, any::<bool>()), 1..80)
    }

    #[test]
    fn every_packet_and_copy_comes_out_is_held_or_is_dropped_exactly_once() {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
        let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng);
        let run = |(config, arrivals): (LinkConfig, Vec<(u64, usize, bool)>)| {
            let mut bench = Bench::new(config);
            let (mut now_ns, mut out) = (0, Vec::new());
            for &(after_ns, bytes, polls) in &arrivals {
                now_ns += after_ns;
                bench.put_marked(now_ns, bytes, if polls { Ecn::Ect0 } else { Ecn::NotEct });
                while polls && let Some(item) = bench.link.poll_packet(now_ns, &mut bench.drops) {
                    out.push(item);
                }
                let (stats, held) = (bench.link.stats(), bench.link.held() as u64);
                prop_assert_eq!(stats.dropped(), bench.drops.len() as u64);
                prop_assert_eq!(stats.delivered, out.len() as u64);
                prop_assert_eq!(
                    stats.entered + stats.duplicated,
                    stats.delivered + stats.dropped() + held
                );
            }
            out.extend(bench.drain_items().into_iter().map(|(_, item)| item));
            prop_assert_eq!((bench.link.held(), bench.link.held_bytes()), (0, 0));
            let dropped = bench.drops.iter().map(|drop| drop.item.number);
            let mut seen = BTreeMap::<u64, u64>::new();
            for number in out.iter().map(|item| item.number).chain(dropped) {
                *seen.entry(number).or_default() += 1;
            }
            prop_assert_eq!(seen.len(), arrivals.len());
            prop_assert!(seen.values().all(|count| (1..=2).contains(count)));
            let copies = seen.values().filter(|count| **count == 2).count() as u64;
            prop_assert_eq!(copies, bench.link.stats().duplicated);
            let no_jitter = config.jitter_ns == 0 || config.keeps_order;
            if no_jitter && config.reorder == Chance::default() {
                prop_assert!(out.is_sorted_by_key(|item| item.number));
            }
            Ok(())
        };
        runner.run(&(configs(), arrivals()), run).unwrap();
    }
}
