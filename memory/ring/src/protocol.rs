//! The synchronization algorithms of the rings. The algorithms do not depend on where the words
//! are, so that loom can explore their interleavings:
//! - a ring with one producer and one consumer ([`produce`], [`consume`]);
//! - sleeping without lost wake-ups ([`doze`], [`rouse`], and [`signal`] for many sleepers). The
//!   sleeper announces that it sleeps, then checks for work again. The other side publishes work,
//!   then checks for a sleeper. A SeqCst fence between the two steps on each side ensures that at
//!   least one side sees the other's first step;
//! - sleeping without lost wake-ups for one sleeper that is woken by several processes that do not
//!   trust each other ([`fall_asleep`], [`wake_up`], [`unrung`]). Only the sleeper writes the
//!   shared word, a number that identifies each sleep. Each process remembers the last sleep for
//!   which it has sent a notification;
//! - detecting that all commands sent so far have been processed ([`begin_epoch`], [`end_epoch`],
//!   [`due`]), also by threads that did not send them;
//! - coalescing ([`amend`], [`take`]): bits are added to an item of a ring until the consumer takes
//!   it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Operations on a 32-bit word shared with another thread or process.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Replaces `current` with `new` (AcqRel). Returns false if the value was different.
    fn replace(&self, current: u32, new: u32) -> bool;
    /// Executes a SeqCst fence, the one of `std::sync::atomic` or of loom.
    fn fence();
}

/// A 64-bit number that one process writes and another reads, or that only one process uses.
pub(crate) trait Number {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Executes a SeqCst fence, like [`Word::fence`].
    fn fence();
}

/// Error: the other side wrote an invalid ring position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadPosition;

/// Writes an item at position `at`, which the producer keeps in private memory. Returns `Ok(false)`
/// if the ring is full.
pub(crate) fn produce<W: Word>(
    head: &W,
    tail: &W,
    at: u32,
    cap: u32,
    write: impl FnOnce(u32),
) -> Result<bool, BadPosition> {
    // Acquire: the consumer's read of the item in this place happens before it is overwritten.
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

/// Reads the item at position `at`, which the consumer keeps in private memory. Returns `None` if
/// the ring is empty.
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

/// Announces that the caller is about to sleep, then calls `idle` to check that there is no work.
/// Returns true if the caller should sleep; a producer will wake it.
pub(crate) fn doze<W: Word>(sleeping: &W, idle: impl FnOnce() -> bool) -> bool {
    sleeping.store(1, Ordering::Relaxed);
    W::fence();
    let sleep = idle();
    if !sleep {
        sleeping.store(0, Ordering::Relaxed);
    }
    sleep
}

/// Checks, after the caller has published work, whether the consumer sleeps. Returns true if the
/// caller must wake it.
pub(crate) fn rouse<W: Word>(sleeping: &W) -> bool {
    W::fence();
    // Load the flag before swapping it, because a swap would always write to a cache line that the
    // sleeper reads often.
    sleeping.load(Ordering::Relaxed) == 1 && sleeping.swap(0, Ordering::AcqRel) == 1
}

/// Announces a new sleep, then calls `idle` to check that there is no work. `at` is the sleeper's
/// own copy of the sleep's number. Returns true if the caller should sleep; it must call
/// [`wake_up`] afterwards.
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

/// Ends the sleep that [`fall_asleep`] announced, so that no further notifications are sent for it.
pub(crate) fn wake_up<N: Number>(epoch: &N, at: &mut u64) {
    *at += 1;
    epoch.store(*at, Ordering::Relaxed);
}

/// Checks, after the caller has published work, whether the consumer sleeps. Returns the number of
/// the sleep for which the caller must send a notification. Returns `None` if the sleeper is awake,
/// or a notification was already sent for this sleep.
///
/// The caller must store the number in `rung` after it has sent the notification, not before.
/// Otherwise a thread that is stopped in between would prevent other threads of its process from
/// sending it. Two concurrent notifications only cause a spurious wake-up.
pub(crate) fn unrung<N: Number>(epoch: &N, rung: &N) -> Option<u64> {
    N::fence();
    let sleep = epoch.load(Ordering::Relaxed);
    (sleep % 2 == 1 && rung.load(Ordering::Relaxed) != sleep).then_some(sleep)
}

/// Begins an epoch, a period in which the engine processes the rings, unless one is in progress.
/// `at` is the engine's own copy of the number.
pub(crate) fn begin_epoch<N: Number>(beat: &N, at: &mut u64) {
    if at.is_multiple_of(2) {
        *at += 1;
        beat.store(*at, Ordering::Relaxed);
    }
    N::fence();
}

/// Ends the epoch: all items that were in the rings at its beginning have been processed.
pub(crate) fn end_epoch<N: Number>(beat: &N, at: &mut u64) {
    if *at % 2 == 1 {
        *at += 1;
        beat.store(*at, Ordering::Release);
    }
}

/// Returns the number of the epoch at whose end the caller's published items will have been
/// processed. An epoch in progress does not count, because it may have read the ring before the
/// items were published.
pub(crate) fn due<N: Number>(beat: &N) -> u64 {
    N::fence();
    beat.load(Ordering::Relaxed).wrapping_add(3) & !1
}

/// Returns whether the epoch with the number returned by [`due`] has not ended yet.
pub(crate) fn is_due_still<N: Number>(beat: &N, due: u64) -> bool {
    beat.load(Ordering::Acquire) < due
}

/// Advances the sequence number, after the caller has published something. Returns true if all
/// sleeping threads must be woken; a thread that continues to sleep sets `asleep` again. A thread
/// killed in its sleep therefore causes only one unnecessary wake-up.
pub(crate) fn signal<W: Word>(seq: &W, asleep: &W) -> bool {
    W::fence();
    // Clear `asleep` before advancing the sequence number. A thread that sees the new number then
    // sees the cleared flag as well, and sets it again before it sleeps.
    let wake = asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0;
    seq.fetch_add(1, Ordering::Release);
    wake
}

/// Prepares a sleep until the next [`signal`], and returns the sequence number for the futex wait.
/// The caller must check its condition between this call and the wait.
pub(crate) fn enter<W: Word>(seq: &W, asleep: &W) -> u32 {
    loop {
        asleep.store(1, Ordering::Relaxed);
        W::fence();
        let at = seq.load(Ordering::Acquire);
        // A concurrent signal may have cleared `asleep`. The next signal would then not wake this
        // thread, so try again.
        if asleep.load(Ordering::Relaxed) != 0 {
            return at;
        }
    }
}

/// Adds bits to an item that the producer has put into a ring, if `is_it` accepts the item. Called
/// by the producer. Returns false if the consumer has taken the item. A single attempt suffices,
/// because only the producer changes items in the ring.
pub(crate) fn amend<W: Word>(place: &W, is_it: impl FnOnce(u32) -> bool, bits: u32) -> bool {
    let item = place.load(Ordering::Relaxed);
    is_it(item) && place.replace(item, item | bits)
}

/// Takes the item in a place of a ring, and leaves 0 (no item). Called by the consumer.
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

/// In loom models, the shared words are loom's atomics.
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
