//! Handles exits that run no code of the program: _exit(2), exit_group(2), and the default action
//! of signals.
//!
//! An engine (network stack) in the process must first send the remaining bytes of the sockets
//! ([`before_it_ends`]), as the kernel does for its own sockets.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use libc::c_int;
use towpath_client::interrupt;
use towpath_client::syscall::syscall;
use towpath_posix::signal as posix;

use crate::signals::ENDING;
use crate::{POSIX, real};

/// Address of the function to call before this process ends; 0 if there is none.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
/// ID of the process that registered [`BEFORE`]. A child created by a raw vfork(2) shares its
/// parent's memory, but must not call this function.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Registers a function that is called when this process is about to end by _exit(2) or by the
/// default action of a signal. Forked children do not call it.
pub fn before_it_ends(before: extern "C" fn()) {
    PROCESS.store(process(), Relaxed);
    BEFORE.store(before as *const () as usize, Relaxed);
    // SAFETY: the pointers are null or point to structures that outlive the call.
    let real = |signal, new, old| unsafe { real::sigaction(signal, new, old) };
    posix::stand_for_default(&POSIX, by_signal, real);
}

/// Asks the kernel for the process ID, because libc may have cached that of the parent.
fn process() -> u32 {
    // SAFETY: getpid(2) has no arguments.
    unsafe { syscall(libc::SYS_getpid as usize, [0; 6]) }.unwrap_or(0) as u32
}

/// Calls the function registered in `BEFORE`, because the process is about to end. Does nothing in
/// a child of the process that registered it.
pub fn come() {
    let before = BEFORE.load(Relaxed);
    if before != 0 && PROCESS.load(Relaxed) == process() {
        // SAFETY: `BEFORE` holds only addresses of functions of this type.
        let before: extern "C" fn() = unsafe { std::mem::transmute(before) };
        before();
    }
}

/// Signal handler that executes the default action of `signal`, which ends the process. Called with
/// all signals blocked.
extern "C" fn by_signal(signal: c_int) {
    // Record that a signal handler runs: it may have interrupted a thread that sleeps in the
    // engine's event loop.
    interrupt::handler_runs(true);
    come();
    // SAFETY: zeroed memory is valid for these C structures. The called functions are
    // async-signal-safe.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        real::sigaction(signal, &raw const default, std::ptr::null_mut());
        let mut one: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut one, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, std::ptr::null_mut());
    }
}

/// Unblocks the signals whose default action ends the process. Called by a process that ends in a
/// signal handler, where they are blocked.
pub fn hear_wishes_to_end() {
    // SAFETY: zeroed memory is a valid sigset_t.
    unsafe {
        let mut wishes: libc::sigset_t = std::mem::zeroed();
        for signal in ENDING {
            libc::sigaddset(&raw mut wishes, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const wishes, std::ptr::null_mut());
    }
}

fn exit_group(status: c_int) -> ! {
    come();
    loop {
        // SAFETY: exit_group(2) has no memory arguments.
        let _ = unsafe { syscall(libc::SYS_exit_group as usize, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit_group(status)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)] // Name as in libc.
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    exit_group(status)
}
