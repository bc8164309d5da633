//! Mutual exclusion by one futex word: the common part of slot locks ([`crate::lock_rx`],
//! [`crate::lock_tx`]) and process locks ([`crate::ProcessLock`]).
//!
//! The word is 0 or identifies the owner, with [`LOCK_CONTENDED`] if a thread sleeps on it.

use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::layout::LOCK_CONTENDED;
use towpath_shm::spin::LOCK_ATTEMPTS;

/// Decision after a sleep on the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Check the word again.
    Look,
    /// The caller owns the word now, because `sleep` has stolen it from its owner.
    Taken,
    /// Stop waiting for the word.
    GiveUp,
}

/// Takes the word for `me` if it is free; otherwise returns its value.
#[inline]
pub(crate) fn try_acquire(word: &AtomicU32, me: u32) -> Result<(), u32> {
    word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).map(drop)
}

/// Takes the word after [`try_acquire`] failed. `sleep` waits while the word has the given value.
/// Returns false if it gave up.
#[cold]
pub(crate) fn acquire(word: &AtomicU32, me: u32, mut sleep: impl FnMut(u32) -> Next) -> bool {
    for _ in 0..LOCK_ATTEMPTS {
        if word.load(Ordering::Relaxed) == 0 && try_acquire(word, me).is_ok() {
            return true;
        }
        std::hint::spin_loop();
    }
    loop {
        // More threads may be sleeping; because of the bit, the thread that unlocks wakes the next
        // one.
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

/// Releases the word, wakes one sleeper if there is any, and returns the previous value. Returns
/// `None` if the word is not the caller's.
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
