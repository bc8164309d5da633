//! Tests of tbf.

use towpath_qdisc::{DropCause, Qdisc, Tbf, TbfParams};

use crate::item::{Bench, Fate, MS, Numbered};

/// A byte takes one microsecond.
const PARAMS: TbfParams =
    TbfParams { rate: 8_000_000, burst: 3000, peakrate: None, mtu: 0, limit: 100_000 };

fn full(params: TbfParams) -> Bench<Tbf<Numbered>> {
    let mut bench = Bench::new(Tbf::new(params));
    (0..20).for_each(|n| bench.put(0, Numbered::new(n, 1000)));
    bench
}

/// Returns the departure times in µs, if the discipline is called at its timeouts.
fn times_us(bench: &mut Bench<Tbf<Numbered>>) -> Vec<u64> {
    let (mut now_ns, mut times) = (0, Vec::new());
    loop {
        while bench.take(now_ns).is_some() {
            times.push(now_ns / 1000);
        }
        match bench.queue.next_timeout_ns() {
            Some(next_ns) => now_ns = next_ns,
            None => return times,
        }
    }
}

#[test]
fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
    let times = times_us(&mut full(PARAMS));
    let expected: Vec<_> = (0..20u64).map(|n| (n * 1000).saturating_sub(2000)).collect();
    assert_eq!(times, expected);
}

#[test]
fn a_peak_rate_spreads_the_burst() {
    let params = TbfParams { peakrate: Some(16_000_000), mtu: 1000, ..PARAMS };
    let times = times_us(&mut full(params));
    assert_eq!(times[..6], [0, 500, 1000, 1500, 2000, 3000]);
}

#[test]
fn tokens_fill_the_bucket_and_no_more() {
    let mut bench = full(PARAMS);
    assert_eq!(std::iter::from_fn(|| bench.take(0)).count(), 3);
    assert_eq!(std::iter::from_fn(|| bench.take(100 * MS)).count(), 3);
    let (wait, overlimits) = (bench.queue.next_timeout_ns(), bench.queue.stats().overlimits);
    assert_eq!((wait, overlimits), (Some(101 * MS), 2));
}

#[test]
fn a_packet_that_no_bucket_holds_and_packets_beyond_the_limit_are_dropped() {
    let mut bench = Bench::new(Tbf::new(TbfParams { limit: 5000, ..PARAMS }));
    bench.put(0, Numbered::new(9, 3001));
    (0..6).for_each(|n| bench.put(0, Numbered::new(n, 1000)));
    let causes = bench.fates.iter().map(|fate| match fate {
        Fate::Dropped { number, cause, .. } => (*number, *cause),
        Fate::Sent { number, .. } => panic!("{number} was not taken yet"),
    });
    assert_eq!(causes.collect::<Vec<_>>(), [(9, DropCause::TooLong), (5, DropCause::Overlimit)]);
}
