//! List of tasks that wait for the same event, such as the arrival of a datagram.

use std::task::{Context, Waker};

/// Wakers of the waiting tasks, at most one for each task.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    waiting: Vec<Waker>,
}

impl Wakers {
    /// Registers the task of `cx`. A task stays registered until the next wake-up, even if its
    /// future is dropped.
    pub(super) fn register(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }

    /// Moves all wakers to `due`. The caller wakes them after it has released the lock.
    pub(super) fn wake(&mut self, due: &mut Vec<Waker>) {
        due.append(&mut self.waiting);
    }
}

/// Registers the task of `cx` as the only waiting task, in place of an earlier one.
pub(super) fn register_one(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}
