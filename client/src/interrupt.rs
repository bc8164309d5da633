//! Signal handlers during calls that wait, and the cancellation of threads.
//!
//! A call of the kernel's that a handler has interrupted does not go to sleep any more: the signal is pending
//! while it looks, and the handler runs when it returns. A call of ours looks at shared memory in user space,
//! where handlers run at any time, also between its last look and its sleep; and it looks often, because much
//! that wakes it turns out to be nothing for it. So the API layer lets each handler of the program say that it
//! runs ([`handler_runs`]), on the thread that it interrupts:
//!
//! ```text
//!   thread:   set the time limit | has a handler run? | system call: read the limit, sleep
//!   handler:  ------ counted, and so seen there ------|-- limit 0: back at once --|-- EINTR
//! ```
//!
//! The time limit, which the kernel reads when the system call begins, is in the thread's own storage: handlers
//! find it there, and it stays if one leaves the call by siglongjmp. Between sleeps it is 0, so that a call in a
//! handler that itself sleeps leaves nothing behind which would let the interrupted one sleep.
//!
//! A thread that is cancelled (pthread_cancel) gets a signal as well, whose handler says so with
//! [`cancellation_comes`]. In a call that is a cancellation point it ends the wait, and the API layer acts on
//! it where no lock is held.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, compiler_fence};

use crate::wait::Deadline;

struct Thread {
    // Handlers that ran, and those of them that were installed without SA_RESTART.
    any: AtomicU32,
    firm: AtomicU32,
    // Cancellation points that the thread is in: more than one where a handler is in one, too.
    points: AtomicU32,
    cancelled: AtomicBool,
    // The thread's number; 0 before its first cancellation point.
    number: AtomicU32,
    // struct timespec.
    limit: [AtomicI64; 2],
}

std::thread_local! {
    // Atomics for the handlers, which strike between any two instructions.
    static THREAD: Thread = const {
        Thread {
            any: AtomicU32::new(0),
            firm: AtomicU32::new(0),
            points: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
            number: AtomicU32::new(0),
            limit: [AtomicI64::new(0), AtomicI64::new(0)],
        }
    };
}

/// A handler of the program's begins on this thread. `restarts`: it was installed with SA_RESTART.
pub fn handler_runs(restarts: bool) {
    THREAD.with(|thread| {
        // Handlers of one thread run one on top of the other: none is lost by a load and a store.
        thread.any.store(thread.any.load(Relaxed).wrapping_add(1), Relaxed);
        if !restarts {
            thread.firm.store(thread.firm.load(Relaxed).wrapping_add(1), Relaxed);
        }
        thread.end_sleep();
    });
}

/// Somebody cancels this thread. False: it is in no cancellation point of ours, and this is not for us.
pub fn cancellation_comes() -> bool {
    THREAD.with(|thread| {
        let inside = thread.points.load(Relaxed) > 0;
        if inside {
            thread.cancelled.store(true, Relaxed);
            thread.end_sleep();
        }
        inside
    })
}

/// A cancellation point begins: from here on a cancellation of this thread ends its waits. (No guard: a thread
/// that ends in it is not to run our code once more.)
pub fn enter_point() {
    THREAD.with(|thread| {
        if thread.number.load(Relaxed) == 0 {
            thread.number.store(towpath_ring::thread_id(), Relaxed);
        }
        thread.points.store(thread.points.load(Relaxed) + 1, Relaxed);
    });
    compiler_fence(SeqCst);
}

/// It ends.
pub fn leave_point() {
    compiler_fence(SeqCst);
    THREAD.with(|thread| thread.points.store(thread.points.load(Relaxed) - 1, Relaxed));
}

/// Where the number of this thread is, for those who want to send it a signal: 0 if it has never been in a
/// cancellation point.
pub fn number_place() -> *const AtomicU32 {
    THREAD.with(|thread| &raw const thread.number)
}

/// Whether a cancellation came in a cancellation point since the last time this was asked.
pub fn take_cancellation() -> bool {
    THREAD.with(|thread| {
        thread.cancelled.load(Relaxed) && {
            thread.cancelled.store(false, Relaxed);
            true
        }
    })
}

impl Thread {
    fn end_sleep(&self) {
        self.limit[0].store(0, Relaxed);
        self.limit[1].store(0, Relaxed);
    }
}

