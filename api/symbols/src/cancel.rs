//! Cancellation of threads (pthread_cancel).
//!
//! libc ends a cancelled thread by unwinding its stack from the blocking system call. Our calls
//! block while they hold locks and reference counts, which an unwind would not release. Within them
//! the cancellation signal therefore only interrupts the wait ([`towpath_client::interrupt`]). The
//! call returns as if interrupted. Then [`point`], which holds no lock, lets libc check whether the
//! thread should end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use libc::{c_int, pthread_t};
use towpath_client::interrupt::{CancellationPoint, number_place, take_cancellation};
use towpath_posix::signal;

use crate::{POSIX, real, signals};

// True after the first pthread_cancel of this process.
static IN_USE: AtomicBool = AtomicBool::new(false);

// Distance from a pthread_t to that thread's number in thread-local storage; 0 without an
// attachment.
//
// In glibc and musl a pthread_t is the value of the thread pointer. A library that is loaded at
// program start has its thread-local storage at a fixed distance from the thread pointer (static
// TLS). The storage is valid as long as the thread may be cancelled: until the thread is joined.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// Computes `DISTANCE`. Called by the constructor of the library.
pub fn prepare() {
    // SAFETY: `pthread_self` has no preconditions.
    let me = unsafe { libc::pthread_self() } as usize;
    DISTANCE.store(number_place().addr().wrapping_sub(me), Relaxed);
}

// The shipped library is built with `panic = "abort"`: its functions need no cleanup when a stack
// is unwound, and libc can unwind them from any instruction. A library that unwinds, as in tests,
// must declare the call as "C-unwind", otherwise libc cannot unwind through it.
#[cfg(panic = "abort")]
unsafe extern "C" {
    fn pthread_testcancel();
}
#[cfg(not(panic = "abort"))]
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Runs a call that is a cancellation point. Does not return if the thread is cancelled before the
/// call or while the call waits. `call` returns -1 and sets errno if it fails.
#[inline]
pub fn point<T: PartialEq + From<i8>>(call: impl Fn() -> T) -> T {
    let point = CancellationPoint::new();
    loop {
        point.enter();
        if IN_USE.load(Relaxed) {
            // SAFETY: this frame holds no lock and no value that needs to be dropped.
            unsafe { pthread_testcancel() };
        }
        let result = restarted(&call);
        point.leave();
        if !take_cancellation() {
            return result;
        }
        // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
        let errno = unsafe { *libc::__errno_location() };
        if result != T::from(-1) || errno != libc::EINTR {
            // The call has completed, so the program gets its result. Send the cancellation again:
            // it takes effect at once in a thread with asynchronous cancellation, otherwise at the
            // next cancellation point.
            signal::send_cancellation(towpath_client::thread_id());
            return result;
        }
        // The next round lets libc check for the cancellation. If the thread has disabled
        // cancellation, pthread_testcancel returns and the call is repeated.
    }
}

/// Runs a call that may wait, and restarts it in a forked child. A signal handler that runs during
/// the call may fork; in the child the call starts again on the child's own attachment.
#[inline]
pub fn restarted<T: PartialEq + From<i8>>(call: impl Fn() -> T) -> T {
    loop {
        let result = call();
        // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
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
    // SAFETY: the caller upholds the C function's contract.
    let failed = unsafe { real::pthread_cancel(thread) };
    let distance = DISTANCE.load(Relaxed);
    if failed == 0 && POSIX.is_active() && distance != 0 {
        // libc installed its own handler in the call above.
        signal::hear_cancellation(&POSIX, signals::entry_address());
        let place = (thread as usize).wrapping_add(distance) as *const AtomicU32;
        // SAFETY: the thread is not joined yet, by the contract of pthread_cancel, so its storage
        // is valid and has its number at this distance.
        let number = unsafe { (*place).load(Relaxed) };
        // Send the signal ourselves: libc may have sent it before our handler was installed. libc
        // sends none if the thread is not in one of its cancellation points.
        if number != 0 && number != towpath_client::thread_id() {
            signal::send_cancellation(number);
        }
    }
    failed
}
