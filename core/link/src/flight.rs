//! Packets in transit, ordered by delivery time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// Packets in transit on a link. A queue contains packets that are delivered in sending order. A
/// heap contains packets that may overtake earlier ones.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    in_order: VecDeque<Flying<T>>,
    early: BinaryHeap<Reverse<Flying<T>>>,
    /// Sequence number of the next packet. The packet with the lowest number is delivered first if
    /// several have the same delivery time.
    next: u64,
}

#[derive(Debug)]
struct Flying<T> {
    due_ns: u64,
    number: u64,
    item: T,
}

impl<T> Flight<T> {
    pub(crate) fn new() -> Self {
        Self { in_order: VecDeque::new(), early: BinaryHeap::new(), next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.early.len()
    }

    pub(crate) fn push(&mut self, due_ns: u64, item: T) {
        let flying = Flying { due_ns, number: self.next, item };
        self.next += 1;
        match self.in_order.back() {
            Some(last) if last.due_ns > due_ns => self.early.push(Reverse(flying)),
            _ => self.in_order.push_back(flying),
        }
    }

    /// Returns the earliest delivery time of the packets in transit, in nanoseconds.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let first = self.in_order.front().map(|flying| flying.due_ns);
        let early = self.early.peek().map(|Reverse(flying)| flying.due_ns);
        [first, early].into_iter().flatten().min()
    }

    /// Removes and returns the next packet if its delivery time is reached.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<T> {
        let first = self.in_order.front();
        let early = self.early.peek().map(|Reverse(flying)| flying);
        let is_early = match (first, early) {
            (Some(first), Some(early)) => early < first,
            (first, _) => first.is_none(),
        };
        let next = if is_early { early } else { first }?;
        if next.due_ns > now_ns {
            return None;
        }
        let flying = if is_early {
            self.early.pop().map(|Reverse(flying)| flying)
        } else {
            self.in_order.pop_front()
        };
        flying.map(|flying| flying.item)
    }
}

impl<T> PartialEq for Flying<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Flying<T> {}

impl<T> PartialOrd for Flying<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Flying<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due_ns, self.number).cmp(&(other.due_ns, other.number))
    }
}
