//! Cancellation of threads (pthread_cancel).
//!
//! libc ends a cancelled thread by unwinding its stack from the blocking system call. Calls of this
//! library block while they hold locks and reference counts, which unwinding would not release.
//! Therefore the cancellation signal only interrupts these calls ([`towpath_client::interrupt`]).
//! After the call has returned, [`point`] lets libc check whether the thread should end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use libc::{c_int, pthread_t};
use towpath_client::interrupt::{CancellationPoint, number_place, take_cancellation};
use towpath_posix::signal;

use crate::{POSIX, real, signals};

// Whether the program has ever called pthread_cancel.
static IN_USE: AtomicBool = AtomicBool::new(false);

// Distance in bytes from a pthread_t to the thread-local storage with that thread's ID. 0 if the
// process has no engine.
//
// In glibc and musl, a pthread_t is the value of the thread pointer. A library that is loaded at
// program start has its thread-local storage at a fixed distance from the thread pointer (static
// TLS). The storage is valid as long as the thread may be cancelled: until the thread is joined.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// Computes `DISTANCE`. Called by the constructor of the library.
pub fn prepare() {
    // SAFETY: `pthread_self` has no preconditions.
    let me = unsafe { libc::pthread_self() } as usize;
    DISTANCE.store(number_place().addr().wrapping_sub(me), Relaxed);
}

// libc may unwind the stack of a cancelled thread at any instruction. The shipped library is built
// with `panic = "abort"`, so its functions need no cleanup. If a library unwinds, as in tests, the
// call must be declared as "C-unwind". Otherwise libc cannot unwind through it.
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
            // The call has completed, so the program gets its result. Send the cancellation signal
            // again. With asynchronous cancellation it takes effect at once, otherwise at the next
            // cancellation point.
            signal::send_cancellation(towpath_client::thread_id());
            return result;
        }
        // The call was interrupted by a cancellation: the next iteration calls pthread_testcancel.
        // If the thread has disabled cancellation, that function returns, and the call is repeated.
    }
}

/// Runs a call that may wait. If a signal handler forks during the call, the child runs the call
/// again, over its own connection to the engine.
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
        // Replace libc's handler of the cancellation signal, which the call above has installed.
        signal::hear_cancellation(&POSIX, signals::entry_address());
        let place = (thread as usize).wrapping_add(distance) as *const AtomicU32;
        // SAFETY: the thread is not joined yet, by the contract of pthread_cancel. So its storage
        // is valid, and contains its ID at this distance.
        let number = unsafe { (*place).load(Relaxed) };
        // Send the signal ourselves. libc may have sent it before our handler was installed, or not
        // at all, if the thread is not in one of libc's cancellation points.
        if number != 0 && number != towpath_client::thread_id() {
            signal::send_cancellation(number);
        }
    }
    failed
}
