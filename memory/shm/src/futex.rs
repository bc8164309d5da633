//! Futexes in shared memory: FUTEX_WAIT and FUTEX_WAKE without FUTEX_PRIVATE_FLAG (futex(2)),
//! because the two sides may be different processes.

use std::time::Duration;

#[cfg(not(loom))]
use rustix::thread::futex::{self, Flags, Timespec};

#[cfg(not(loom))]
use crate::atomic::AtomicU32;

/// Reason why [`wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The thread was woken, the word did not have the expected value, or the wake-up was spurious.
    Changed,
    /// A signal handler interrupted the wait.
    Interrupted,
    /// The timeout has expired.
    TimedOut,
}

/// Replacement for loom: lets other threads run, then returns. The caller checks the futex word
/// again.
#[cfg(loom)]
pub fn wait<W>(_: &W, _: u32, _: Option<Duration>) -> Woken {
    loom::thread::yield_now();
    Woken::Changed
}

/// Loom's replacement: does nothing, because threads do not sleep in a model.
#[cfg(loom)]
pub fn wake<W>(_: &W, _: u32) {}

/// Sleeps while `word` is `expected`, for at most `timeout` (`None` means no limit). The kernel
/// compares and sleeps atomically, so a [`wake`] after a change is never missed. [`Woken::Changed`]
/// may be spurious (futex(2)), so the caller must check the word.
#[cfg(not(loom))]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Woken {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => Woken::Interrupted,
        Err(rustix::io::Errno::TIMEDOUT) => Woken::TimedOut,
        _ => Woken::Changed,
    }
}

/// Wakes up to `n` threads that sleep on `word`. The maximum 2^31 - 1 wakes all. Fails only for an
/// invalid address, which a reference excludes.
#[cfg(not(loom))]
pub fn wake(word: &AtomicU32, n: u32) {
    let woken = futex::wake(word, Flags::empty(), n);
    debug_assert!(woken.is_ok());
}
