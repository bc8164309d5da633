//! Access of sockets to the interceptor's core: the stack and its tables.

use std::future::poll_fn;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::core::Core;
use super::wakers::{TASK, WaitId, Wakers};

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

/// Registration of a future, removed when the future is dropped while it waits.
struct WaitingFuture<'a> {
    handle: &'a InterceptHandle,
    wakers: fn(&mut Core) -> &mut Wakers,
    id: WaitId,
    waits: bool,
}

impl Drop for WaitingFuture<'_> {
    fn drop(&mut self) {
        if self.waits {
            drop(self.handle.with(|core| (self.wakers)(core).forget(self.id)));
        }
    }
}

/// Waits until `poll`, which registers the future with the given number among `wakers`, is ready.
pub(super) async fn wait<T>(
    handle: &InterceptHandle,
    wakers: fn(&mut Core) -> &mut Wakers,
    mut poll: impl FnMut(WaitId, &mut Context<'_>) -> Poll<T>,
) -> T {
    static LAST: AtomicU64 = AtomicU64::new(TASK);
    let id = LAST.fetch_add(1, Relaxed) + 1;
    let mut waiting = WaitingFuture { handle, wakers, id, waits: false };
    poll_fn(|cx| {
        let polled = poll(id, cx);
        waiting.waits = polled.is_pending();
        polled
    })
    .await
}
