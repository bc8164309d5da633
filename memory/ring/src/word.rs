//! Mutual exclusion in one futex word: what the locks of a slot ([`crate::lock_rx`],
//! [`crate::lock_tx`]) and those of a process ([`crate::Lock`]) have in common.
//!
//! The word is 0, or says who has it, with [`LOCK_CONTENDED`] when somebody sleeps on it.

use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::layout::LOCK_CONTENDED;

/// Attempts before the first sleep: an uncontended holder needs less than a microsecond. A model
/// tries every interleaving anyway.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

/// Decision after a sleep on the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look at it again.
    Look,
    /// The word is ours: it was taken from its owner.
    Taken,
    /// Do without.
    GiveUp,
}

/// Takes the word for `me` if nobody has it; otherwise what is in it.
#[inline]
pub(crate) fn try_acquire(word: &AtomicU32, me: u32) -> Result<(), u32> {
    word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).map(drop)
}

/// The same when that was in vain. `sleep` sleeps while the word is what it gets. False: it gave
/// up.
#[cold]
pub(crate) fn acquire(word: &AtomicU32, me: u32, mut sleep: impl FnMut(u32) -> Next) -> bool {
    for _ in 0..SPINS {
        if word.load(Ordering::Relaxed) == 0 && try_acquire(word, me).is_ok() {
            return true;
        }
        std::hint::spin_loop();
    }
    loop {
        // Other threads may still sleep: because of the bit, the thread that unlocks wakes the
        // next.
        let Err(held) = try_acquire(word, me | LOCK_CONTENDED) else { return true };
        let contended = held | LOCK_CONTENDED;
        if held != contended
            && word.compare_exchange(held, contended, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        match sleep(contended) {
            Next::Look => {}
            Next::Taken => return true,
            Next::GiveUp => return false,
        }
    }
}

/// Gives the word back, and wakes one of those who sleep; what was in it. None: it is not the
/// caller's.
#[inline]
pub(crate) fn release(
    word: &AtomicU32,
    is_ours: impl Fn(u32) -> bool,
    wake: impl FnOnce(),
) -> Option<u32> {
    let mut held = word.load(Ordering::Relaxed);
    while is_ours(held) {
        match word.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                if held & LOCK_CONTENDED != 0 {
                    wake();
                }
                return Some(held);
            }
            Err(now) => held = now,
        }
    }
    None
}
