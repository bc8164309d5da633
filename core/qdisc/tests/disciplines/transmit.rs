//! Tests of flow control and byte queue limits, with hand-computed results.

use towpath_qdisc::{
    Completed, Device, Fifo, QueueLimits, QueueLimitsConfig, TransmitPath, TransmitQueue,
};

use crate::item::{MS, Numbered};

fn limits(hold_time_ns: u64) -> QueueLimits {
    QueueLimits::new(QueueLimitsConfig { hold_time_ns, ..QueueLimitsConfig::default() })
}

#[test]
fn a_limit_grows_by_half_of_a_report_after_which_the_device_ran_dry() {
    let mut limits = limits(1_000 * MS);
    let mut seen = Vec::new();
    for report in 1..=4 {
        while limits.has_room() {
            limits.on_queued(1000);
        }
        let sent = limits.state().inflight;
        limits.on_completed(report * MS, sent);
        seen.push((sent, limits.state().limit));
    }
    assert_eq!(seen, [(1000, 500), (1000, 1000), (2000, 2000), (3000, 3500)]);
}

#[test]
fn a_device_runs_dry_in_several_reports_while_its_sender_is_late() {
    let mut limits = limits(1_000 * MS);
    limits.on_queued(4_000);
    limits.on_completed(1, 3_000);
    limits.on_completed(2, 1_000);
    assert_eq!(limits.state().limit, 2_000, "half of both reports");
    // A sender that was in time was not limited.
    limits.on_queued(3_000);
    limits.on_completed(3, 2_000);
    limits.on_queued(500);
    limits.on_completed(4, 1_500);
    assert_eq!(limits.state().limit, 2_000);
}

#[test]
fn a_device_that_ran_dry_for_want_of_packets_leaves_the_limit_alone() {
    let config = QueueLimitsConfig { limit_min: 5000, ..QueueLimitsConfig::default() };
    let mut limits = QueueLimits::new(config);
    for report in 0..100 {
        limits.on_queued(4000);
        limits.on_completed(report * MS, 4000);
    }
    assert_eq!(limits.state().limit, 5000);
}

#[test]
fn a_limit_shrinks_by_the_least_slack_of_the_hold_time() {
    let config =
        QueueLimitsConfig { limit_min: 10_000, hold_time_ns: 10 * MS, ..Default::default() };
    let mut limits = QueueLimits::new(QueueLimitsConfig { limit_min: 2_000, ..config });
    // After the report of a burst, the limit is 12,500.
    limits.on_queued(21_000);
    limits.on_completed(0, 21_000);
    assert_eq!(limits.state().limit, 12_500);
    for (at, sent) in [(1, 4_000), (2, 7_000), (5, 5_000)] {
        while limits.has_room() {
            limits.on_queued(1_000);
        }
        limits.on_completed(at * MS, sent);
    }
    // Slack: 13,000 bytes in flight, less 500 above the limit, less 7,000 that were needed.
    assert_eq!(limits.state().slack, 5_500);
    while limits.has_room() {
        limits.on_queued(1_000);
    }
    limits.on_completed(11 * MS, 4_000);
    let state = limits.state();
    assert_eq!((state.limit, state.slack), (7_000, 0), "what the worst interval needed");
}

#[test]
fn bounds_hold() {
    let config = QueueLimitsConfig { limit_min: 3_000, limit_max: 4_000, hold_time_ns: MS };
    let mut limits = QueueLimits::new(config);
    for report in 1..50 {
        while limits.has_room() {
            limits.on_queued(1_500);
        }
        // Every seventh report empties the device; the other ones leave most bytes.
        let sent = if report % 7 == 0 { limits.state().inflight } else { 100 };
        limits.on_completed(report * MS, sent);
        let limit = limits.state().limit;
        assert!((3_000..=4_000).contains(&limit), "{limit}");
    }
    limits.on_completed(60 * MS, u64::MAX);
    assert_eq!(limits.state().inflight, 0, "a report of more than was there counts as all");
}

