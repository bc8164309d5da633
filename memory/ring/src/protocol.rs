//! The synchronization algorithms, independent of where the words are, so that loom can explore
//! their interleavings:
//! - a ring with one producer and one consumer ([`produce`], [`consume`]);
//! - sleeping without lost wake-ups ([`doze`], [`rouse`], and [`signal`] for many sleepers). The
//!   sleeper announces that it sleeps, then checks again. The waker publishes, then checks for a
//!   sleeper. A SeqCst fence between the two steps on each side ensures that one of them sees the
//!   other's step;
//! - the same for one sleeper and many wakers that do not trust each other ([`fall_asleep`],
//!   [`wake_up`], [`unrung`]). Only the sleeper writes the word, a number that identifies the
//!   sleep. Each waker remembers the last sleep for which it sent a notification;
//! - detecting that commands have been processed ([`begin_epoch`], [`end_epoch`], [`due`]), also by
//!   threads that did not send them;
//! - coalescing ([`amend`], [`take`]): bits are added to an item of a ring until the consumer takes
//!   it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A 32-bit word shared with another thread or process.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Replaces `current` by `new` (AcqRel); returns false if the value was different.
    fn replace(&self, current: u32, new: u32) -> bool;
    /// Executes a SeqCst fence: `std::sync::atomic::fence`, or loom's.
    fn fence();
}

/// A 64-bit number that one side writes and the other side reads, or that only a waker uses.
pub(crate) trait Number {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Executes a SeqCst fence, like [`Word::fence`].
    fn fence();
}

/// The other side wrote an impossible position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadPosition;

/// Puts an item at position `at`, the producer's own position. Returns `Ok(false)` if the ring is
/// full.
pub(crate) fn produce<W: Word>(
    head: &W,
    tail: &W,
    at: u32,
    cap: u32,
    write: impl FnOnce(u32),
) -> Result<bool, BadPosition> {
    // Acquire: the consumer's reads of the place happen before we overwrite it.
    match at.wrapping_sub(head.load(Ordering::Acquire)) {
        used if used < cap => {
            write(at & (cap - 1));
            tail.store(at.wrapping_add(1), Ordering::Release);
            Ok(true)
        }
        used if used == cap => Ok(false),
        _ => Err(BadPosition),
    }
}

/// Takes the item at position `at`, the consumer's own position. Returns `None` if the ring is
/// empty.
pub(crate) fn consume<W: Word, T>(
    head: &W,
    tail: &W,
    at: u32,
    cap: u32,
    read: impl FnOnce(u32) -> T,
) -> Result<Option<T>, BadPosition> {
    match tail.load(Ordering::Acquire).wrapping_sub(at) {
        0 => Ok(None),
        used if used <= cap => {
            let item = read(at & (cap - 1));
            head.store(at.wrapping_add(1), Ordering::Release);
            Ok(Some(item))
        }
        _ => Err(BadPosition),
    }
}

/// Announces that the caller sleeps, then checks for work again with `idle`. Returns true if the
/// caller should sleep: the other side wakes it after publishing something.
pub(crate) fn doze<W: Word>(sleeping: &W, idle: impl FnOnce() -> bool) -> bool {
    sleeping.store(1, Ordering::Relaxed);
    W::fence();
    let sleep = idle();
    if !sleep {
        sleeping.store(0, Ordering::Relaxed);
    }
    sleep
}

/// Called after something was published. Returns true if the sleeper has to be woken by the caller.
pub(crate) fn rouse<W: Word>(sleeping: &W) -> bool {
    W::fence();
    // The load avoids a write to a cache line that the sleeper polls.
    sleeping.load(Ordering::Relaxed) == 1 && sleeping.swap(0, Ordering::AcqRel) == 1
}

/// Announces a new sleep, then checks for work again with `idle`; `at` is the sleeper's own copy of
/// the number. Returns true if the caller should sleep; call [`wake_up`] afterwards.
pub(crate) fn fall_asleep<N: Number>(epoch: &N, at: &mut u64, idle: impl FnOnce() -> bool) -> bool {
    *at += 1;
    epoch.store(*at, Ordering::Relaxed);
    N::fence();
    let sleep = idle();
    if !sleep {
        wake_up(epoch, at);
    }
    sleep
}

