//! Dispatch of a stack's events to the tasks of a runtime.
//!
//! A stack has one [`RuntimeDispatcher`] for each runtime that uses its sockets. A runtime polls
//! one descriptor for it, independent of the number of sockets.
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

/// Takes the events of a stack in a runtime. The sockets of the runtime hold it.
pub(crate) struct RuntimeDispatcher {
    /// Dropped before `shared`, whose process tables the dispatcher uses.
    source: std::mem::ManuallyDrop<AsyncFd<EventSource>>,
    /// Calls [`Self::run`].
    waker: Waker,
    /// The runtime has shut down, so that it takes no more events.
    has_ended: AtomicBool,
    shared: Arc<SharedStack>,
}

/// Dispatchers of a stack, by runtime.
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

    /// Adds the dispatcher of the runtime `id`, and removes those without sockets.
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

/// Runs a dispatcher when the runtime's I/O driver calls the waker.
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

/// Returns the current runtime.
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
    /// Returns the dispatcher of the current runtime, and creates it on first use.
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
        // Wakers run without the lock, because they may open sockets. Creating a dispatcher takes
        // events, and so calls wakers.
        let dispatcher = Self::new(shared)?;
        let mut known = lock();
        if let Some(faster) = known.find(runtime.id()) {
            // Another thread was faster. Unlock before the dispatcher here is dropped.
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

    /// Takes the events and wakes their tasks, until none is left. The I/O driver then calls the
    /// waker at the next event.
    fn run(&self) {
        // Without a budget. If the calling task had used up its budget, `poll_read_ready` would
        // call the waker, which outside of a worker runs this function again, without end.
        let take = coop::unconstrained(poll_fn(|cx| {
            self.take_events(cx);
            Poll::Ready(())
        }));
        let _ = pin!(take).poll(&mut Context::from_waker(&self.waker));
    }

    fn take_events(&self, cx: &mut Context<'_>) {
        while let Poll::Ready(ready) = self.source.poll_read_ready(cx) {
            let Ok(mut guard) = ready else { return self.end() };
            // Clear the readiness first: an event that arrives later makes the source ready again.
            guard.clear_ready();
            if self.source.get_ref().0.dispatch(self.shared.client()).is_err() {
                // Only a signal handler fails to lock the reactor, and runtimes run in none.
                return;
            }
        }
    }

    /// Wakes all tasks, because those on other runtimes would wait for a dispatch of this one.
    fn end(&self) {
        self.has_ended.store(true, SeqCst);
        // Sockets may keep this dispatcher, and tokio may give the id of the runtime to a new one.
        self.shared.dispatchers.lock().remove(self);
        // As in `run`, locking the reactor fails only in a signal handler.
        let _ = self.source.get_ref().0.wake_all();
    }

    /// Fails if the runtime has shut down. Called after a task has stored its waker, so that the
    /// task sees the end or is woken by it.
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
        // In a forked child, leak the dispatcher. Its runtime polls an epoll set that the parent
        // shares, from which dropping would remove the descriptor for the parent, too.
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
        // A socket of the old runtime would hold this reference.
        let ended = old.block_on(async { RuntimeDispatcher::current(&stack.shared) });
        let ended = ended.expect("a dispatcher");
        stack.shared.dispatchers.lock().add(new.handle().id(), &ended);
        drop(old);
        let found = new.block_on(async { RuntimeDispatcher::current(&stack.shared) });
        found.expect("a dispatcher").check_running().expect("the new runtime is running");
    }
}
