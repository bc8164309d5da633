//! Tests of prio and pfifo_fast.

use towpath_qdisc::{Fifo, PRIOMAP, Prio, Qdisc, Tbf, TbfParams};

use crate::item::{Bench, MS, Numbered};

fn packet(number: u64, priority: u8) -> Numbered {
    Numbered { priority, ..Numbered::new(number, 100) }
}

#[test]
fn pfifo_fast_serves_bands_in_order_by_the_priomap_of_linux() {
    let mut bench = Bench::new(Prio::pfifo_fast(100));
    // Bulk, best effort, interactive, control.
    let priorities = [2, 0, 6, 7, 0, 2, 6];
    for (number, priority) in (0..).zip(priorities) {
        bench.put(0, packet(number, priority));
    }
    let sent: Vec<_> = std::iter::from_fn(|| bench.take(0)).collect();
    assert_eq!(sent, [2, 3, 6, 1, 4, 0, 5]);
    assert_eq!(bench.queue.kind(), "pfifo_fast");
}

#[test]
fn a_full_band_drops_while_others_have_room() {
    let mut bench = Bench::new(Prio::pfifo_fast(2));
    (0..4).for_each(|n| bench.put(0, packet(n, 6)));
    bench.put(0, packet(9, 0));
    assert_eq!(bench.dropped(), [2, 3]);
    assert_eq!(bench.queue.stats().backlog_packets, 3);
}

#[test]
fn a_priority_of_a_missing_band_goes_to_the_last_one() {
    let bands = vec![Box::new(Fifo::packets(9)) as _, Box::new(Fifo::packets(9)) as _];
    let mut bench = Bench::new(Prio::new(bands, PRIOMAP));
    bench.put(0, packet(0, 2));
    bench.put(0, packet(1, 6));
    assert_eq!([bench.take(0), bench.take(0)], [Some(1), Some(0)]);
}

#[test]
fn a_throttled_band_lets_the_next_one_send_and_says_when_it_may_again() {
    let params = TbfParams { rate: 800_000, burst: 100, peakrate: None, mtu: 0, limit: 10_000 };
    let bands = vec![Box::new(Tbf::new(params)) as _, Box::new(Fifo::packets(9)) as _];
    let mut bench = Bench::new(Prio::new(bands, PRIOMAP));
    for (number, priority) in [(0, 6), (1, 6), (2, 0)] {
        bench.put(0, packet(number, priority));
    }
    assert_eq!([bench.take(0), bench.take(0), bench.take(0)], [Some(0), Some(2), None]);
    assert_eq!(bench.queue.next_timeout_ns(), Some(MS));
    assert_eq!(bench.take(MS), Some(1));
}
