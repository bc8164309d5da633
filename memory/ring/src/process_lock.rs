//! A lock that can be held across fork(2): the forking thread takes it before, and both parent and
//! child release it afterwards. A signal handler can check whether its own thread holds the lock.
//!
//! The standard library's Mutex is not suitable, because it waits by libc's function `syscall`. A
//! library that uses this crate replaces that function.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use rustix::thread::futex::{self, Flags};
use towpath_shm::atomic::{AtomicU32, Ordering};
use towpath_shm::layout::LOCK_CONTENDED;

use crate::thread_id;
use crate::word::{Next, acquire, release, try_acquire};

/// A mutex for the threads of this process, without recursive locking.
///
/// ```
/// use towpath_ring::ProcessLock;
///
/// static COUNT: ProcessLock<u32> = ProcessLock::new(0);
/// let mut count = COUNT.lock();
/// *count += 1;
/// // A signal handler that interrupts here would deadlock if it waited.
/// assert!(COUNT.lock_unless_mine().is_none());
/// drop(count);
/// assert_eq!(*COUNT.lock(), 1);
/// ```
#[derive(Debug, Default)]
pub struct ProcessLock<T> {
    // Thread id of the owner; 0 if the lock is free.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only accessed through a guard, of which there is at most one.
unsafe impl<T: Send> Sync for ProcessLock<T> {}

/// Access to the value that the lock protects. Dropping the guard releases the lock.
///
/// A guard can be shared between threads only if the value can:
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use towpath_ring::ProcessLock;
///
/// let lock = ProcessLock::new(AtomicU32::new(0));
/// let guard = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(|| guard.fetch_add(1, Ordering::Relaxed));
/// });
/// ```
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// use towpath_ring::ProcessLock;
///
/// let lock = ProcessLock::new(Cell::new(0));
/// let guard = lock.lock();
/// std::thread::scope(|scope| {
///     scope.spawn(|| guard.set(1));
/// });
/// ```
///
/// The lock contains the id of the thread that holds it, so a guard cannot be sent to another
/// thread:
///
/// ```compile_fail,E0277
/// use towpath_ring::ProcessLock;
///
/// static LOCK: ProcessLock<u32> = ProcessLock::new(0);
/// let guard = LOCK.lock();
/// std::thread::spawn(move || drop(guard));
/// ```
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a ProcessLock<T>,
    _of_this_thread: PhantomData<*const ()>,
}

// SAFETY: a shared guard only gives out `&T`, which threads may share because `T` is `Sync`.
unsafe impl<T: Sync> Sync for LockGuard<'_, T> {}

impl<T> ProcessLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting if necessary. Deadlocks if the calling thread already holds it.
    /// Therefore the caller must have blocked signals, or be sure that it did not interrupt a call
    /// that holds it.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        let me = thread_id();
        if try_acquire(&self.word, me).is_err() {
            self.lock_slowly(me);
        }
        self.guard()
    }

    /// Creates the guard. The calling thread must just have taken the lock.
    fn guard(&self) -> LockGuard<'_, T> {
        LockGuard { lock: self, _of_this_thread: PhantomData }
    }

    /// Takes the lock, waiting if necessary. Returns `None` if this thread already holds the lock,
    /// which means that the caller is a signal handler.
    #[inline]
    pub fn lock_unless_mine(&self) -> Option<LockGuard<'_, T>> {
        let me = thread_id();
        match try_acquire(&self.word, me) {
            Ok(()) => {}
            Err(held) if held & !LOCK_CONTENDED == me => return None,
            Err(_) => self.lock_slowly(me),
        }
        Some(self.guard())
    }

    /// Returns whether this thread holds the lock. The caller is then a signal handler, or code
    /// that runs under the lock.
    pub fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !LOCK_CONTENDED == thread_id()
    }

    #[cold]
    fn lock_slowly(&self, me: u32) {
        acquire(&self.word, me, |contended| {
            // Check the word again, whatever the result of the wait.
            let _ = futex::wait(&self.word, Flags::PRIVATE, contended, None);
            Next::Look
        });
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.lock.word;
        // Do not compare the thread id: in the child after fork(2), the word contains the id of the
        // parent's thread.
        release(
            word,
            |held| held != 0,
            || {
                // The call fails only if the address is not mapped.
                let _ = futex::wake(word, Flags::PRIVATE, 1);
            },
        );
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: only the guard gives access to the value, and threads can share it only if `T`
        // allows that.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only the guard gives access to the value, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes() {
        let lock = ProcessLock::new(0u64);
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
        let guard = lock.lock_unless_mine().unwrap();
        assert!(lock.is_mine() && lock.lock_unless_mine().is_none());
        drop(guard);
        assert!(lock.lock_unless_mine().is_some());
    }
}
