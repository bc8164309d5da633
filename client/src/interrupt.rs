//! Signal handlers during calls that wait, and the cancellation of threads.
//!
//! A kernel call that a handler interrupted does not sleep again: the kernel sees the pending
//! signal, and runs the handler on return. Our calls look at shared memory in user space, where
//! handlers run at any time, also between the last look and the sleep. Looks are frequent, because
//! many wake-ups are spurious. So the API layer lets each handler of the program report that it
//! runs ([`handler_runs`]), on the thread that it interrupts:
//!
//! ```text
//!   thread:   set the time limit | has a handler run? | system call: read the limit, sleep
//!   handler:  ------ counted, and so seen there ------|-- limit 0: back at once --|-- EINTR
//! ```
//!
//! The time limit, which the kernel reads when the system call begins, is in the thread's own
//! storage. Handlers find it there, and it stays if one leaves the call by siglongjmp. Between
//! sleeps it is 0. A sleeping call in a handler thereby leaves no limit that would let the
//! interrupted call sleep.
//!
//! A cancelled thread (pthread_cancel) gets a signal as well, whose handler calls
//! [`cancellation_comes`]. In a call that is a cancellation point it ends the wait, and the API
//! layer acts on it where no lock is held.

use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, compiler_fence};

use crate::Deadline;
use crate::driver::Driver;
use crate::syscall::{nr, syscall};

struct InterruptedThread {
    // Handlers that ran, and those of them that were installed without SA_RESTART.
    any: AtomicU32,
    firm: AtomicU32,
    // The outermost cancellation point that the thread is in; null: none. May be stale after a
    // siglongjmp.
    point: AtomicPtr<CancellationPoint>,
    cancelled: AtomicBool,
    // The thread's number; 0 before its first cancellation point.
    number: AtomicU32,
    // struct timespec.
    limit: [AtomicI64; 2],
    // The engine whose driver sleeps; null: it does not.
    driver: AtomicPtr<Driver>,
}

