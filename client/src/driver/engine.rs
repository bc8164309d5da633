//! Interface of an engine to the threads that turn it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An engine that threads of this process turn, one at a time.
pub trait TurnedEngine: Send {
    /// Makes one turn, which does at least a part of the pending work.
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
    /// Releases the engine. Called after [`EngineStep::End`].
    fn finish(self: Box<Self>);
}

/// Next step after a turn of a [`TurnedEngine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineStep {
    /// Make another turn, because there is more work.
    Turn,
    /// Sleep, at most for this time. `None`: no limit, because no timer runs.
    Sleep(Option<Duration>),
    /// The engine was stopped.
    End,
}
