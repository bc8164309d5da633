//! The async task that waits for a socket's events.

/// The waker of the async task that waits for a socket. A lock protects it. The dispatcher (the
/// thread that takes events out of the ring) also takes this lock.
///
/// ```text
///   task:       lock, store the waker, check the socket, unlock; wait if it is not ready
///   engine:     change the socket, push an event
///   dispatcher: pop the event, lock, take the waker, unlock, wake the task
/// ```
///
/// If the dispatcher has the lock first, the task sees the change of the socket. Otherwise the
/// dispatcher finds the waker.
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
    /// Stores the waker of a task, unless `ready` returns events. Returns the events, and a waker
    /// to drop: `waker` or the one stored before. The caller must drop it after releasing the lock,
    /// because dropping a waker may run arbitrary code.
    pub fn wait(&mut self, waker: W, ready: impl FnOnce() -> u32) -> (u32, Option<W>) {
        match ready() {
            0 => (0, self.waker.replace(waker)),
            events => (events, Some(waker)),
        }
    }

    /// Removes and returns the waker. Call or drop it after releasing the lock.
    pub fn take(&mut self) -> Option<W> {
        self.waker.take()
    }
}