/// The handlers that had run on this thread when a call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    any: u32,
    firm: u32,
}

impl Handled {
    /// Until now.
    pub fn so_far() -> Self {
        THREAD
            .with(|thread| Self { any: thread.any.load(Relaxed), firm: thread.firm.load(Relaxed) })
    }

    /// Whether a handler has run since that interrupts a call. One installed with SA_RESTART interrupts only
    /// what has a time limit (`limited`), and poll, select and epoll_wait always: signal(7).
    pub fn is_interrupted(self, limited: bool) -> bool {
        let now = Self::so_far();
        let cancelled = THREAD.with(|thread| thread.cancelled.load(Relaxed));
        cancelled || now.firm != self.firm || limited && now.any != self.any
    }

    /// Whether handlers have run since, and none that interrupts a call: it is to go on.
    pub(crate) fn is_restarted(self, limited: bool) -> bool {
        Self::so_far().any != self.any && !self.is_interrupted(limited)
    }

    /// Begins a system call that sleeps, unless the call was interrupted already: then None. `sleep` gets the
    /// place of the time limit, a struct timespec that is 0 if a handler runs before the kernel reads it.
    pub fn sleep<T>(
        self,
        limited: bool,
        limit: Limit,
        sleep: impl FnOnce(usize) -> T,
    ) -> Option<T> {
        THREAD.with(|thread| {
            thread.limit[0].store(limit.seconds, Relaxed);
            thread.limit[1].store(limit.ns, Relaxed);
            compiler_fence(SeqCst);
            let slept =
                (!self.is_interrupted(limited)).then(|| sleep((&raw const thread.limit).addr()));
            thread.end_sleep();
            slept
        })
    }
}

/// How long a system call may sleep, or until when: as it wants it.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    seconds: i64,
    ns: i64,
}

impl Limit {
    /// Longer than the machine will run, as a point in time or as a time.
    pub const NEVER: Self = Self { seconds: i64::MAX, ns: 0 };

    /// From when the kernel reads it; None: for ever, or longer than the machine will run.
    pub fn within(deadline: Option<Deadline>) -> Self {
        match deadline.map(Deadline::left) {
            Some(left) => Self {
                seconds: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                ns: i64::from(left.subsec_nanos()),
            },
            None => Self::NEVER,
        }
    }

    /// A point in time.
    pub fn until(deadline: Deadline) -> Self {
        let (seconds, ns) = deadline.parts();
        Self { seconds, ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep(since: Handled, limited: bool, at: impl FnOnce(&[i64; 2])) -> bool {
        let limit = Limit { seconds: 5, ns: 7 };
        // SAFETY: the place of two words, which nobody else writes to meanwhile.
        since.sleep(limited, limit, |place| at(unsafe { &*(place as *const [i64; 2]) })).is_some()
    }

    #[test]
    fn whoever_was_interrupted_does_not_sleep() {
        let since = Handled::so_far();
        assert!(sleep(since, true, |limit| assert_eq!(limit, &[5, 7])));
        handler_runs(true);
        assert!(sleep(since, false, |_| {}), "it goes on");
        assert!(!sleep(since, true, |_| unreachable!()));
        handler_runs(false);
        assert!(!sleep(since, false, |_| unreachable!()));
    }

    #[test]
    fn a_handler_takes_the_time_limit_away() {
        let since = Handled::so_far();
        let limit = Limit { seconds: 5, ns: 7 };
        let left = since.sleep(false, limit, |place| {
            handler_runs(true);
            // SAFETY: as above.
            unsafe { *(place as *const [i64; 2]) }
        });
        assert_eq!(left, Some([0, 0]));
        // What sleeps in a handler does not let the interrupted call sleep.
        let left = since.sleep(false, limit, |place| {
            assert!(sleep(Handled::so_far(), false, |_| {}));
            // SAFETY: as above.
            unsafe { *(place as *const [i64; 2]) }
        });
        assert_eq!(left, Some([0, 0]));
    }

    #[test]
    fn only_cancellation_points_are_cancelled() {
        assert!(!cancellation_comes() && !take_cancellation());
        let since = Handled::so_far();
        enter_point();
        assert!(cancellation_comes() && since.is_interrupted(false));
        leave_point();
        assert!(!cancellation_comes());
        assert!(take_cancellation() && !take_cancellation());
    }
}
