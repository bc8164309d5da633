//! Interface of an engine to the threads that turn it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An engine that threads of this process turn, one at a time.
pub trait Engine: Send {
    /// Does pending work, some of it at least.
    fn turn(&mut self) -> Next;
    /// Before a sleep of at most `timeout`: may look for something to do for a moment, to save the
    /// sleep. Whether there is something.
    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool;
    /// Before a sleep on [`Self::descriptor`]. False: do not sleep, there is something to do.
    fn begin_sleep(&mut self) -> bool;
    /// After it.
    fn end_sleep(&mut self);
    /// Readable when there is something to do, while it sleeps.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// After [`Next::End`].
    fn finish(self: Box<Self>);
}

/// Step after a turn of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another one.
    Turn,
    /// A sleep, at most so long. None: nothing has a deadline.
    Sleep(Option<Duration>),
    /// The engine was stopped.
    End,
}
