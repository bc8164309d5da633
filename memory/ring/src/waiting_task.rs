//! The task that waits for events of a socket.

/// The waker of a waiting task, for one socket. Accessed under a lock, which the thread that takes
/// events out of the ring holds as well.
///
/// ```text
///   task:       lock, store the waker, check the socket, unlock; wait if it is not ready
///   engine:     change the socket, push an event
///   dispatcher: pop the event, lock, take the waker, unlock, wake the task
/// ```
///
/// If the dispatcher locks first, the task sees the change of the socket. Otherwise the dispatcher
/// finds the waker.
#[derive(Debug)]
pub struct WaitingTask<W> {
    waker: Option<W>,
}

impl<W> Default for WaitingTask<W> {
    fn default() -> Self {
        Self { waker: None }
    }
}

impl<W> WaitingTask<W> {
    /// Stores the waker of a task unless `ready` returns events. Returns the events, and a waker to
    /// be dropped without the lock, because dropping it may run any code: `waker` or its
    /// predecessor.
    pub fn wait(&mut self, waker: W, ready: impl FnOnce() -> u32) -> (u32, Option<W>) {
        match ready() {
            0 => (0, self.waker.replace(waker)),
            events => (events, Some(waker)),
        }
    }

    /// Returns the waker, to be called or dropped without the lock.
    pub fn take(&mut self) -> Option<W> {
        self.waker.take()
    }
}
