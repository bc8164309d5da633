//! A FIFO queue that records when its items arrived.

use std::collections::VecDeque;

use crate::Queueable;

/// A FIFO queue of items with their arrival times in nanoseconds, and the total length of the
/// items.
#[derive(Debug)]
pub(crate) struct TimedQueue<T> {
    items: VecDeque<(u64, T)>,
    bytes: u64,
}

impl<T: Queueable> TimedQueue<T> {
    pub(crate) fn new() -> Self {
        Self { items: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory allocated for the items in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.items.capacity() * size_of::<(u64, T)>()) as u64
    }

    pub(crate) fn push(&mut self, now_ns: u64, item: T) {
        self.bytes += item.bytes() as u64;
        self.items.push_back((now_ns, item));
    }

    /// Removes the first item, and returns it with its arrival time in nanoseconds.
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        let (since_ns, item) = self.items.pop_front()?;
        self.bytes -= item.bytes() as u64;
        Some((since_ns, item))
    }
}
