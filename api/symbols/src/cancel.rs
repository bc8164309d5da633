//! Cancellation of threads (pthread_cancel).
//!
//! libc ends a cancelled thread by unwinding its stack, from the system call in which it waits.
//! Calls of ours wait while they hold locks and counts, which an unwind would not give back. So
//! within them the signal of cancellation only ends the wait ([`towpath_client::interrupt`]). The
//! call returns as if interrupted, and here, where no lock is held, libc checks whether the thread
//! is to end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use libc::{c_int, pthread_t};
use towpath_client::interrupt::{Point, number_place, take_cancellation};
use towpath_posix::signal;

use crate::{POSIX, real, signals};

// A thread was cancelled in this process.
static IN_USE: AtomicBool = AtomicBool::new(false);

// Distance from a pthread_t to the place of that thread's number; 0 without an attachment. A
// library that is loaded at the program's start has its thread-local storage at a fixed distance
// from the thread pointer (static TLS). In glibc and musl a pthread_t is the address that the
// thread pointer belongs to. The place is valid for as long as the thread may be cancelled: until
// it is joined.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// In the constructor.
pub fn prepare() {
    // SAFETY: only asks.
    let me = unsafe { libc::pthread_self() } as usize;
    DISTANCE.store(number_place().addr().wrapping_sub(me), Relaxed);
}

// The shipped library aborts on a panic: its functions have nothing to do when a stack is unwound,
// and libc unwinds them from any instruction. In a library that unwinds, as for its tests, libc
// finds the way out only from calls that may unwind.
#[cfg(panic = "abort")]
unsafe extern "C" {
    fn pthread_testcancel();
}
#[cfg(not(panic = "abort"))]
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Runs a call that is a cancellation point: it does not return if the thread is cancelled before
/// it or while it waits. The call returns as C functions do: -1 and errno.
#[inline]
pub fn point<T: PartialEq + From<i8>>(call: impl Fn() -> T) -> T {
    let point = Point::new();
    loop {
        point.enter();
        if IN_USE.load(Relaxed) {
            // SAFETY: nothing is held, and there is nothing here to be dropped.
            unsafe { pthread_testcancel() };
        }
        let result = restarted(&call);
        point.leave();
        if !take_cancellation() {
            return result;
        }
        // SAFETY: errno's own place in this thread.
        let errno = unsafe { *libc::__errno_location() };
        if result != T::from(-1) || errno != libc::EINTR {
            // The program gets the result of its call. The cancellation follows at once in a thread
            // that may be cancelled at any point, and else at the next cancellation point.
            signal::send_cancellation(towpath_client::thread_id());
            return result;
        }
        // Back to where libc looks. If it does not end the thread, that has cancellation disabled,
        // and the call goes on.
    }
}

/// Runs a call that may wait. A signal handler that it runs on top of may fork: in the child the
/// call begins again, on the child's own attachment.
#[inline]
pub fn restarted<T: PartialEq + From<i8>>(call: impl Fn() -> T) -> T {
    loop {
        let result = call();
        // SAFETY: errno's own place in this thread.
        let forked =
            result == T::from(-1) && unsafe { *libc::__errno_location() } == libc::ERESTART;
        if !forked {
            return result;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    if POSIX.is_active() {
        IN_USE.store(true, Relaxed);
    }
    // SAFETY: as called.
    let failed = unsafe { real::pthread_cancel(thread) };
    let distance = DISTANCE.load(Relaxed);
    if failed == 0 && POSIX.is_active() && distance != 0 {
        // libc's handler is there since its first call.
        signal::hear_cancellation(&POSIX, signals::entry_address());
        let place = (thread as usize).wrapping_add(distance) as *const AtomicU32;
        // SAFETY: the thread was not joined, as called; see DISTANCE.
        let number = unsafe { (*place).load(Relaxed) };
        // libc may have sent the signal before our handler was set. Or it sent none, as for a
        // thread that waits in no call of libc's.
        if number != 0 && number != towpath_client::thread_id() {
            signal::send_cancellation(number);
        }
    }
    failed
}
