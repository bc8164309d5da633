//! Sleeping until a socket can go on.
//!
//! A thread that waits for one socket sleeps on a word of its slot. It looks every
//! [`LIVENESS_SLICE`] whether the engine is still there, so that nothing ever hangs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, clock_gettime};
use towpath_ring::Waiter;

use crate::{Client, Error, Socket};

/// Between two looks whether the engine lives.
pub const LIVENESS_SLICE: Duration = Duration::from_millis(500);
/// Looks before the first sleep, on a machine with processors to spare: about 10 µs.
const SPINS: u32 = 200;

/// A point in time of CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// From now on.
    pub fn after(timeout: Duration) -> Self {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self(now_ns().saturating_add(ns))
    }

    /// How long it is until then; zero when it is past.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now_ns()))
    }
}

/// Asks the system what waiting needs to know once. A program may forbid system calls later (seccomp),
/// and looking up the clock or the processors is not one that it expects.
pub(crate) fn prepare() {
    now_ns();
    spins();
}

/// Calls `attempt` until it gives something other than [`Error::WouldBlock`].
///
/// # Errors
/// What `attempt` gives; `TimedOut` when the deadline passed, `Interrupted` when a signal handler
/// ran (one that was installed with SA_RESTART does not interrupt a wait without deadline, as on
/// Linux), `Dead` when the engine died.
pub fn until<T>(
    client: &Client,
    socket: Socket,
    deadline: Option<Deadline>,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    for _ in 0..spins() {
        match attempt() {
            Err(Error::WouldBlock) => std::hint::spin_loop(),
            done => return done,
        }
    }
    let Some(slot) = client.slot(socket) else {
        return attempt()
            .map_err(|error| if error == Error::WouldBlock { Error::Dead } else { error });
    };
    loop {
        let waiter = Waiter::new(slot);
        match attempt() {
            Err(Error::WouldBlock) => {}
            done => return done,
        }
        if client.slot(socket).is_none() {
            return Err(Error::Dead);
        }
        let (word, seq) = waiter.word();
        match sleep(word, seq, deadline) {
            Err(Error::TimedOut) => {
                if !client.check_alive() {
                    return Err(Error::Dead);
                }
                if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
                    return Err(Error::TimedOut);
                }
            }
            other => other?,
        }
    }
}

fn sleep(word: &AtomicU32, expected: u32, deadline: Option<Deadline>) -> Result<(), Error> {
    let slice = Deadline::after(LIVENESS_SLICE);
    let until = deadline.map_or(slice, |deadline| deadline.min(slice));
    let at = Timespec {
        tv_sec: (until.0 / 1_000_000_000) as i64,
        tv_nsec: (until.0 % 1_000_000_000) as i64,
    };
    // futex_waitv is restarted by the kernel after a handler with SA_RESTART, with its time limit;
    // FUTEX_WAIT with a time limit never is. Linux restarts recv exactly when it has no SO_RCVTIMEO.
    let result = match deadline {
        None => match wait_restartable(word, expected, &at) {
            Err(Errno::NOSYS) => wait_interruptible(word, expected, &at),
            result => result,
        },
        Some(_) => wait_interruptible(word, expected, &at),
    };
    match result {
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(Errno::TIMEDOUT) => Err(Error::TimedOut),
        Err(Errno::INTR) => Err(Error::Interrupted),
        Err(errno) => Err(errno.into()),
    }
}

fn wait_restartable(word: &AtomicU32, expected: u32, until: &Timespec) -> Result<(), Errno> {
    let mut wait = Wait::new();
    wait.val = u64::from(expected);
    wait.uaddr = WaitPtr::new(word.as_ptr().cast());
    wait.flags = WaitFlags::SIZE_U32;
    futex::waitv(&[wait], WaitvFlags::empty(), Some(until), ClockId::Monotonic).map(drop)
}

fn wait_interruptible(word: &AtomicU32, expected: u32, until: &Timespec) -> Result<(), Errno> {
    let any = std::num::NonZeroU32::MAX;
    futex::wait_bitset(word, futex::Flags::empty(), expected, Some(until), any)
}

/// 0 on a machine where a spinning thread keeps the engine from its processor.
fn spins() -> u32 {
    const UNKNOWN: u32 = u32::MAX;
    // Not a OnceLock: a signal handler may come while it is found out.
    static SPIN: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = SPIN.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    let spins = if processors > 2 { SPINS } else { 0 };
    SPIN.store(spins, Ordering::Relaxed);
    spins
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
