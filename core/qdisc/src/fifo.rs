//! First in, first out: pfifo and bfifo.

use std::collections::VecDeque;

use crate::{DropCause, Dropped, Qdisc, Queueable, Stats};

/// A FIFO queue that is limited by packets (pfifo) or by bytes (bfifo). Items that do not fit are
/// dropped.
#[derive(Debug)]
pub struct Fifo<T> {
    queue: VecDeque<T>,
    limit: Limit,
    stats: Stats,
}

/// Maximum size of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Packets(usize),
    Bytes(usize),
}

impl<T: Queueable> Fifo<T> {
    /// Creates a pfifo queue with at most `limit` packets.
    pub fn packets(limit: usize) -> Self {
        Self::new(Limit::Packets(limit))
    }

    /// Creates a bfifo queue with at most `limit` bytes.
    pub fn bytes(limit: usize) -> Self {
        Self::new(Limit::Bytes(limit))
    }

    fn new(limit: Limit) -> Self {
        Self { queue: VecDeque::new(), limit, stats: Stats::default() }
    }

    fn fits(&self, bytes: usize) -> bool {
        match self.limit {
            Limit::Packets(limit) => self.queue.len() < limit,
            Limit::Bytes(limit) => {
                self.stats.backlog_bytes.saturating_add(bytes as u64) <= limit as u64
            }
        }
    }
}

impl<T: Queueable> Qdisc<T> for Fifo<T> {
    fn enqueue(&mut self, _now_ns: u64, item: T, drops: &mut Vec<Dropped<T>>) {
        let bytes = item.bytes();
        let fits = self.fits(bytes);
        self.stats.offer(bytes);
        if fits {
            self.queue.push_back(item);
        } else {
            self.stats.drop(bytes);
            self.stats.overlimits += 1;
            drops.push(Dropped { item, cause: DropCause::Overlimit });
        }
    }

    fn dequeue(&mut self, _now_ns: u64, _drops: &mut Vec<Dropped<T>>) -> Option<T> {
        let item = self.queue.pop_front()?;
        self.stats.send(item.bytes());
        Some(item)
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn memory_bytes(&self) -> u64 {
        (self.queue.capacity() * size_of::<T>()) as u64
    }

    fn kind(&self) -> &'static str {
        match self.limit {
            Limit::Packets(_) => "pfifo",
            Limit::Bytes(_) => "bfifo",
        }
    }
}
