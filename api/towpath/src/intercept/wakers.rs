//! List of tasks that wait for the same event, such as the arrival of a datagram.

use std::mem::replace;
use std::task::{Context, Waker};

/// Number of a future that waits, or [`TASK`].
pub(super) type WaitId = u64;

/// Number of all calls of `poll_` methods, which only their wakers distinguish.
pub(super) const TASK: WaitId = 0;

/// Wakers of the waiting futures, and of tasks that call `poll_` methods.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    waiting: Vec<(WaitId, Waker)>,
}

impl Wakers {
    /// Registers the task of `cx`. A future stays registered until the next wake-up or until it is
    /// dropped, and a task until the next wake-up. Returns the waker of the task that polled the
    /// future before, which the caller drops after it has released the lock.
    #[must_use]
    pub(super) fn register(&mut self, id: WaitId, cx: &Context<'_>) -> Option<Waker> {
        let is_it = |(known, waker): &&mut (WaitId, Waker)| {
            *known == id && (id != TASK || waker.will_wake(cx.waker()))
        };
        match self.waiting.iter_mut().find(is_it) {
            Some((_, waker)) if waker.will_wake(cx.waker()) => None,
            Some((_, waker)) => Some(replace(waker, cx.waker().clone())),
            None => {
                self.waiting.push((id, cx.waker().clone()));
                None
            }
        }
    }

    /// Moves all wakers to `due`. The caller wakes them after it has released the lock.
    pub(super) fn wake(&mut self, due: &mut Vec<Waker>) {
        due.extend(self.waiting.drain(..).map(|(_, waker)| waker));
    }

    /// Removes a future, and returns its waker, which the caller drops after it has released the
    /// lock.
    pub(super) fn forget(&mut self, id: WaitId) -> Option<Waker> {
        let at = self.waiting.iter().position(|(known, _)| *known == id)?;
        Some(self.waiting.swap_remove(at).1)
    }
}

/// Registers the task of `cx` as the only waiting task, in place of an earlier one.
pub(super) fn register_one(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}
