//! Interface between an engine and the threads of its process that run it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An engine that threads of its process run, one thread at a time.
pub trait TurnedEngine: Send {
    /// Runs one iteration of the event loop (a turn), which does at least a part of the pending
    /// work.
    fn turn(&mut self) -> EngineStep;
    /// May poll for work for a short time, to avoid a sleep. Called before a sleep of at most
    /// `timeout`. Returns whether there is work.
    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool;
    /// Prepares a sleep on [`Self::descriptor`]. Returns false if there is work, so that the thread
    /// must not sleep.
    fn begin_sleep(&mut self) -> bool;
    /// Ends the sleep that [`Self::begin_sleep`] prepared.
    fn end_sleep(&mut self);
    /// Returns the descriptor that becomes readable when there is work, while the engine sleeps.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Frees the engine. Called after [`Self::turn`] has returned [`EngineStep::End`].
    fn finish(self: Box<Self>);
}

/// Next step of the caller after a turn of a [`TurnedEngine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineStep {
    /// Run another turn, because there is more work.
    Turn,
    /// Sleep for at most this time. `None`: no limit, because the engine has no running timer.
    Sleep(Option<Duration>),
    /// Call no further turn, because the engine was stopped.
    End,
}
