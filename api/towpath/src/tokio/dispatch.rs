//! Dispatch of a stack's socket events to the tasks of a Tokio runtime.
//!
//! A stack has one [`RuntimeDispatcher`] for each runtime that uses its sockets. The runtime polls
//! only one descriptor for this dispatcher, whatever the number of sockets.
//!
//! A dispatcher needs neither a task nor a thread. The runtime's I/O driver calls a [`Waker`] when
//! the descriptor is readable. The waker takes the events, and wakes the tasks of the sockets.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, Id};
use ::tokio::task::coop;
use towpath_client::reactor::Dispatcher;

use crate::error::io_error;
use crate::shared::SharedStack;

/// Receives the events of a stack for the sockets of one runtime. Each of these sockets has a
/// reference to the dispatcher.
pub(crate) struct RuntimeDispatcher {
    /// Event source, dropped before `shared` because it uses the process tables of the stack.
    source: std::mem::ManuallyDrop<AsyncFd<EventSource>>,
    /// Waker that the runtime's I/O driver calls when the event source is readable. Calls
    /// [`Self::run`].
    waker: Waker,
    /// Whether the runtime has shut down, so that no more events are dispatched.
    has_ended: AtomicBool,
    shared: Arc<SharedStack>,
}

/// Dispatchers of one stack, by the id of their runtime.
#[derive(Default)]
pub(crate) struct Dispatchers(Mutex<KnownDispatchers>);

impl Dispatchers {
    fn lock(&self) -> MutexGuard<'_, KnownDispatchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct KnownDispatchers(Vec<(Id, Weak<RuntimeDispatcher>)>);

impl KnownDispatchers {
    fn find(&self, id: Id) -> Option<Arc<RuntimeDispatcher>> {
        let mut of_id = self.0.iter().filter(|(known, _)| *known == id);
        of_id.find_map(|(_, dispatcher)| dispatcher.upgrade())
    }

    /// Adds the dispatcher of the runtime `id`, and removes dispatchers that no socket uses.
    fn add(&mut self, id: Id, dispatcher: &Arc<RuntimeDispatcher>) {
        self.0.retain(|(_, dispatcher)| dispatcher.strong_count() > 0);
        self.0.push((id, Arc::downgrade(dispatcher)));
    }

    fn remove(&mut self, dispatcher: &RuntimeDispatcher) {
        self.0.retain(|(_, known)| !std::ptr::eq(known.as_ptr(), dispatcher));
    }
}

struct EventSource(Dispatcher);

impl AsRawFd for EventSource {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }
}

/// Waker of the runtime's I/O driver, which runs a dispatcher.
struct RunOnWake(Weak<RuntimeDispatcher>);

impl Wake for RunOnWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(dispatcher) = self.0.upgrade() {
            dispatcher.run();
        }
    }
}

/// Returns the current Tokio runtime.
///
/// # Errors
/// `Other` outside of a runtime.
pub(super) fn current_runtime() -> io::Result<Handle> {
    Handle::try_current().map_err(|error| {
        let advice = "use sockets of towpath::tokio within a Tokio runtime";
        io::Error::other(format!("{error}: {advice}"))
    })
}

impl RuntimeDispatcher {
    /// Returns the stack's dispatcher for the current runtime, and creates it on first use.
    ///
    /// # Errors
    /// `Other` outside of a runtime, or in one that shuts down; `NetworkDown` if the stack has
    /// ended; EMFILE if no descriptor is free.
    ///
    /// # Panics
    /// If the runtime was built without I/O, as tokio's sockets do.
    pub(crate) fn current(shared: &Arc<SharedStack>) -> io::Result<Arc<Self>> {
        let runtime = current_runtime()?;
        let lock = || shared.dispatchers.lock();
        if let Some(dispatcher) = lock().find(runtime.id()) {
            return Ok(dispatcher);
        }
        // Create the dispatcher without the lock. Creating it dispatches events, which calls
        // wakers, and a waker may open sockets, which would take the lock again.
        let dispatcher = Self::new(shared)?;
        let mut known = lock();
        if let Some(faster) = known.find(runtime.id()) {
            // Another thread has created a dispatcher for this runtime at the same time. Release
            // the lock before the superfluous dispatcher is dropped.
            drop(known);
            return Ok(faster);
        }
        known.add(runtime.id(), &dispatcher);
        drop(known);
        dispatcher.run();
        Ok(dispatcher)
    }

