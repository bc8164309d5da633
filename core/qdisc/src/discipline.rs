//! The trait of all disciplines.

use crate::{Counter, Dropped, Queueable, Stats};

/// A queueing discipline for items of type `T`.
///
/// Times are ns on a clock that never goes back. `drops` collects the items that a call drops: the
/// one that was to be queued, or others that make room for it.
pub trait Qdisc<T: Queueable>: Send {
    /// Queues an item, or drops it or others.
    fn enqueue(&mut self, now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>);

    /// The next item that may leave.
    fn dequeue(&mut self, now_ns: u64, drops: &mut Vec<Dropped<T>>) -> Option<T>;

    /// Time of the next [`Qdisc::dequeue`] that can give an item, after one that gave none although
    /// items wait. None: the discipline is empty, or an item may leave at once.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Number and bytes of the items that went in, left, were dropped and wait.
    fn stats(&self) -> Stats;

    /// Counters and state that only this discipline has, by the names of `tc -s qdisc show`.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Bytes of the tables and of the room for items that the discipline has allocated, without
    /// what the items own.
    fn memory_bytes(&self) -> u64;

    /// Name in tc(8), as "fq_codel".
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
