//! Access of sockets to the interceptor's core: the stack and its tables.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::core::Core;

/// The interceptor's core, shared by the runner and all sockets.
#[derive(Debug)]
pub(super) struct SharedCore {
    core: Mutex<Core>,
}

impl SharedCore {
    pub(super) fn new(core: Core) -> Arc<Self> {
        Arc::new(Self { core: Mutex::new(core) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // Ignore poisoning: the core stays memory safe and usable after a call panicked.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reference of a socket to the core. The runner continues while at least one exists.
#[derive(Debug, Clone)]
pub(super) struct InterceptHandle(Arc<LastHandle>);

/// Wakes the runner when the last [`InterceptHandle`] is dropped, so that it can end.
#[derive(Debug)]
struct LastHandle {
    shared: Arc<SharedCore>,
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.is_held = false;
        let waker = core.take_runner();
        drop(core);
        waker.into_iter().for_each(std::task::Waker::wake);
    }
}

impl InterceptHandle {
    pub(super) fn new(shared: Arc<SharedCore>) -> Self {
        Self(Arc::new(LastHandle { shared }))
    }

    /// Runs `call` with the core locked. Then wakes the runner if the call has left work for it.
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.0.shared.lock();
        core.look_at_clock();
        let out = call(&mut core);
        let (waker, unused) = (core.runner_if_due(), take(&mut core.unused));
        drop(core);
        drop(unused);
        if let Some(waker) = waker {
            waker.wake();
        }
        out
    }
}