    fn new(shared: &Arc<SharedStack>) -> io::Result<Arc<Self>> {
        let dispatcher = Dispatcher::new(shared.client()).map_err(io_error)?;
        let source = EventSource(dispatcher);
        // SAFETY: the dispatcher owns its descriptor, which it neither closes nor replaces before
        // it is dropped.
        let source = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }?;
        Ok(Arc::new_cyclic(|weak| Self {
            source: std::mem::ManuallyDrop::new(source),
            waker: Waker::from(Arc::new(RunOnWake(Weak::clone(weak)))),
            has_ended: AtomicBool::new(false),
            shared: Arc::clone(shared),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<SharedStack> {
        &self.shared
    }

    /// Dispatches events to their tasks until none is left. The I/O driver then calls the waker
    /// again at the next event.
    fn run(&self) {
        // Run without tokio's cooperative budget. If the calling task has used up its budget,
        // `poll_read_ready` calls the waker at once. Outside of a worker thread, the waker would
        // then call this function again, without end.
        let take = coop::unconstrained(poll_fn(|cx| {
            self.take_events(cx);
            Poll::Ready(())
        }));
        let _ = pin!(take).poll(&mut Context::from_waker(&self.waker));
    }

    fn take_events(&self, cx: &mut Context<'_>) {
        while let Poll::Ready(ready) = self.source.poll_read_ready(cx) {
            let Ok(mut guard) = ready else { return self.end() };
            // Clear the readiness before dispatching, so that an event that arrives meanwhile makes
            // the source ready again.
            guard.clear_ready();
            if self.source.get_ref().0.dispatch(self.shared.client()).is_err() {
                // Locking the table of waiting tasks fails only in a signal handler, where no
                // runtime runs.
                return;
            }
        }
    }

    /// Wakes all tasks that wait for sockets of this runtime, which is shutting down. The
    /// dispatcher no longer runs, so tasks on other runtimes would otherwise wait forever.
    fn end(&self) {
        self.has_ended.store(true, SeqCst);
        // Remove the dispatcher from the table: sockets may keep it alive, and tokio may give the
        // runtime's id to a new runtime.
        self.shared.dispatchers.lock().remove(self);
        // Ignore errors: as in `run`, locking fails only in a signal handler.
        let _ = self.source.get_ref().0.wake_all();
    }

    /// Polls for events for a short time. A task calls this after it has stored its waker.
    pub(crate) fn look_on(&self) {
        // Ignore errors: as in `run`, locking fails only in a signal handler.
        let _ = self.source.get_ref().0.look_on(self.shared.client());
    }

    /// Returns an error if the runtime has shut down. A task calls this after it has stored its
    /// waker. So it either gets the error here, or is woken at the shutdown.
    pub(crate) fn check_running(&self) -> io::Result<()> {
        match self.has_ended.load(SeqCst) {
            false => Ok(()),
            true => Err(io::Error::other(
                "the Tokio runtime on which this towpath socket was created has shut down",
            )),
        }
    }
}

impl Drop for RuntimeDispatcher {
    fn drop(&mut self) {
        // Leak the dispatcher in a forked child. Its runtime's epoll set is shared with the parent,
        // so dropping would remove the descriptor from the parent's set, too.
        if self.shared.client().is_abandoned() {
            return;
        }
        // SAFETY: the source is dropped only here, and is not used afterwards.
        unsafe { std::mem::ManuallyDrop::drop(&mut self.source) };
    }
}

#[cfg(test)]
mod tests {
    use ::tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::Stack;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_runtime_with_the_id_of_an_ended_one_gets_its_own_dispatcher() {
        let stack = Stack::builder().loopback().start().expect("a stack");
        let (old, new) = (runtime(), runtime());
        // Keep a reference to the dispatcher, as a socket of the old runtime would.
        let ended = old.block_on(async { RuntimeDispatcher::current(&stack.shared) });
        let ended = ended.expect("a dispatcher");
        stack.shared.dispatchers.lock().add(new.handle().id(), &ended);
        drop(old);
        let found = new.block_on(async { RuntimeDispatcher::current(&stack.shared) });
        found.expect("a dispatcher").check_running().expect("the new runtime is running");
    }
}
