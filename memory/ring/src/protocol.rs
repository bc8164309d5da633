//! The algorithms, apart from where the words lie, so that loom can run every interleaving of them.
//!
//! Five of them:
//! - a ring with one producer and one consumer ([`produce`], [`consume`]);
//! - going to sleep without missing anything ([`doze`], [`rouse`], and [`signal`] for many
//!   sleepers). The sleeper says that it sleeps, then looks again. The waker publishes, then looks
//!   whether anybody sleeps. A SeqCst fence between the two steps of each makes it impossible that
//!   both look too early;
//! - the same for one sleeper and many wakers that do not trust each other ([`fall_asleep`],
//!   [`wake_up`], [`unrung`]). The sleeper alone writes the word, a number that identifies the
//!   sleep. Each waker remembers for itself which sleep it has rung for;
//! - saying when a command has been dealt with ([`begin_epoch`], [`end_epoch`], [`due`]), to others
//!   than the one who gave it;
//! - coalescing ([`amend`], [`take`]): bits are added to an item of a ring until the consumer takes
//!   it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A 32-bit word shared with another thread or process.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Whether it was `current`, and is `new` now (AcqRel).
    fn replace(&self, current: u32, new: u32) -> bool;
    /// `std::sync::atomic::fence(SeqCst)`, or loom's.
    fn fence();
}

/// A 64-bit number that one side writes and the others read, or that is a waker's own.
pub(crate) trait Number {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// As [`Word::fence`].
    fn fence();
}

/// The other side wrote a position that it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadPosition;

/// Puts one item at position `at`, which is the producer's own end. Ok(false): full.
pub(crate) fn produce<W: Word>(
    head: &W,
    tail: &W,
    at: u32,
    cap: u32,
    write: impl FnOnce(u32),
) -> Result<bool, BadPosition> {
    // Acquire: what the consumer read of a place is over before we write there again.
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

/// Takes the item at position `at`, which is the consumer's own start.
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

/// Says that we sleep, then looks once more. True: sleep, the side that has something will ring.
pub(crate) fn doze<W: Word>(sleeping: &W, idle: impl FnOnce() -> bool) -> bool {
    sleeping.store(1, Ordering::Relaxed);
    W::fence();
    let sleep = idle();
    if !sleep {
        sleeping.store(0, Ordering::Relaxed);
    }
    sleep
}

/// After something was published. True: the other side sleeps, and it is ours to ring.
pub(crate) fn rouse<W: Word>(sleeping: &W) -> bool {
    W::fence();
    // The load spares the waker a write to a line that the other side polls.
    sleeping.load(Ordering::Relaxed) == 1 && sleeping.swap(0, Ordering::AcqRel) == 1
}

/// Says that another sleep begins, then looks once more; `at` is the sleeper's own copy of the
/// number. True: sleep, any waker that has something will ring; afterwards [`wake_up`].
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

/// Awake again.
pub(crate) fn wake_up<N: Number>(epoch: &N, at: &mut u64) {
    *at += 1;
    epoch.store(*at, Ordering::Relaxed);
}

/// After something was published: the sleep that this waker is to ring for, and has not yet. The
/// waker notes the sleep in `rung` after it rang, never before. Otherwise a thread that stops
/// between the two would keep the others of its process from ringing. Two that ring at a time only
/// wake a sleeper twice.
pub(crate) fn unrung<N: Number>(epoch: &N, rung: &N) -> Option<u64> {
    N::fence();
    let sleep = epoch.load(Ordering::Relaxed);
    (sleep % 2 == 1 && rung.load(Ordering::Relaxed) != sleep).then_some(sleep)
}

/// A beat begins: its owner looks at the rings from now on. `at` is the owner's own copy. A beat
/// that has begun already goes on.
pub(crate) fn begin_epoch<N: Number>(beat: &N, at: &mut u64) {
    if at.is_multiple_of(2) {
        *at += 1;
        beat.store(*at, Ordering::Relaxed);
    }
    N::fence();
}

/// All that was in the rings when the beat began has been dealt with.
pub(crate) fn end_epoch<N: Number>(beat: &N, at: &mut u64) {
    if *at % 2 == 1 {
        *at += 1;
        beat.store(*at, Ordering::Release);
    }
}

/// After something was published, here or by who says so: the number at which it has been dealt
/// with. A beat that goes on may have looked before, so it does not count.
pub(crate) fn due<N: Number>(beat: &N) -> u64 {
    N::fence();
    beat.load(Ordering::Relaxed).wrapping_add(3) & !1
}

/// Whether the number of [`due`] is still to come.
pub(crate) fn is_due_still<N: Number>(beat: &N, due: u64) -> bool {
    beat.load(Ordering::Acquire) < due
}

/// After something was published: moves the sequence on. True: somebody may sleep on it, and all
/// are to be woken; those that want to sleep on set `asleep` again. So a thread that set it, and
/// was killed, costs one needless wake-up.
pub(crate) fn signal<W: Word>(seq: &W, asleep: &W) -> bool {
    W::fence();
    // `asleep` is cleared before the sequence moves on. So a thread that sees the new sequence also
    // sees `asleep` cleared, and sets it again before it sleeps.
    let wake = asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0;
    seq.fetch_add(1, Ordering::Release);
    wake
}

/// The sleeper's first half against [`signal`]: returns the sequence to sleep on. The caller checks
/// its condition between this call and the sleep.
pub(crate) fn enter<W: Word>(seq: &W, asleep: &W) -> u32 {
    loop {
        asleep.store(1, Ordering::Relaxed);
        W::fence();
        let at = seq.load(Ordering::Acquire);
        // Otherwise it was taken for what led to this sequence, and nothing would be told of the
        // next.
        if asleep.load(Ordering::Relaxed) != 0 {
            return at;
        }
    }
}

/// Producer: adds bits to the item in a place, if `is_it` finds there the one that is meant. False:
/// the consumer has taken it. The producer alone changes an item, except for the consumer's take,
/// so one attempt is enough.
pub(crate) fn amend<W: Word>(place: &W, is_it: impl FnOnce(u32) -> bool, bits: u32) -> bool {
    let item = place.load(Ordering::Relaxed);
    is_it(item) && place.replace(item, item | bits)
}

/// Consumer: takes the item in a place, and leaves 0 there, which is none.
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

/// The words of slots are loom's in a model.
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
