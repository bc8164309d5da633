//! Sleeping on a 32-bit word of a shared mapping: FUTEX_WAIT and FUTEX_WAKE of the shared kind
//! (futex(2)), so that the two sides may be processes.

use std::time::Duration;

#[cfg(not(loom))]
use rustix::thread::futex::{self, Flags, Timespec};

#[cfg(not(loom))]
use crate::atomic::AtomicU32;

/// Why [`wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// A wake-up, or the word had changed already.
    Changed,
    /// A signal handler ran.
    Interrupted,
    /// The time was up.
    TimedOut,
}

/// In a model: others run, then the caller looks again.
#[cfg(loom)]
pub fn wait<W>(_: &W, _: u32, _: Option<Duration>) -> Woken {
    loom::thread::yield_now();
    Woken::Changed
}

/// In a model nobody sleeps.
#[cfg(loom)]
pub fn wake<W>(_: &W, _: u32) {}

/// Sleeps while `word` is `expected`, for at most `timeout` on CLOCK_MONOTONIC (None: no limit).
/// The kernel compares and goes to sleep in one step, so that a [`wake`] after a change is never
/// missed. [`Woken::Changed`] may come without either (futex(2), "spurious wake-up"): the caller
/// looks at the word.
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

/// Wakes up to `n` sleepers (at most 2^31 - 1, which is all of them). A failure would mean a bad
/// address, which a reference rules out.
#[cfg(not(loom))]
pub fn wake(word: &AtomicU32, n: u32) {
    let woken = futex::wake(word, Flags::empty(), n);
    debug_assert!(woken.is_ok());
}