#[test]
fn a_queue_has_two_reasons_to_stop_and_both_must_end() {
    let limits = QueueLimitsConfig { limit_min: 2_000, limit_max: 2_000, hold_time_ns: MS };
    let mut queue = TransmitQueue::new(2, Some(limits));
    queue.on_queued(1_500, 1);
    assert!(!queue.is_stopped());
    queue.on_queued(1_500, 0);
    let stats = queue.stats();
    assert_eq!((stats.stops, stats.limit_stops, queue.bytes_left()), (1, 1, Some(0)));
    queue.on_completed(MS, Completed { packets: 1, bytes: 1_500 }, 1);
    assert!(queue.is_stopped(), "the bytes have room, a descriptor is not enough");
    queue.on_completed(MS, Completed { packets: 1, bytes: 1_500 }, 2);
    assert!(!queue.is_stopped());
    let stats = queue.stats();
    assert_eq!((stats.wakes, stats.completed_packets, queue.inflight()), (1, 2, 0));
}

/// A device with three descriptors whose reports the test triggers.
struct Manual {
    taken: Vec<u64>,
    unreported: Completed,
    is_due: bool,
}

impl Device<Numbered> for Manual {
    fn room(&self) -> usize {
        3 - self.unreported.packets
    }

    fn transmit(&mut self, _: u64, item: Numbered) -> Result<(), Numbered> {
        self.taken.push(item.number);
        self.unreported.packets += 1;
        self.unreported.bytes += item.bytes as u64;
        Ok(())
    }

    fn poll_completed(&mut self, _: u64) -> Completed {
        if self.is_due { std::mem::take(&mut self.unreported) } else { Completed::default() }
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }
}

#[test]
fn packets_wait_in_the_discipline_while_the_queue_is_stopped() {
    let device = Manual { taken: Vec::new(), unreported: Completed::default(), is_due: false };
    let queue = TransmitQueue::new(3, None);
    let mut path = TransmitPath::new(Box::new(Fifo::packets(4)), queue, device);
    let mut drops = Vec::new();
    assert_eq!(path.room(1_000), 3);
    for number in 0..8 {
        path.enqueue(0, Numbered::new(number, 1_000), &mut drops);
        path.run(0, &mut drops);
    }
    assert_eq!(path.device().taken, [0, 1, 2]);
    assert_eq!((path.room(1_000), path.qdisc().stats().backlog_packets), (0, 4));
    let dropped: Vec<u64> = drops.iter().map(|drop| drop.item.number).collect();
    assert_eq!(dropped, [7], "the discipline drops, not the device");
    path.device_mut().is_due = true;
    path.run(MS, &mut drops);
    assert_eq!(path.device().taken, [0, 1, 2, 3, 4, 5]);
    assert_eq!(path.next_timeout_ns(), None, "the device is full, and has no time of its own");
    path.run(2 * MS, &mut drops);
    assert_eq!((path.device().taken.len(), path.qdisc().stats().backlog_packets), (7, 0));
    assert_eq!(path.queue().stats().wakes, 2);
}

#[test]
fn a_sender_with_a_queue_of_its_own_is_told_how_many_packets_there_is_room_for() {
    let limits = QueueLimitsConfig { limit_min: 2_000, limit_max: 2_000, hold_time_ns: MS };
    let device = Manual { taken: Vec::new(), unreported: Completed::default(), is_due: false };
    let queue = TransmitQueue::new(1, Some(limits));
    let mut path = TransmitPath::new(Box::new(Fifo::packets(9)), queue, device);
    let mut drops = Vec::new();
    // The third packet would start at 2,000 bytes in flight, which does not exceed the limit yet.
    assert_eq!((path.room(1_000), path.room(1_500), path.room(9_000)), (3, 2, 1));
    for (number, room) in [(0, 2), (1, 1), (2, 0)] {
        path.enqueue(0, Numbered::new(number, 1_000), &mut drops);
        path.run(0, &mut drops);
        assert_eq!(path.room(1_000), room);
    }
    assert_eq!(path.device().taken, [0, 1, 2]);
}
