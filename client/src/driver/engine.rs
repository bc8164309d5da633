//! Interface of an engine to the threads that turn it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An engine that threads of this process turn, one at a time.
pub trait TurnedEngine: Send {
    /// Does pending work, some of it at least.
    fn turn(&mut self) -> EngineStep;
    /// Before a sleep of at most `timeout`: may poll for work for a moment, to save the sleep.
    /// Whether there is work.
    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool;
    /// Before a sleep on [`Self::descriptor`]. False: there is work, do not sleep.
    fn begin_sleep(&mut self) -> bool;
    /// After it.
    fn end_sleep(&mut self);
    /// Readable when there is work, while the engine sleeps.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// After [`EngineStep::End`].
    fn finish(self: Box<Self>);
}

/// Step after a turn of an [`TurnedEngine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineStep {
    /// Another one.
    Turn,
    /// A sleep, at most so long. None: nothing has a deadline.
    Sleep(Option<Duration>),
    /// The engine was stopped.
    End,
}
