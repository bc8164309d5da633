//! The locks of a slot's two ends, shared by the threads and processes that hold the socket.
//!
//! The word is 0, or the owner's thread id, with [`LOCK_CONTENDED`] when somebody sleeps. A thread
//! that dies with a lock (kill -9 of one of several processes) must not stop the others: sleepers
//! look whether the owner still lives, first after 2 ms, then ever more seldom.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Pid;
use towpath_shm::futex::{self, Woken};
use towpath_shm::layout::{LOCK_CONTENDED, LOCK_ENGINE, Slot};

/// Before the first look at the owner: far longer than anybody holds a lock, and short enough for
/// processes that do not live long themselves (workers that are killed one after the other).
const SLICE_MIN: Duration = Duration::from_millis(2);
/// Between two looks at the owner, in the end.
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
}

/// Locks the read end of a socket.
pub fn lock_rx(slot: &Slot) -> Guard<'_> {
    lock(&slot.rx_lock)
}

/// Locks the write end of a socket.
pub fn lock_tx(slot: &Slot) -> Guard<'_> {
    lock(&slot.tx_lock)
}

/// To be called in the child after fork: its thread id is a new one. It is asked for at once, because a
/// child that is about to forbid itself system calls (seccomp) does not expect this one.
pub fn forked() {
    TID.set(0);
    thread_id();
}

fn lock(word: &AtomicU32) -> Guard<'_> {
    let me = thread_id();
    if word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        lock_slowly(word, me);
    }
    Guard { word }
}

#[cold]
fn lock_slowly(word: &AtomicU32, me: u32) {
    for _ in 0..SPINS {
        if word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return;
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
                return;
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
        let owner = held & !LOCK_CONTENDED;
        let lost = if owner == LOCK_ENGINE {
            engine_held += slice;
            engine_held > ENGINE_HOLDS_MAX
        } else {
            !is_alive(owner)
        };
        let mine = me | LOCK_CONTENDED;
        if lost
            && word.compare_exchange(contended, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return;
        }
        slice = (slice * 2).min(SLICE_MAX);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.word.swap(0, Ordering::Release) & LOCK_CONTENDED != 0 {
            futex::wake(self.word, 1);
        }
    }
}

/// The engine's only way to a lock: it never waits.
pub(crate) fn try_lock_engine(word: &AtomicU32) -> bool {
    word.compare_exchange(0, LOCK_ENGINE, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives it back. False: somebody took it from us meanwhile, and may have used what it protects.
pub(crate) fn unlock_engine(word: &AtomicU32) -> bool {
    let mut held = word.load(Ordering::Relaxed);
    while held & !LOCK_CONTENDED == LOCK_ENGINE {
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
}

fn thread_id() -> u32 {
    let tid = TID.get();
    if tid != 0 {
        return tid;
    }
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    TID.set(tid);
    tid
}

fn is_alive(tid: u32) -> bool {
    let Some(pid) = i32::try_from(tid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    // A process that was killed and not yet waited for answers kill; its state tells.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{tid}/stat")) else {
        return true;
    };
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
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
                        let _guard = lock(shared.0);
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
    fn a_dead_owner_is_robbed() {
        let tid = std::thread::spawn(thread_id).join().unwrap();
        let word = AtomicU32::new(tid);
        let guard = lock(&word);
        assert_eq!(word.load(Ordering::Relaxed) & !LOCK_CONTENDED, thread_id());
        drop(guard);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_engine_notices_a_theft() {
        let word = AtomicU32::new(0);
        assert!(try_lock_engine(&word));
        assert!(!try_lock_engine(&word));
        drop(lock(&word));
        assert!(!unlock_engine(&word));
        assert!(try_lock_engine(&word));
        assert!(unlock_engine(&word));
    }
}
