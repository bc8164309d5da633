//! Tests of mq.

use towpath_qdisc::{Fifo, Mq, Qdisc};

use crate::item::{Bench, Numbered};

fn bench(queues: usize) -> Bench<Mq<Numbered>> {
    let fifo = |_| Box::new(Fifo::packets(2)) as Box<dyn Qdisc<Numbered>>;
    Bench::new(Mq::new((0..queues).map(fifo).collect()))
}

#[test]
fn a_flow_is_always_in_the_same_queue_and_queues_are_served_in_turn() {
    let mut bench = bench(4);
    // The upper bits of the hash select the queue.
    for (number, flow) in [(0, 0), (1, 1), (2, u32::MAX), (3, u32::MAX / 2)] {
        bench.put(0, Numbered { flow, ..Numbered::new(number, 100) });
    }
    let lengths = bench.queue.queues().iter().map(|queue| queue.stats().backlog_packets);
    assert_eq!(lengths.collect::<Vec<_>>(), [2, 1, 0, 1]);
    let sent: Vec<_> = std::iter::from_fn(|| bench.take(0)).collect();
    assert_eq!(sent, [0, 3, 2, 1]);
    assert_eq!(bench.queue.stats().sent_packets, 4);
}

#[test]
fn a_full_queue_drops_while_others_have_room_and_a_device_takes_from_one() {
    let mut bench = bench(2);
    (0..3).for_each(|n| bench.put(0, Numbered::new(n, 100)));
    bench.put(0, Numbered { flow: u32::MAX, ..Numbered::new(9, 100) });
    assert_eq!(bench.dropped(), [2]);
    let mut drops = Vec::new();
    let taken = bench.queue.dequeue_from(1, 0, &mut drops);
    assert_eq!(taken.map(|item| item.number), Some(9));
    assert!(bench.queue.dequeue_from(1, 0, &mut drops).is_none());
    assert!(bench.queue.dequeue_from(2, 0, &mut drops).is_none());
}
