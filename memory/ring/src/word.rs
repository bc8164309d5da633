//! A mutex in one futex word: the common part of the locks in a socket's slot ([`crate::lock_rx`],
//! [`crate::lock_tx`]) and [`crate::ProcessLock`].
//!
//! The word is 0 if the lock is free, otherwise it identifies the thread that holds it.
//! [`LOCK_CONTENDED`] is set if a thread sleeps on the word.

use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::layout::LOCK_CONTENDED;
use towpath_shm::spin::LOCK_ATTEMPTS;

/// Next step after sleeping on the lock word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Check the lock word again, and continue to wait.
    Look,
    /// The caller holds the lock now: `sleep` has taken it over from a dead owner.
    Taken,
    /// Stop waiting for the lock.
    GiveUp,
}

/// Takes the lock for `me` if it is free. Otherwise returns the current lock word as an error.
#[inline]
pub(crate) fn try_acquire(word: &AtomicU32, me: u32) -> Result<(), u32> {
    word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).map(drop)
}

/// Takes the lock after [`try_acquire`] failed. `sleep` waits while the lock word has the given
/// value. Returns false if `sleep` gave up.
#[cold]
pub(crate) fn acquire(word: &AtomicU32, me: u32, mut sleep: impl FnMut(u32) -> Next) -> bool {
    for _ in 0..LOCK_ATTEMPTS {
        if word.load(Ordering::Relaxed) == 0 && try_acquire(word, me).is_ok() {
            return true;
        }
        std::hint::spin_loop();
    }
    loop {
        // Take the lock with the contended bit, because more threads may be sleeping. The unlock
        // then wakes one of them.
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

/// Releases the lock, wakes a sleeping thread if there is one, and returns the previous lock word.
/// Returns `None` if `is_ours` rejects the word, because the caller does not hold the lock.
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