/// Ends the sleep that [`fall_asleep`] announced; wakers send no more notifications for it.
pub(crate) fn wake_up<N: Number>(epoch: &N, at: &mut u64) {
    *at += 1;
    epoch.store(*at, Ordering::Relaxed);
}

/// Called after something was published. Returns the sleep epoch for which this waker has to send a
/// notification. Returns `None` if the sleeper is awake, or a notification was sent for its sleep
/// already.
///
/// The waker stores the epoch in `rung` after the notification, never before. Otherwise a thread
/// that is stopped in between would prevent the other threads of its process from sending it. Two
/// concurrent notifications only cause a spurious wake-up.
pub(crate) fn unrung<N: Number>(epoch: &N, rung: &N) -> Option<u64> {
    N::fence();
    let sleep = epoch.load(Ordering::Relaxed);
    (sleep % 2 == 1 && rung.load(Ordering::Relaxed) != sleep).then_some(sleep)
}

/// Begins an epoch, in which its owner processes the rings, unless one is in progress. `at` is the
/// owner's own copy.
pub(crate) fn begin_epoch<N: Number>(beat: &N, at: &mut u64) {
    if at.is_multiple_of(2) {
        *at += 1;
        beat.store(*at, Ordering::Relaxed);
    }
    N::fence();
}

/// Ends the epoch: every item that was in the rings at its begin has been processed.
pub(crate) fn end_epoch<N: Number>(beat: &N, at: &mut u64) {
    if *at % 2 == 1 {
        *at += 1;
        beat.store(*at, Ordering::Release);
    }
}

/// Called after something was published. Returns the epoch at whose end it will have been
/// processed. An epoch in progress does not count, because it may have read the ring before.
pub(crate) fn due<N: Number>(beat: &N) -> u64 {
    N::fence();
    beat.load(Ordering::Relaxed).wrapping_add(3) & !1
}

/// Returns whether the epoch returned by [`due`] has not ended yet.
pub(crate) fn is_due_still<N: Number>(beat: &N, due: u64) -> bool {
    beat.load(Ordering::Acquire) < due
}

/// Called after something was published: advances the sequence. Returns true if all sleepers have
/// to be woken; those that continue to sleep set `asleep` again. A thread that was killed while
/// asleep therefore costs only one unnecessary wake-up.
pub(crate) fn signal<W: Word>(seq: &W, asleep: &W) -> bool {
    W::fence();
    // Clear `asleep` before advancing the sequence. A thread that sees the new sequence then also
    // sees `asleep` cleared, and sets it again before it sleeps.
    let wake = asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0;
    seq.fetch_add(1, Ordering::Release);
    wake
}

/// The sleeper's part of [`signal`]: returns the sequence to sleep on. The caller checks its
/// condition between this call and the sleep.
pub(crate) fn enter<W: Word>(seq: &W, asleep: &W) -> u32 {
    loop {
        asleep.store(1, Ordering::Relaxed);
        W::fence();
        let at = seq.load(Ordering::Acquire);
        // If `asleep` was cleared meanwhile, it was cleared for an earlier sequence. The next
        // change of the sequence would then not wake this thread.
        if asleep.load(Ordering::Relaxed) != 0 {
            return at;
        }
    }
}

/// Adds bits to the item in a place, if `is_it` accepts the item. Called by the producer. Returns
/// false if the consumer has taken the item. A single attempt suffices, because only the producer
/// modifies an item before the consumer takes it.
pub(crate) fn amend<W: Word>(place: &W, is_it: impl FnOnce(u32) -> bool, bits: u32) -> bool {
    let item = place.load(Ordering::Relaxed);
    is_it(item) && place.replace(item, item | bits)
}

/// Takes the item in a place, and leaves 0 (no item). Called by the consumer.
pub(crate) fn take<W: Word>(place: &W) -> u32 {
    place.swap(0, Ordering::AcqRel)
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }
    #[inline]
    fn replace(&self, current: u32, new: u32) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    #[inline]
    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Number for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// In loom models, the words in slots are loom's.
#[cfg(loom)]
impl Word for loom::sync::atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }
    fn replace(&self, current: u32, new: u32) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}
