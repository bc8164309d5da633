//! Handles signals that arrive during calls that wait, and the cancellation of threads.
//!
//! A system call of the kernel does not sleep if a signal is pending. Calls of this library check
//! shared memory in user space first. A handler that runs between this check and the sleep would
//! not interrupt the sleep. Therefore the POSIX layer calls [`handler_runs`] when a handler of the
//! program begins, on the thread that the handler interrupts:
//!
//! ```text
//!   thread:   set the time limit | has a handler run? | system call: read the limit, sleep
//!   handler:  ------- counted, so the look sees it ---|-- limit 0: no sleep ------|-- EINTR
//! ```
//!
//! The time limit, which the kernel reads when the system call begins, is in thread-local storage,
//! so that handlers can set it to 0. The memory of the limit stays valid if a handler leaves the
//! call by siglongjmp. Between sleeps the limit is 0. A socket call in a handler therefore resets
//! it to 0, and the interrupted call does not sleep.
//!
//! A cancelled thread (pthread_cancel) gets a signal, whose handler calls [`cancellation_comes`].
//! In a call that is a cancellation point, the handler ends the wait. The POSIX layer ends the
//! thread later, when no lock is held.

use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, compiler_fence};

use crate::Deadline;
use crate::driver::Driver;
use crate::syscall::{nr, syscall};

struct InterruptedThread {
    // Number of signal handlers that have run on this thread.
    any: AtomicU32,
    // Number of signal handlers without SA_RESTART that have run on this thread.
    firm: AtomicU32,
    // Outermost cancellation point in which this thread is, or null. The pointer may be stale after
    // a siglongjmp.
    point: AtomicPtr<CancellationPoint>,
    cancelled: AtomicBool,
    // ID of the thread; 0 before its first cancellation point.
    number: AtomicU32,
    // Timeout of this thread's next sleep, as the two words of a struct timespec.
    limit: [AtomicI64; 2],
    // Driver of the engine in this process while this thread holds its lock and sleeps, otherwise
    // null.
    driver: AtomicPtr<Driver>,
}

