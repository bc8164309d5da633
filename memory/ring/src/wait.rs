//! Sleeping on one socket.

use std::time::Duration;

use towpath_shm::atomic::Ordering;
use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::Slot;

use crate::lock::forks;
use crate::protocol;

/// A thread that waits for something to happen to one slot. In this order, or wake-ups get lost:
/// [`Waiter::new`], look whether there is still nothing, [`Waiter::sleep`], look again, and so on.
#[derive(Debug)]
pub struct Waiter<'a> {
    slot: &'a Slot,
    seq: u32,
    forks: u32,
}

impl<'a> Waiter<'a> {
    /// Counts this thread among the slot's waiters until dropped.
    pub fn new(slot: &'a Slot) -> Self {
        Self { slot, seq: protocol::enter(&slot.event_seq, &slot.waiters), forks: forks() }
    }

    /// Whether a signal handler has forked since [`Self::new`] and this is the child: it is not counted.
    pub fn is_parents(&self) -> bool {
        self.forks != forks()
    }

    /// Sleeps until something happened after the last `new` or `sleep`, or the time is up.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Woken {
        let woken = futex::wait(&self.slot.event_seq, self.seq, timeout);
        self.seq = self.slot.event_seq.load(Ordering::Acquire);
        woken
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.is_parents() {
            self.slot.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Engine: something about the slot was published; wakes who waits for it.
pub fn wake(slot: &Slot) {
    if protocol::signal(&slot.event_seq, &slot.waiters) {
        futex::wake(&slot.event_seq, u32::MAX >> 1);
    }
}
