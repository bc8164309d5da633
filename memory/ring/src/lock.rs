//! The locks of a slot's two ends, shared by the threads and processes that hold the socket.
//!
//! The word is 0, or the owner: the number of its process's channel and its thread id, with
//! [`LOCK_CONTENDED`] when somebody sleeps. A process that dies with a lock (kill -9 of one of several)
//! must not stop the others. Only the engine can tell for sure: thread ids mean nothing from one PID
//! namespace to another, but a process that is gone has closed its control socket. The engine then
//! gives its locks back ([`release_dead`]). Sleepers look whether the engine itself still lives.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::{LOCK_CHANNEL_SHIFT, LOCK_CONTENDED, LOCK_ENGINE, Slot};

/// Before the first look whether the engine lives: far longer than anybody holds a lock.
const SLICE_MIN: Duration = Duration::from_millis(2);
/// Between two such looks, in the end.
const SLICE_MAX: Duration = Duration::from_millis(100);
/// The engine holds a lock for the time of a copy. After so long it is dead or stopped; it notices the
/// theft when it gives the lock back, and resets the connection.
const ENGINE_HOLDS_MAX: Duration = Duration::from_secs(2);
/// Attempts before the first sleep: an uncontended holder needs less than a microsecond.
const SPINS: u32 = 64;

/// A held lock; dropping it unlocks.
#[derive(Debug)]
pub struct Guard<'a> {
    word: &'a AtomicU32,
    owner: u32,
    nested: bool,
}

impl Guard<'_> {
    /// The thread had it already: this is a signal handler, on top of a call that is at the same end of
    /// the same socket and stands still. Its owner has to expect that; see [`crate::append`] and
    /// [`crate::program_fifo::consume_from`].
    pub fn is_nested(&self) -> bool {
        self.nested
    }
}

/// Locks the read end of a socket. None: somebody has it and `engine_lives` says no.
pub fn lock_rx(slot: &Slot, engine_lives: impl Fn() -> bool) -> Option<Guard<'_>> {
    lock(&slot.rx_lock, engine_lives)
}

/// Locks the write end of a socket. None: as for [`lock_rx`].
pub fn lock_tx(slot: &Slot, engine_lives: impl Fn() -> bool) -> Option<Guard<'_>> {
    lock(&slot.tx_lock, engine_lives)
}

/// The number of this process's channel, when it has got one: what its threads own is known by it.
pub fn set_channel(number: u32) {
    CHANNEL.store(number, Ordering::Relaxed);
}

/// To be called in the child after fork: its thread id is a new one. It is asked for at once, because a
/// child that is about to forbid itself system calls (seccomp) does not expect this one.
pub fn forked() {
    TID.set(0);
    thread_id();
}

/// For the engine, when the process on a channel is gone: what it held of a socket is free.
pub fn release_dead(slot: &Slot, channel: u32) {
    release(&slot.rx_lock, channel);
    release(&slot.tx_lock, channel);
}

fn release(word: &AtomicU32, channel: u32) {
    let mut held = word.load(Ordering::Relaxed);
    while is_owned_by(held, channel) {
        match word.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                if held & LOCK_CONTENDED != 0 {
                    futex::wake(word, 1);
                }
                return;
            }
            Err(now) => held = now,
        }
    }
}

fn is_owned_by(held: u32, channel: u32) -> bool {
    let owner = held & !LOCK_CONTENDED;
    owner != 0 && owner & LOCK_ENGINE == 0 && owner >> LOCK_CHANNEL_SHIFT == channel
}

fn lock(word: &AtomicU32, engine_lives: impl Fn() -> bool) -> Option<Guard<'_>> {
    let me = owner();
    let outer = enter();
    match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
        // Thread ids are cut off in the word: another thread's might look like ours, if we had any.
        Err(held) if outer > 0 && held & !LOCK_CONTENDED == me => {
            leave();
            Some(Guard { word, owner: me, nested: true })
        }
        Err(_) if !lock_slowly(word, me, engine_lives) => {
            leave();
            None
        }
        _ => Some(Guard { word, owner: me, nested: false }),
    }
}

/// Whether this thread has a lock: then this is a signal handler.
pub fn is_inside() -> bool {
    HELD.get() > 0
}

// Counted before the lock is taken and until after it is given back, as a handler sees it.
fn enter() -> u32 {
    let outer = HELD.get();
    HELD.set(outer + 1);
    compiler_fence(Ordering::SeqCst);
    outer
}

fn leave() {
    compiler_fence(Ordering::SeqCst);
    HELD.set(HELD.get() - 1);
}

