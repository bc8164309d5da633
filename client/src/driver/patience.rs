//! Limit on how long a waiting thread turns the engine without events for itself.

/// Number of wake-ups without an event for the thread after which it retires. Low, so that an idle
/// thread costs little; higher than the usual number in a row if several threads are busy.
const IN_VAIN_MAX: u32 = 8;

/// Patience of a driver during one wait.
///
/// Packets of a busy socket should not wake a thread whose own socket is idle. So a thread retires
/// if it has often turned the engine without an event for itself, while other threads began to wait
/// or sent commands. A retired thread sleeps until its wait ends, as if the engine ran elsewhere.
/// The thread does not take the driver lock, and is not woken when that is free. Other threads take
/// the lock at their next wait; until then the stand-by thread turns the engine. Without a stand-by
/// thread no thread retires.
#[derive(Debug, Default)]
pub struct Patience {
    in_vain: u32,
    /// Value of [`Relay::wanted`](towpath_ring::Relay::wanted) after this thread's last turn, or
    /// `None` before the first one.
    wanted: Option<u32>,
}

impl Patience {
    /// Returns whether the thread has retired.
    pub fn has_ended(&self) -> bool {
        self.in_vain >= IN_VAIN_MAX
    }

    /// Counts a turn without an event for this thread, if another thread needed the turn. `wanted`
    /// is the value of [`Relay::wanted`](towpath_ring::Relay::wanted), which then has changed.
    pub(super) fn has_turned(&mut self, wanted: u32) {
        if self.wanted.replace(wanted).is_some_and(|before| before != wanted) {
            self.wears();
        }
    }

    /// Counts a wake-up without an event for this thread.
    pub(super) fn wears(&mut self) {
        self.in_vain += 1;
    }

    /// Ends retirement until the next turn in vain. Called when the thread was woken to take the
    /// free driver lock.
    pub fn renew(&mut self) {
        self.in_vain = self.in_vain.min(IN_VAIN_MAX - 1);
    }
}