std::thread_local! {
    // Atomics for the handlers, which strike between any two instructions.
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

/// A handler of the program's begins on this thread. `restarts`: it was installed with SA_RESTART.
pub fn handler_runs(restarts: bool) {
    THREAD.with(|thread| {
        // Handlers of one thread run one on top of the other: none is lost by a load and a store.
        thread.any.store(thread.any.load(Relaxed).wrapping_add(1), Relaxed);
        if !restarts {
            thread.firm.store(thread.firm.load(Relaxed).wrapping_add(1), Relaxed);
        }
        thread.end_sleep();
        thread.leave_driver();
    });
}

/// Handles the cancellation of this thread. False: the thread is in no cancellation point of ours,
/// so the cancellation is libc's.
pub fn cancellation_comes() -> bool {
    THREAD.with(|thread| {
        // libc may end the thread at once (PTHREAD_CANCEL_ASYNCHRONOUS).
        thread.leave_driver();
        let inside = thread.is_in_point();
        if inside {
            thread.cancelled.store(true, Relaxed);
            thread.end_sleep();
        }
        inside
    })
}

/// A cancellation point: a call of the program in which a cancellation of the thread ends waits.
/// The point lies in that call's stack frame.
///
/// ```text
///   enter ── waits, cancelled ──► EINTR ── leave: the API layer lets libc end the thread
///     │
///     └── a handler leaves the call by siglongjmp, unnoticed. Other calls may overwrite the frame;
///         the next point entered, or the next cancellation, checks whether the mark is intact.
///
/// (No guard: a thread that ends in it is not to run our code once more.)
#[derive(Debug)]
pub struct CancellationPoint {
    /// [`CancellationPoint::MARK`] while it is the outermost point of its thread.
    mark: AtomicU32,
}

impl CancellationPoint {
    /// No address, and no number that programs have on their stacks.
    const MARK: u32 = 0x9e4b_71d3;

    /// Not entered yet.
    pub const fn new() -> Self {
        Self { mark: AtomicU32::new(0) }
    }

    /// From here on a cancellation of this thread ends its waits. Within another point, as a call
    /// of a handler's is, that one goes on to be the one that counts.
    #[inline]
    pub fn enter(&self) {
        THREAD.with(|thread| {
            if thread.number.load(Relaxed) == 0 {
                thread.number.store(towpath_ring::thread_id(), Relaxed);
            }
            let outermost = thread.point.load(Relaxed).cast_const();
            // Without an outermost point, or with one that was left, perhaps at this very place,
            // this one takes over.
            if outermost.is_null() || ptr::eq(outermost, self) || !thread.is_in_point() {
                self.mark.store(Self::MARK, Relaxed);
                // A cancellation finds the mark where it finds the place.
                compiler_fence(SeqCst);
                thread.point.store(ptr::from_ref(self).cast_mut(), Relaxed);
            }
        });
        compiler_fence(SeqCst);
    }

    /// Ends the point.
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

/// Place of this thread's number, for threads that send it a signal. 0 if the thread has never been
/// in a cancellation point.
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

impl InterruptedThread {
    /// Whether the outermost point was neither ended nor left. The frame of one that was left is
    /// usually overwritten soon; before that, a cancellation is taken for one of a waiting call.
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

    /// Leaves the driver lock, if the thread sleeps there: the handler may call siglongjmp, or a
    /// function that becomes the driver.
    fn leave_driver(&self) {
        let driver = self.driver.swap(ptr::null_mut(), Relaxed);
        // SAFETY: the thread sleeps in `while_at_wheel`, which borrows it, and whose frame this one
        // is on top of.
        if let Some(driver) = unsafe { driver.as_ref() } {
            driver.abandon();
        }
    }

    fn end_sleep(&self) {
        self.limit[0].store(0, Relaxed);
        self.limit[1].store(0, Relaxed);
    }
}

/// A sleep of the driver, in a system call. With signals blocked but within the call.
pub(crate) fn while_driving<T>(driver: &Driver, sleep: impl FnOnce() -> T) -> T {
    THREAD.with(|thread| {
        thread.driver.store(ptr::from_ref(driver).cast_mut(), Relaxed);
        let slept = sleep();
        thread.driver.store(ptr::null_mut(), Relaxed);
        slept
    })
}

/// Whether the mark of a point is there still. The stack that it was on may not be: so the kernel
/// looks.
#[cold]
fn is_marked(point: *const CancellationPoint) -> bool {
    const FUTEX_WAIT_PRIVATE: usize = 128;
    const EAGAIN: i32 = 11;
    const EFAULT: i32 = 14;
    let at_once = [0i64; 2];
    let limit = at_once.as_ptr().addr();
    let args = [point.addr(), FUTEX_WAIT_PRIVATE, CancellationPoint::MARK as usize, limit, 0, 0];
    // SAFETY: the kernel compares the word at the address with the mark (EAGAIN), and refuses an
    // address without memory (EFAULT). Where they are equal it sleeps, for no time.
    let compared = unsafe { syscall(nr::FUTEX, args) };
    !matches!(compared, Err(EAGAIN | EFAULT))
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

    /// Whether a handler has run since that interrupts a call. By signal(7) a handler with
    /// SA_RESTART interrupts calls with a time limit (`limited`), and always poll, select and
    /// epoll_wait.
    pub fn is_interrupted(self, limited: bool) -> bool {
        let now = Self::so_far();
        let cancelled = THREAD.with(|thread| thread.cancelled.load(Relaxed));
        cancelled || now.firm != self.firm || limited && now.any != self.any
    }

    /// Whether handlers have run since, and none that interrupts a call: it is to go on.
    pub(crate) fn is_restarted(self, limited: bool) -> bool {
        Self::so_far().any != self.any && !self.is_interrupted(limited)
    }

    /// Begins a system call that sleeps, unless the call was interrupted already: then None.
    /// `sleep` gets the place of the time limit, a struct timespec that is 0 if a handler runs
    /// before the kernel reads it.
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

/// How long a system call may sleep, or until when: as it wants it.
#[derive(Debug, Clone, Copy)]
pub struct SleepLimit {
    seconds: i64,
    ns: i64,
}

impl SleepLimit {
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
        let limit = SleepLimit { seconds: 5, ns: 7 };
        // SAFETY: the place of two words, without other writers meanwhile.
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
        let limit = SleepLimit { seconds: 5, ns: 7 };
        let left = since.sleep(false, limit, |place| {
            handler_runs(true);
            // SAFETY: as above.
            unsafe { *(place as *const [i64; 2]) }
        });
        assert_eq!(left, Some([0, 0]));
        // A sleep within a handler leaves no limit that would let the interrupted call sleep.
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

    /// A call that ends as siglongjmp ends it: its frame is gone, and it has not said so.
    #[inline(never)]
    fn leave_by_a_jump() {
        let point = CancellationPoint::new();
        std::hint::black_box(&point).enter();
        assert!(cancellation_comes() && take_cancellation());
    }

    /// Overwrites the frame of the point that was left.
    #[inline(never)]
    fn use_the_stack() {
        std::hint::black_box([1u8; 4096]);
    }

    #[test]
    fn a_point_that_was_left_is_none() {
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
    fn a_point_on_a_stack_that_is_gone_is_none() {
        let stack = towpath_shm::Mapping::private(4096).unwrap();
        // SAFETY: zeroes are a point, and an atomic is all that it has.
        unsafe { stack.view::<CancellationPoint>(0) }.enter();
        assert!(cancellation_comes() && take_cancellation());
        drop(stack);
        assert!(!cancellation_comes());
    }
}