#[cold]
fn lock_slowly(word: &AtomicU32, me: u32, engine_lives: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return true;
        }
        std::hint::spin_loop();
    }
    let (mut slice, mut engine_held) = (SLICE_MIN, Duration::ZERO);
    loop {
        let held = word.load(Ordering::Relaxed);
        if held == 0 {
            // Others may sleep still: keep the bit, so that our unlock wakes the next.
            let mine = me | LOCK_CONTENDED;
            if word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            continue;
        }
        let contended = held | LOCK_CONTENDED;
        if held != contended
            && word.compare_exchange(held, contended, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        if futex::wait(word, contended, Some(slice)) != Woken::TimedOut {
            continue;
        }
        if held & !LOCK_CONTENDED == LOCK_ENGINE {
            engine_held += slice;
            let mine = me | LOCK_CONTENDED;
            if engine_held > ENGINE_HOLDS_MAX
                && word
                    .compare_exchange(contended, mine, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return true;
            }
        }
        if !engine_lives() {
            return false;
        }
        slice = (slice * 2).min(SLICE_MAX);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.nested {
            return;
        }
        // Where it is not ours any more it is not ours to give back: the socket was closed and its slot is
        // another's.
        let _ = unlock(self.word, self.owner);
        leave();
    }
}

/// The engine's only way to a lock: it never waits.
pub(crate) fn try_lock_engine(word: &AtomicU32) -> bool {
    word.compare_exchange(0, LOCK_ENGINE, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives it back. False: somebody took it from us meanwhile, and may have used what it protects.
pub(crate) fn unlock_engine(word: &AtomicU32) -> bool {
    unlock(word, LOCK_ENGINE)
}

/// False: it is not the owner's.
fn unlock(word: &AtomicU32, owner: u32) -> bool {
    let mut held = word.load(Ordering::Relaxed);
    while held & !LOCK_CONTENDED == owner {
        match word.compare_exchange(held, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                if held & LOCK_CONTENDED != 0 {
                    futex::wake(word, 1);
                }
                return true;
            }
            Err(now) => held = now,
        }
    }
    false
}

thread_local! {
    // gettid is a system call, and a lock is taken for every read and write.
    static TID: Cell<u32> = const { Cell::new(0) };
    // Locks that this thread has, or is about to take.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

// Of this process; 0 before it has one.
static CHANNEL: AtomicU32 = AtomicU32::new(0);

/// What this thread writes into a lock word. Never 0.
fn owner() -> u32 {
    const THREAD_MASK: u32 = (1 << LOCK_CHANNEL_SHIFT) - 1;
    CHANNEL.load(Ordering::Relaxed) << LOCK_CHANNEL_SHIFT | (thread_id() & THREAD_MASK).max(1)
}

/// This thread's id, without a system call after the first.
pub fn thread_id() -> u32 {
    let tid = TID.get();
    if tid != 0 {
        return tid;
    }
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    TID.set(tid);
    tid
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_wakes() {
        let word = AtomicU32::new(0);
        let count = std::cell::UnsafeCell::new(0u64);
        struct Shared<'a>(&'a AtomicU32, &'a std::cell::UnsafeCell<u64>);
        // SAFETY: the cell is only touched under the lock, which is what the test checks.
        unsafe impl Sync for Shared<'_> {}
        let shared = &Shared(&word, &count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock(shared.0, || true);
                        // SAFETY: under the lock.
                        unsafe { *shared.1.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_dead_give_back_what_they_held() {
        let (dead, other) = (7 << LOCK_CHANNEL_SHIFT | 99, 8 << LOCK_CHANNEL_SHIFT | 99);
        let word = AtomicU32::new(dead);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock(&word, || true)));
            while word.load(Ordering::Relaxed) == dead {
                std::thread::yield_now();
            }
            release(&word, 8);
            assert!(!waiter.is_finished());
            release(&word, 7);
        });
        assert_eq!(word.load(Ordering::Relaxed), 0);
        // Without an engine nobody would ever give it back.
        word.store(other, Ordering::Relaxed);
        assert!(lock(&word, || false).is_none());
    }

    /// The slot's next socket is locked by another thread when the late owner comes to run.
    #[test]
    fn who_has_lost_it_does_not_free_it() {
        let word = AtomicU32::new(0);
        let guard = lock(&word, || true);
        word.store(1, Ordering::Relaxed);
        drop(guard);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_engine_notices_a_theft() {
        let word = AtomicU32::new(0);
        assert!(try_lock_engine(&word));
        assert!(!try_lock_engine(&word));
        drop(lock(&word, || true));
        assert!(!unlock_engine(&word));
        assert!(try_lock_engine(&word));
        assert!(unlock_engine(&word));
    }
}
