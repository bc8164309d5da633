//! Lets a thread sleep until an event of one socket.

use std::time::Duration;

use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::Slot;

use crate::protocol;

/// A thread that waits for an event of one socket. To avoid lost wake-ups, create it with
/// [`Waiter::new`], check the condition, call [`Waiter::sleep`], check again, and so on.
#[derive(Debug)]
pub struct Waiter<'a> {
    slot: &'a Slot,
    seq: u32,
}

impl<'a> Waiter<'a> {
    /// Announces that this thread is about to sleep until an event of the socket in `slot`.
    pub fn new(slot: &'a Slot) -> Self {
        Self { slot, seq: protocol::enter(&slot.event_seq, &slot.asleep) }
    }

    /// Creates a waiter without announcing a sleep, for a thread whose own actions will change the
    /// futex word.
    pub fn unasked(slot: &'a Slot) -> Self {
        Self { slot, seq: slot.event_seq.load(Ordering::Acquire) }
    }

    /// Returns the futex word and its expected value, for callers that wait for several futexes.
    /// Call [`Waiter::new`] again before the next check and wait.
    pub fn word(&self) -> (&'a AtomicU32, u32) {
        (&self.slot.event_seq, self.seq)
    }

    /// Sleeps until an event, a signal, or the end of `timeout` (`None` means no limit). Returns at
    /// once if an event has occurred since the last `new` or `sleep`. The returned reason is only a
    /// hint, because futex(2) has spurious wake-ups.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Woken {
        let woken = futex::wait(&self.slot.event_seq, self.seq, timeout);
        *self = Self::new(self.slot);
        woken
    }
}

/// Wakes the threads that wait for the socket in `slot`, after the engine has published an event.
/// Returns true if a thread had announced a sleep, although it may have been killed since.
pub fn wake(slot: &Slot) -> bool {
    let wake = protocol::signal(&slot.event_seq, &slot.asleep);
    if wake {
        futex::wake(&slot.event_seq, u32::MAX >> 1);
    }
    wake
}