std::thread_local! {
    // The fields are atomics, because a signal handler may run between any two instructions.
    static THREAD: InterruptedThread = const {
        InterruptedThread {
            any: AtomicU32::new(0),
            firm: AtomicU32::new(0),
            point: AtomicPtr::new(ptr::null_mut()),
            cancelled: AtomicBool::new(false),
            number: AtomicU32::new(0),
            limit: [AtomicI64::new(0), AtomicI64::new(0)],
            driver: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

/// Records that a signal handler of the program begins to run on this thread. `restarts` is true if
/// the handler has SA_RESTART.
pub fn handler_runs(restarts: bool) {
    THREAD.with(|thread| {
        // No increment is lost without an atomic addition, because handlers on one thread are
        // nested.
        thread.any.store(thread.any.load(Relaxed).wrapping_add(1), Relaxed);
        if !restarts {
            thread.firm.store(thread.firm.load(Relaxed).wrapping_add(1), Relaxed);
        }
        thread.end_sleep();
        thread.leave_driver();
    });
}

/// Handles the cancellation signal on this thread. Returns false if the thread is not in a
/// cancellation point of this library; libc must handle the signal then.
pub fn cancellation_comes() -> bool {
    THREAD.with(|thread| {
        // Release the driver lock, because libc may end the thread at once
        // (PTHREAD_CANCEL_ASYNCHRONOUS).
        thread.leave_driver();
        let inside = thread.is_in_point();
        if inside {
            thread.cancelled.store(true, Relaxed);
            thread.end_sleep();
        }
        inside
    })
}

/// A socket call that is a cancellation point (pthreads(7)). If the thread is cancelled during the
/// call, its waits end. The value is in the stack frame of the call.
///
/// ```text
///   enter ── waits, cancelled ──► EINTR ── leave: the POSIX layer lets libc end the thread
///     │
///     └── a handler leaves the call by siglongjmp. Other calls may later overwrite the frame;
///         the next point entered, or the next cancellation, checks whether the mark is intact.
/// ```
///
/// The type does not implement Drop, because libc may end the thread within the call, where
/// destructors must not run.
#[derive(Debug)]
pub struct CancellationPoint {
    /// [`CancellationPoint::MARK`] while this is the outermost cancellation point of its thread.
    mark: AtomicU32,
}

impl CancellationPoint {
    /// Value of the field `mark` while a thread is in the cancellation point. The value is neither
    /// an address nor common on call stacks, so an overwritten stack frame hardly ever contains it.
    const MARK: u32 = 0x9e4b_71d3;

    /// Creates a cancellation point that is not entered yet.
    pub const fn new() -> Self {
        Self { mark: AtomicU32::new(0) }
    }

    /// Enters the cancellation point: from now on, a cancellation of this thread ends its waits.
    /// Does nothing if the thread is already in one, as in a call of a signal handler.
    #[inline]
    pub fn enter(&self) {
        THREAD.with(|thread| {
            if thread.number.load(Relaxed) == 0 {
                thread.number.store(towpath_ring::thread_id(), Relaxed);
            }
            let outermost = thread.point.load(Relaxed).cast_const();
            // Become the outermost point if there is none, or if the recorded one is stale because
            // a siglongjmp has left it. A stale point may even have the same address.
            if outermost.is_null() || ptr::eq(outermost, self) || !thread.is_in_point() {
                self.mark.store(Self::MARK, Relaxed);
                // Store the mark before publishing the pointer to it, because a signal handler
                // reads both.
                compiler_fence(SeqCst);
                thread.point.store(ptr::from_ref(self).cast_mut(), Relaxed);
            }
        });
        compiler_fence(SeqCst);
    }

    /// Leaves the cancellation point: from now on, a cancellation does not end waits.
    #[inline]
    pub fn leave(&self) {
        compiler_fence(SeqCst);
        THREAD.with(|thread| {
            if ptr::eq(thread.point.load(Relaxed), self) {
                thread.point.store(ptr::null_mut(), Relaxed);
            }
        });
    }
}

impl Default for CancellationPoint {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the address of this thread's ID, for threads that send a signal to this thread. The ID
/// is 0 if the thread has never been in a cancellation point.
pub fn number_place() -> *const AtomicU32 {
    THREAD.with(|thread| &raw const thread.number)
}

/// Returns whether the thread was cancelled in a cancellation point since the last call.
pub fn take_cancellation() -> bool {
    THREAD.with(|thread| {
        thread.cancelled.load(Relaxed) && {
            thread.cancelled.store(false, Relaxed);
            true
        }
    })
}

impl InterruptedThread {
    /// Returns whether the thread is in a cancellation point. After a siglongjmp out of a point,
    /// this stays true until the stack frame of the point is overwritten, which usually happens
    /// soon.
    fn is_in_point(&self) -> bool {
        let point = self.point.load(Relaxed);
        if point.is_null() {
            return false;
        }
        let is_there = is_marked(point);
        if !is_there {
            self.point.store(ptr::null_mut(), Relaxed);
        }
        is_there
    }

    /// Releases the driver lock (the right to run the engine) if the interrupted thread sleeps and
    /// holds it. The signal handler may call siglongjmp, or a function that takes the lock.
    fn leave_driver(&self) {
        let driver = self.driver.swap(ptr::null_mut(), Relaxed);
        // SAFETY: a pointer that is not null was stored by `while_driving`, which the handler has
        // interrupted and which borrows the driver.
        if let Some(driver) = unsafe { driver.as_ref() } {
            driver.abandon();
        }
    }

    fn end_sleep(&self) {
        self.limit[0].store(0, Relaxed);
        self.limit[1].store(0, Relaxed);
    }
}

/// Runs a system call in which this thread sleeps while it holds the driver lock (the right to run
/// the engine). While it holds the lock, its signals are blocked except during this call.
pub(crate) fn while_driving<T>(driver: &Driver, sleep: impl FnOnce() -> T) -> T {
    THREAD.with(|thread| {
        thread.driver.store(ptr::from_ref(driver).cast_mut(), Relaxed);
        let slept = sleep();
        thread.driver.store(ptr::null_mut(), Relaxed);
        slept
    })
}

/// Returns whether the mark of a cancellation point is intact. Lets the kernel read the mark,
/// because the stack that contained the point may be unmapped.
#[cold]
fn is_marked(point: *const CancellationPoint) -> bool {
    const FUTEX_WAIT_PRIVATE: usize = 128;
    const EAGAIN: i32 = 11;
    const EFAULT: i32 = 14;
    let at_once = [0i64; 2];
    let limit = at_once.as_ptr().addr();
    let args = [point.addr(), FUTEX_WAIT_PRIVATE, CancellationPoint::MARK as usize, limit, 0, 0];
    // SAFETY: futex(2) fails with EAGAIN if the word at the address differs from the mark, and with
    // EFAULT if the address is not mapped. If they are equal, the time limit of 0 ends the sleep.
    let compared = unsafe { syscall(nr::FUTEX, args) };
    !matches!(compared, Err(EAGAIN | EFAULT))
}

/// Number of signal handlers that had run on this thread when a call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handled {
    any: u32,
    firm: u32,
}

impl Handled {
    /// Returns the number of signal handlers that have run on this thread until now.
    pub fn so_far() -> Self {
        THREAD
            .with(|thread| Self { any: thread.any.load(Relaxed), firm: thread.firm.load(Relaxed) })
    }

    /// Returns whether a signal handler that interrupts the call has run since `self` was read, or
    /// the thread was cancelled. A handler with SA_RESTART interrupts only calls with a time limit
    /// (`limited`); poll, select and epoll_wait count as such (signal(7)).
    pub fn is_interrupted(self, limited: bool) -> bool {
        let now = Self::so_far();
        let cancelled = THREAD.with(|thread| thread.cancelled.load(Relaxed));
        cancelled || now.firm != self.firm || limited && now.any != self.any
    }

    /// Returns whether signal handlers have run since `self` was read, but none that interrupts the
    /// call.
    pub(crate) fn is_restarted(self, limited: bool) -> bool {
        Self::so_far().any != self.any && !self.is_interrupted(limited)
    }

    /// Makes the system call `sleep`. Returns `None` if the call was interrupted before. `sleep`
    /// gets the address of the timeout, a struct timespec. A signal handler that runs before the
    /// kernel reads the timeout sets it to 0.
    pub fn sleep<T>(
        self,
        limited: bool,
        limit: SleepLimit,
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

/// Timeout of a system call that sleeps: a duration or a point in time, whichever the call
/// requires.
#[derive(Debug, Clone, Copy)]
pub struct SleepLimit {
    seconds: i64,
    ns: i64,
}

impl SleepLimit {
    /// No timeout: a time longer than the machine will run.
    pub const NEVER: Self = Self { seconds: i64::MAX, ns: 0 };

    /// Returns the time left until `deadline` as a duration. Without a deadline, returns
    /// [`Self::NEVER`].
    pub fn within(deadline: Option<Deadline>) -> Self {
        match deadline.map(Deadline::left) {
            Some(left) => Self {
                seconds: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                ns: i64::from(left.subsec_nanos()),
            },
            None => Self::NEVER,
        }
    }

    /// Converts a deadline to an absolute time, for system calls that take one.
    pub fn until(deadline: Deadline) -> Self {
        let (seconds, ns) = deadline.parts();
        Self { seconds, ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep(since: Handled, limited: bool, at: impl FnOnce(&[i64; 2])) -> bool {
        let limit = SleepLimit { seconds: 5, ns: 7 };
        // SAFETY: `place` is the address of two words, which no other thread writes.
        since.sleep(limited, limit, |place| at(unsafe { &*(place as *const [i64; 2]) })).is_some()
    }

    #[test]
    fn does_not_sleep_after_an_interrupt() {
        let since = Handled::so_far();
        assert!(sleep(since, true, |limit| assert_eq!(limit, &[5, 7])));
        handler_runs(true);
        assert!(sleep(since, false, |_| {}), "it goes on");
        assert!(!sleep(since, true, |_| unreachable!()));
        handler_runs(false);
        assert!(!sleep(since, false, |_| unreachable!()));
    }

    #[test]
    fn a_handler_clears_the_time_limit() {
        let since = Handled::so_far();
        let limit = SleepLimit { seconds: 5, ns: 7 };
        let left = since.sleep(false, limit, |place| {
            handler_runs(true);
            // SAFETY: `place` is the address of two words, which no other thread writes.
            unsafe { *(place as *const [i64; 2]) }
        });
        assert_eq!(left, Some([0, 0]));
        // A sleep within a signal handler must not leave a timeout with which the interrupted call
        // would sleep.
        let left = since.sleep(false, limit, |place| {
            assert!(sleep(Handled::so_far(), false, |_| {}));
            // SAFETY: `place` is the address of two words, which no other thread writes.
            unsafe { *(place as *const [i64; 2]) }
        });
        assert_eq!(left, Some([0, 0]));
    }

    #[test]
    fn only_cancellation_points_are_cancelled() {
        assert!(!cancellation_comes() && !take_cancellation());
        let since = Handled::so_far();
        let point = CancellationPoint::new();
        point.enter();
        assert!(cancellation_comes() && since.is_interrupted(false));
        point.leave();
        assert!(!cancellation_comes());
        assert!(take_cancellation() && !take_cancellation());
    }

    #[test]
    fn a_point_in_a_handler_leaves_the_interrupted_one() {
        let (outer, inner) = (CancellationPoint::new(), CancellationPoint::new());
        outer.enter();
        inner.enter();
        inner.leave();
        assert!(cancellation_comes() && take_cancellation());
        outer.leave();
        assert!(!cancellation_comes());
    }

    /// Returns without leaving the cancellation point, as after a siglongjmp.
    #[inline(never)]
    fn leave_by_a_jump() {
        let point = CancellationPoint::new();
        std::hint::black_box(&point).enter();
        assert!(cancellation_comes() && take_cancellation());
    }

    /// Overwrites the stack frame of the cancellation point that was left.
    #[inline(never)]
    fn use_the_stack() {
        std::hint::black_box([1u8; 4096]);
    }

    #[test]
    fn ignores_a_point_that_a_jump_left() {
        leave_by_a_jump();
        use_the_stack();
        assert!(!cancellation_comes());
        leave_by_a_jump();
        use_the_stack();
        let next = CancellationPoint::new();
        next.enter();
        assert!(cancellation_comes() && take_cancellation());
        next.leave();
        assert!(!cancellation_comes());
    }

    #[test]
    fn ignores_a_point_on_an_unmapped_stack() {
        let stack = towpath_shm::Mapping::private(4096).unwrap();
        // SAFETY: zeroed memory is a valid point, which consists of one atomic.
        unsafe { stack.view::<CancellationPoint>(0) }.enter();
        assert!(cancellation_comes() && take_cancellation());
        drop(stack);
        assert!(!cancellation_comes());
    }
}
