//! Futures that wait for one event, such as a received datagram.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use super::core::Core;
use super::handle::InterceptHandle;
use super::wakers::{TASK, WaitId, Wakers};

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
