//! mq: a separate queueing discipline for each hardware queue of a device.

use crate::{Counter, Dropped, Qdisc, Queueable, Stats};

/// The hardware queues of a device, each with its own queueing discipline. All packets of a flow
/// use the same queue.
pub struct Mq<T> {
    queues: Vec<Box<dyn Qdisc<T>>>,
    /// Index of the queue that is served next.
    next: usize,
}

impl<T: Queueable> Mq<T> {
    /// Creates an mq discipline from one queueing discipline for each hardware queue.
    ///
    /// # Panics
    /// If `queues` is empty, because packets could not be queued.
    pub fn new(queues: Vec<Box<dyn Qdisc<T>>>) -> Self {
        assert!(!queues.is_empty(), "mq needs a queue");
        Self { queues, next: 0 }
    }

    /// Returns the queueing disciplines of all hardware queues.
    pub fn queues(&self) -> &[Box<dyn Qdisc<T>>] {
        &self.queues
    }

    /// Removes and returns the next item of one hardware queue, for a device that serves its queues
    /// individually.
    pub fn dequeue_from(
        &mut self,
        queue: usize,
        now_ns: u64,
        drops: &mut Vec<Dropped<T>>,
    ) -> Option<T> {
        self.queues.get_mut(queue)?.dequeue(now_ns, drops)
    }
}

impl<T: Queueable> Qdisc<T> for Mq<T> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let count = self.queues.len() as u64;
        let queue = (u64::from(item.flow_hash()) * count) >> 32;
        self.queues[queue as usize].enqueue(now_ns, item, drops);
    }

    /// Removes and returns the next item. Serves the hardware queues in round-robin order, as a
    /// device serves its transmit rings.
    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        let count = self.queues.len();
        let order = (0..count).map(|n| (self.next + n) % count);
        for at in order {
            if let Some(item) = self.queues[at].dequeue(now_ns, drops) {
                self.next = (at + 1) % count;
                return Some(item);
            }
        }
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.next_timeout_ns()).min()
    }

    fn stats(&self) -> Stats {
        self.queues.iter().map(|queue| queue.stats()).fold(Stats::default(), Stats::plus)
    }

    fn counters(&self) -> Vec<Counter> {
        vec![("queues", self.queues.len() as u64)]
    }

    fn memory_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.memory_bytes()).sum()
    }

    fn kind(&self) -> &'static str {
        "mq"
    }
}
