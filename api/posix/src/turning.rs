//! Runs the engine (the network stack) in calls that wait for several descriptors, if the engine is
//! in this process ([`towpath_client::driver`]).

use towpath_client::driver::{DriverLock, ListSleeper, Patience, Turned, Who};
use towpath_client::{Client, Deadline};

/// State of a waiting thread that may run the event loop of an engine (network stack) in its
/// process.
#[derive(Debug, Default)]
pub(crate) struct ThreadTurning<'a> {
    /// The driver lock, held while this thread runs the event loop of the engine.
    pub driver_lock: Option<DriverLock<'a>>,
    patience: Patience,
}

/// Next step of a waiting thread.
pub(crate) enum WaitStep<'a> {
    /// Check the program's descriptors for events.
    Look,
    /// Sleep. Until the value is dropped, this thread counts as a sleeper that would take the
    /// driver lock, which is needed to run the engine.
    Sleep(Option<ListSleeper<'a>>),
}

impl<'a> ThreadTurning<'a> {
    /// Runs turns of the engine's event loop until `deadline`, if no other thread does. Called
    /// before a sleep is prepared. Returns false if the caller must check for events.
    pub fn turn(&mut self, client: &'a Client, deadline: Option<Deadline>) -> bool {
        let Some(driver) = client.driver() else { return true };
        if self.driver_lock.is_none() && self.is_willing() {
            self.driver_lock = driver.take(Who::Waits);
        }
        let Some(driver_lock) = self.driver_lock.as_mut() else { return true };
        let is_to_leave = match driver_lock.turn(deadline, || client.has_events()) {
            Turned::Done => return false,
            Turned::Ended => true,
            Turned::Idle | Turned::Busy => driver_lock.has_ended(&mut self.patience),
        };
        if is_to_leave {
            self.driver_lock = None;
        }
        true
    }

    /// Returns whether this thread may run the engine. Returns false after too many passes and
    /// wake-ups without an event for this thread ([`Patience`]).
    pub fn is_willing(&self) -> bool {
        !self.patience.has_ended()
    }

    /// Allows this thread to run the engine again, because another thread has woken it.
    pub fn on_wakeup(&mut self) {
        self.patience.renew();
    }

    /// Returns whether the thread must check for events or sleep. The caller has already prepared
    /// the sleep, so that wake-ups from now on reach this thread.
    pub fn next(&self, client: &'a Client) -> WaitStep<'a> {
        match client.driver().filter(|_| self.driver_lock.is_none() && self.is_willing()) {
            Some(driver) => driver
                .sleep_in_list()
                .map_or(WaitStep::Look, |sleeper| WaitStep::Sleep(Some(sleeper))),
            None => WaitStep::Sleep(None),
        }
    }

    /// Executes a system call that sleeps. If this thread holds the driver lock, other threads may
    /// take it during the call.
    pub fn sleep<T>(&mut self, sleep: impl FnOnce() -> T) -> T {
        let Some(driver_lock) = self.driver_lock.as_mut() else { return sleep() };
        let (slept, is_ours) = driver_lock.lend(sleep);
        if !is_ours {
            self.driver_lock = None;
        }
        slept
    }
}
