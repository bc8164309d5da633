//! The trait of all queueing disciplines.

use crate::{Counter, Dropped, Queueable, Stats};

/// A queueing discipline for items of type `T`.
///
/// Times are in nanoseconds of a clock that never goes backward. Each dropped item is appended to
/// `drops`. If the queue is full, this is the new item, or older items that are dropped to make
/// room.
pub trait Qdisc<T: Queueable>: Send {
    /// Enqueues an item. May drop this item or other items, which are appended to `drops`.
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>);

    /// Removes and returns the next item to send.
    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T>;

    /// Returns the time in nanoseconds at which [`Qdisc::dequeue`] can return an item, if its last
    /// call returned none although items wait. Returns `None` if no items wait, or if one may be
    /// sent now.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Returns counters of the enqueued, sent, dropped and waiting items.
    fn stats(&self) -> Stats;

    /// Returns counters and state specific to this discipline, named as in `tc -s qdisc show`.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Returns the memory that tables and queues use, in bytes. Memory owned by the items is not
    /// included.
    fn memory_bytes(&self) -> u64;

    /// Returns the name of the queueing discipline in tc(8), such as "fq_codel".
    fn kind(&self) -> &'static str;
}

impl<T: Queueable, Q: Qdisc<T> + ?Sized> Qdisc<T> for Box<Q> {
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        (**self).enqueue(now_ns, item, drops);
    }

    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T> {
        (**self).dequeue(now_ns, drops)
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        (**self).next_timeout_ns()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn counters(&self) -> Vec<Counter> {
        (**self).counters()
    }

    fn memory_bytes(&self) -> u64 {
        (**self).memory_bytes()
    }

    fn kind(&self) -> &'static str {
        (**self).kind()
    }
}
