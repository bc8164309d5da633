//! The trait of all queueing disciplines.

use crate::{Counter, Dropped, Queueable, Stats};

/// A queueing discipline for items of type `T`.
///
/// Times are in ns of a clock that never goes back. `drops` collects dropped items: the new one, or
/// others that make room for it.
pub trait Qdisc<T: Queueable>: Send {
    /// Queues an item; may drop it or other items.
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>);

    /// Returns the next item to send.
    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T>;

    /// Returns the time of the next [`Qdisc::dequeue`] that can return an item, after one that
    /// returned none although items wait. Returns `None` if the discipline is empty, or an item may
    /// be sent now.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Returns counters of enqueued, sent, dropped and waiting items.
    fn stats(&self) -> Stats;

    /// Returns counters and state specific to this discipline, named as in `tc -s qdisc show`.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Returns the memory of tables and queues in bytes, without memory owned by the items.
    fn memory_bytes(&self) -> u64;

    /// Returns the name in tc(8), such as "fq_codel".
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
