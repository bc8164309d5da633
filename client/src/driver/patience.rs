//! Limits how long a waiting thread runs the engine (network stack) without events for itself.

/// Number of wake-ups without an event for the thread after which the thread stops running the
/// engine. The number is low, so that an idle thread costs little. If several threads are busy, the
/// number is usually not reached.
const IN_VAIN_MAX: u32 = 8;

/// Counts how often a waiting thread has run the engine (network stack) without an event for
/// itself, during one wait.
///
/// Packets of a busy socket should not wake a thread whose own socket is idle. Therefore a thread
/// retires if it has often run the engine without an event for itself, while other threads waited
/// or sent commands. A retired thread sleeps until its wait ends, as if the engine were in another
/// process. The thread does not take the driver lock, and is not woken when the lock is free. Until
/// another thread waits and takes the lock, the stand-by thread runs the engine. Without a stand-by
/// thread, no thread retires.
#[derive(Debug, Default)]
pub struct Patience {
    in_vain: u32,
    /// Value of [`Relay::wanted`](towpath_ring::Relay::wanted) after this thread last ran the
    /// engine; `None` before.
    wanted: Option<u32>,
}

impl Patience {
    /// Returns whether the thread has retired: it must not run the engine during this wait any
    /// more.
    pub fn has_ended(&self) -> bool {
        self.in_vain >= IN_VAIN_MAX
    }

    /// Counts an iteration of the engine's event loop without an event for this thread, if another
    /// thread needed the iteration. Another thread needed it if `wanted`, the value of
    /// [`Relay::wanted`](towpath_ring::Relay::wanted), has changed.
    pub(super) fn has_turned(&mut self, wanted: u32) {
        if self.wanted.replace(wanted).is_some_and(|before| before != wanted) {
            self.wears();
        }
    }

    /// Counts a wake-up of this thread that brought no event for it.
    pub(super) fn wears(&mut self) {
        self.in_vain += 1;
    }

    /// Allows a retired thread, which has stopped running the engine, to run it again. The
    /// permission ends at the next iteration of the event loop without an event for the thread.
    /// Called when the thread was woken to take the free driver lock (the right to run the engine).
    pub fn renew(&mut self) {
        self.in_vain = self.in_vain.min(IN_VAIN_MAX - 1);
    }
}
