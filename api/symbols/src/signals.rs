//! Exports functions that set signal handlers: see [`towpath_posix::signal`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, sighandler_t, sigset_t};
use towpath_posix::{Errno, signal as posix};

use crate::{POSIX, answer, real};

/// Handler that the kernel calls for every signal. The function gets the address of the program's
/// handler from `begin`, and jumps there with the kernel's arguments (a tail call). Therefore the
/// program's handler returns or unwinds as if the kernel had called it.
#[unsafe(naked)]
unsafe extern "C" fn entry() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {begin}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        begin = sym begin,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "stp x2, x30, [sp, #16]",
        "bl {begin}",
        "mov x9, x0",
        "ldp x2, x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x9",
        begin = sym begin,
    );
}

extern "C" fn begin(signal: c_int) -> usize {
    posix::begin(&POSIX, signal)
}

/// Returns the address of [`entry`], which replaces libc's handler of the cancellation signal.
pub fn entry_address() -> usize {
    entry as *const () as usize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    let real = |new, old| unsafe { real::sigaction(signal, new, old) };
    if !POSIX.is_active() {
        return real(new, old);
    }
    // SAFETY: the caller upholds the C function's contract.
    unsafe { posix::sigaction(&POSIX, signal, new, old, entry_address(), real) }
}

/// glibc's internal name of sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { sigaction(signal, new, old) }
}

/// Signals by which users request the end of a process.
pub const ENDING: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Sets `handler` for the signals that request the end of the process, unless the program ignores
/// them. Called in exit(3) after the program's exit handlers. Otherwise a signal's default action
/// could replace the exit status.
pub fn on_end_request(handler: extern "C" fn(c_int)) {
    for signal in ENDING {
        // SAFETY: zeroed memory is valid for these C structures, and the pointers are to local
        // variables.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let asked = real::sigaction(signal, std::ptr::null(), &raw mut before);
            if asked == 0 && before.sa_sigaction != libc::SIG_IGN {
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = handler as *const () as sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                real::sigaction(signal, &raw const new, std::ptr::null_mut());
            }
        }
    }
}

// Signals for which siginterrupt(3) has disabled restarts of system calls, as a bit mask. signal(3)
// reads it.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    1u64.checked_shl(signal as u32 - 1).unwrap_or(0)
}

/// Sets the handler of a signal, and returns the previous handler.
unsafe fn set(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    blocked: Option<c_int>,
) -> sighandler_t {
    // SAFETY: zeroed memory is valid for these C structures, and the pointers are to local
    // variables.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if let Some(blocked) = blocked {
            // Ignore an error: for an invalid signal number, sigaction below fails, too.
            libc::sigaddset(&raw mut new.sa_mask, blocked);
        }
        if handler == libc::SIG_ERR {
            answer::set_errno(libc::EINVAL);
            return libc::SIG_ERR;
        }
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// signal(3) with BSD semantics: the handler stays set after it has run, and system calls are
/// restarted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = signal > 0 && INTERRUPTS.load(Relaxed) & bit(signal) != 0;
    // SAFETY: the caller upholds the C function's contract.
    unsafe { set(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, Some(signal)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { signal(number, handler) }
}

/// Entry point of signal(3) for programs compiled with System V semantics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { set(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, None) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller upholds the C function's contract.
    unsafe { __sysv_signal(signal, handler) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    const SIG_HOLD: sighandler_t = 2;
    // SAFETY: zeroed memory is valid for these C structures, and the pointers are to local
    // variables.
    unsafe {
        let mut one: sigset_t = std::mem::zeroed();
        let mut blocked: sigset_t = std::mem::zeroed();
        if libc::sigaddset(&raw mut one, signal) != 0 {
            return libc::SIG_ERR;
        }
        if handler == SIG_HOLD {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, &raw mut blocked);
            if libc::sigismember(&raw const blocked, signal) == 1 {
                return SIG_HOLD;
            }
            let mut old: libc::sigaction = std::mem::zeroed();
            return match sigaction(signal, std::ptr::null(), &raw mut old) {
                0 => old.sa_sigaction,
                _ => libc::SIG_ERR,
            };
        }
        let before = set(signal, handler, 0, None);
        if before == libc::SIG_ERR {
            return before;
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, &raw mut blocked);
        if libc::sigismember(&raw const blocked, signal) == 1 { SIG_HOLD } else { before }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, flag: c_int) -> c_int {
    // SAFETY: zeroed memory is a valid sigaction, and the pointer is to a local variable.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
            return answer::int(Err(Errno(libc::EINVAL)));
        }
        if flag != 0 {
            INTERRUPTS.fetch_or(bit(signal), Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTS.fetch_and(!bit(signal), Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        sigaction(signal, &raw const action, std::ptr::null_mut())
    }
}
