//! Ends of a process at which no code of its own runs: _exit(2), exit_group(2), and the default
//! action of signals.
//!
//! An engine in the process must deliver the remaining bytes before ([`before_it_ends`]). With
//! sockets of its own the kernel would do so.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use libc::c_int;
use towpath_client::interrupt;
use towpath_client::syscall::syscall;
use towpath_posix::signal as posix;

use crate::signals::ENDING;
use crate::{POSIX, real};

/// Called before this process ends; 0: nothing.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
/// The process that this is about. A child may have the memory of its parent (vfork(2) by number).
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Has `before` called when this process is about to end by _exit(2), or by the default action of a
/// signal that asks it to. Children do not call it.
pub fn before_it_ends(before: extern "C" fn()) {
    PROCESS.store(process(), Relaxed);
    BEFORE.store(before as *const () as usize, Relaxed);
    // SAFETY: structures that outlive the call, or null.
    let real = |signal, new, old| unsafe { real::sigaction(signal, new, old) };
    posix::stand_for_default(&POSIX, by_signal, real);
}

/// The kernel's answer: libc's may be an older one, of a parent.
fn process() -> u32 {
    // SAFETY: getpid(2) has no arguments.
    unsafe { syscall(libc::SYS_getpid as usize, [0; 6]) }.unwrap_or(0) as u32
}

pub fn come() {
    let before = BEFORE.load(Relaxed);
    if before != 0 && PROCESS.load(Relaxed) == process() {
        // SAFETY: nothing but such functions is stored there.
        let before: extern "C" fn() = unsafe { std::mem::transmute(before) };
        before();
    }
}

/// The default action of `signal`, all signals being blocked.
extern "C" fn by_signal(signal: c_int) {
    // The thread may sleep as the driver.
    interrupt::handler_runs(true);
    come();
    // SAFETY: plain structures, and calls of libc's that handlers may make.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        real::sigaction(signal, &raw const default, std::ptr::null_mut());
        let mut one: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut one, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, std::ptr::null_mut());
    }
}

/// For a process that ends in a handler: signals that ask for its end reach it from now on.
pub fn hear_wishes_to_end() {
    // SAFETY: a plain structure.
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
#[allow(non_snake_case)] // As libc has it.
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    exit_group(status)
}
