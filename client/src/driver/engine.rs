//! Interface of an engine (network stack) that runs on threads of the process that it serves.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An engine (network stack) that threads of its process run, one thread at a time.
pub trait TurnedEngine: Send {
    /// Runs one iteration of the event loop (a turn), which processes at least a part of the
    /// pending work.
    fn turn(&mut self) -> EngineStep;
    /// May poll for work for a short time, to avoid a sleep. Called before a sleep of at most
    /// `timeout`. Returns true if there is work.
    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool;
    /// Prepares a sleep on [`Self::descriptor`]. Returns false if there is work, so that the thread
    /// must call [`Self::turn`] instead.
    fn begin_sleep(&mut self) -> bool;
    /// Ends the sleep that [`Self::begin_sleep`] prepared.
    fn end_sleep(&mut self);
    /// Returns a descriptor that becomes readable when there is work for the sleeping engine.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Frees the engine. Called after [`Self::turn`] has returned [`EngineStep::End`].
    fn finish(self: Box<Self>);
}

/// Next step of the caller after an iteration (turn) of a [`TurnedEngine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineStep {
    /// Run another iteration of the event loop now, because there is more work.
    Turn,
    /// Sleep for at most this time; `None` if the engine has no timer.
    Sleep(Option<Duration>),
    /// Call no further turn, because the engine was stopped.
    End,
}
