//! Queueing disciplines decide which packet leaves next, which is marked, and which is dropped.
//!
//! No I/O, no clock, no threads: `now_ns` is an argument, as for a [`Port`](towpath_pool::Port). A
//! discipline that draws lots has a [`Dice`] with a seed. The same calls give the same answers.
//! Names of parameters and of counters are those of tc(8).
//!
//! # The caller's duty
//! * [`Qdisc::enqueue`] an item and [`Qdisc::dequeue`] the next one, with times that never go back.
//! * Both put the items that they drop into a list of [`Dropped`] ones; the caller counts these and
//!   reuses their memory.
//! * [`Qdisc::dequeue`] gives nothing although items wait: call again at
//!   [`Qdisc::next_timeout_ns`].
//!
//! Disciplines are generic over [`Queueable`] items, so that tests queue numbers, a simulator
//! queues packets with notes of its own, and a port queues [`QueuedPacket`]s.
//!
//! # Example
//! ```
//! use towpath_qdisc::{Fifo, Qdisc, Queueable};
//!
//! struct Item(usize);
//!
//! impl Queueable for Item {
//!     fn bytes(&self) -> usize {
//!         self.0
//!     }
//! }
//!
//! let (mut queue, mut drops) = (Fifo::packets(2), Vec::new());
//! for bytes in [100, 200, 300] {
//!     queue.enqueue(0, Item(bytes), &mut drops);
//! }
//! assert_eq!(drops[0].item.0, 300);
//! assert_eq!(queue.dequeue(5, &mut drops).map(|item| item.0), Some(100));
//! assert_eq!((queue.stats().backlog_packets, queue.stats().backlog_bytes), (1, 200));
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dice;
mod fifo;
mod item;
mod packet;
mod stats;

pub use dice::Dice;
pub use fifo::Fifo;
pub use item::{Ecn, Queueable};
pub use packet::QueuedPacket;
pub use stats::{Counter, DropCause, Dropped, Stats};

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

    fn kind(&self) -> &'static str {
        (**self).kind()
    }
}
