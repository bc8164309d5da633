//! Tests of pfifo and bfifo.

use towpath_qdisc::{Fifo, Qdisc};

use crate::item::{Bench, Numbered};

#[test]
fn a_pfifo_keeps_the_order_and_drops_at_its_tail() {
    let mut bench = Bench::new(Fifo::packets(3));
    (0..5).for_each(|n| bench.put(n, Numbered::new(n, 100)));
    assert_eq!(bench.dropped(), [3, 4]);
    let sent: Vec<_> = std::iter::from_fn(|| bench.take(9)).collect();
    assert_eq!(sent, [0, 1, 2]);
    assert_eq!(bench.queue.kind(), "pfifo");
}

#[test]
fn a_bfifo_takes_a_packet_that_fits_behind_one_that_does_not() {
    let mut bench = Bench::new(Fifo::bytes(1000));
    for (number, bytes) in [(0, 600), (1, 500), (2, 400), (3, 1)] {
        bench.put(0, Numbered::new(number, bytes));
    }
    assert_eq!(bench.dropped(), [1, 3]);
    let stats = bench.queue.stats();
    assert_eq!((stats.backlog_packets, stats.backlog_bytes), (2, 1000));
    assert_eq!((stats.dropped, stats.dropped_bytes, stats.overlimits), (2, 501, 2));
    assert_eq!(bench.queue.kind(), "bfifo");
}
