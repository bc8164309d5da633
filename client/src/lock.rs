//! A lock that survives fork: whoever forks takes it before, and both sides give it back after.
//!
//! std's Mutex sleeps through libc's `syscall`, which the library built on this crate interposes.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

/// Mutual exclusion between the threads of this process; not reentrant.
#[derive(Debug, Default)]
pub struct Lock<T> {
    // 0 free, 1 held, 2 held and somebody sleeps.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to the value, until dropped.
#[derive(Debug)]
pub struct LockGuard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for it.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
        LockGuard(self)
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..100 {
            if self.word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(2, Ordering::Acquire) != 0 {
            // Every outcome means: look again.
            let _ = futex::wait(&self.word, Flags::PRIVATE, 2, None);
        }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.word.swap(0, Ordering::Release) == 2 {
            let _ = futex::wake(&self.0.word, Flags::PRIVATE, 1);
        }
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only way to the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }
}
