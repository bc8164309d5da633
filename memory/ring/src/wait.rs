//! Sleeping on one socket.

use std::time::Duration;

use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::Slot;

use crate::protocol;

/// A thread that waits for something to happen to one slot. In this order, or wake-ups get lost:
/// [`Waiter::new`], look whether there is still nothing, [`Waiter::sleep`], look again, and so on.
#[derive(Debug)]
pub struct Waiter<'a> {
    slot: &'a Slot,
    seq: u32,
}

impl<'a> Waiter<'a> {
    /// Says that this thread is about to sleep.
    pub fn new(slot: &'a Slot) -> Self {
        Self { slot, seq: protocol::enter(&slot.event_seq, &slot.asleep) }
    }

    /// For a thread that sleeps where whatever wakes it is its own doing: nobody is asked to wake
    /// it.
    pub fn unasked(slot: &'a Slot) -> Self {
        Self { slot, seq: slot.event_seq.load(Ordering::Acquire) }
    }

    /// For those who sleep otherwise: the word to sleep on, and what it has to be then. Before
    /// another look and sleep: [`Waiter::new`].
    pub fn word(&self) -> (&'a AtomicU32, u32) {
        (&self.slot.event_seq, self.seq)
    }

    /// Sleeps until something happened after the last `new` or `sleep`, a signal handler ran, or
    /// `timeout` has passed (None: no limit). The reason returned is a hint: futex(2) has spurious
    /// wake-ups.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Woken {
        let woken = futex::wait(&self.slot.event_seq, self.seq, timeout);
        *self = Self::new(self.slot);
        woken
    }
}

/// Engine: something about the slot was published; wakes the threads that sleep on it. True: one
/// had said that it sleeps (and may have been killed since).
pub fn wake(slot: &Slot) -> bool {
    let wake = protocol::signal(&slot.event_seq, &slot.asleep);
    if wake {
        futex::wake(&slot.event_seq, u32::MAX >> 1);
    }
    wake
}
