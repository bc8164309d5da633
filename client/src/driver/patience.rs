//! Limits how long a waiting thread runs the engine without events for itself.

/// Number of wake-ups without an event for the thread itself after which it no longer runs the
/// engine. Low, so that an idle thread costs little. Higher than the number that is usual if
/// several threads are busy.
const IN_VAIN_MAX: u32 = 8;

/// Counts how often a waiting thread has run the engine without an event for itself, during one
/// wait.
///
/// Packets of a busy socket should not wake a thread whose own socket is idle. So a thread retires
/// if it has often run the engine without an event for itself, while other threads began to wait or
/// sent commands. A retired thread sleeps until its wait ends, as if the engine were in another
/// process. The retired thread does not take the driver lock, and is not woken when the lock is
/// free. Other threads take the lock at their next wait; until then the stand-by thread runs the
/// engine. Without a stand-by thread, no thread retires.
#[derive(Debug, Default)]
pub struct Patience {
    in_vain: u32,
    /// Value that [`Relay::wanted`](towpath_ring::Relay::wanted) had after this thread's last turn
    /// of the engine. `None` before its first turn.
    wanted: Option<u32>,
}

impl Patience {
    /// Returns whether the thread has retired: it should no longer run the engine during this wait.
    pub fn has_ended(&self) -> bool {
        self.in_vain >= IN_VAIN_MAX
    }

    /// Counts a turn of the engine without an event for this thread, if another thread needed the
    /// turn. Another thread did so if `wanted`, the value of
    /// [`Relay::wanted`](towpath_ring::Relay::wanted), has changed.
    pub(super) fn has_turned(&mut self, wanted: u32) {
        if self.wanted.replace(wanted).is_some_and(|before| before != wanted) {
            self.wears();
        }
    }

    /// Counts a wake-up of this thread without an event for it.
    pub(super) fn wears(&mut self) {
        self.in_vain += 1;
    }

    /// Lets a retired thread run the engine again, until its next turn without an event for itself.
    /// Called when the thread was woken to take the free driver lock.
    pub fn renew(&mut self) {
        self.in_vain = self.in_vain.min(IN_VAIN_MAX - 1);
    }
}
