//! Signal handlers of the program. Before a handler runs, a socket call that it interrupts must be
//! notified ([`towpath_client::interrupt`]). Otherwise the call would continue to wait instead of
//! returning EINTR.
//!
//! For each signal with a handler, the kernel calls this library's entry function, which calls the
//! program's handler from the table in `handlers`. sigaction(2) shows the program its own handlers.
//! A program that sets a handler without libc bypasses this library. Its handler then runs, but may
//! not interrupt a socket call.

use libc::c_int;
use towpath_client::syscall::{SignalsBlocked, syscall};
use towpath_client::{LockGuard, interrupt};

use crate::Posix;
use crate::handlers::{ENDING, HandlerPlace, SignalHandler};

/// Number of the first real-time signal, with which libcs cancel threads. sigaction(3) rejects this
/// number.
const SIGCANCEL: c_int = 32;

/// Locks the table of signal handlers. The caller must have blocked signals. Returns `None` in a
/// child forked without this library, where the lock may be held by a thread that does not exist.
pub(crate) fn lock(posix: &'static Posix) -> Option<LockGuard<'static, ()>> {
    posix.client().ok().map(|_| posix.handlers.changes.lock())
}

/// Implements sigaction(2). Sets `entry`, this library's handler, in the kernel instead of the
/// program's handler. Returns the program's own handler in `old`. `real` calls libc's sigaction.
///
/// # Safety
/// `new` and `old` must each be null or point to a structure.
pub unsafe fn sigaction(
    posix: &'static Posix,
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
    entry: usize,
    real: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    let Some(handler) = posix.handlers.of(signal) else {
        return real(new, old);
    };
    let _blocked = SignalsBlocked::new();
    let _lock = lock(posix);
    // SAFETY: a sigaction of zeros is valid: SIG_DFL, no flags.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let failed = real(std::ptr::null(), &raw mut before);
    if failed != 0 {
        return failed;
    }
    let known = handler.load();
    // SAFETY: `new` is null or points to a sigaction. The copy is made before `old` is written,
    // since both may be the same structure.
    if let Some(mut new) = unsafe { new.as_ref() }.copied() {
        let is_handler = !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        if is_handler {
            handler.store(SignalHandler::of(&new, known, entry));
            new.sa_sigaction = entry;
            new.sa_flags |= libc::SA_SIGINFO;
        } else if new.sa_sigaction == libc::SIG_DFL
            && let Some(address) = posix.handlers.stand_in(signal)
        {
            new = standing_in(address);
        }
        let failed = real(&raw const new, std::ptr::null_mut());
        if failed != 0 {
            handler.store(known);
            return failed;
        }
    }
    if before.sa_sigaction == entry {
        before.sa_sigaction = known.address();
        if !known.is_informed() {
            before.sa_flags &= !libc::SA_SIGINFO;
        }
    } else if posix.handlers.stand_in(signal) == Some(before.sa_sigaction) {
        // SAFETY: a sigaction of zeros is valid, and stands for SIG_DFL.
        before = unsafe { std::mem::zeroed() };
    }
    // SAFETY: `old` is null or points to a sigaction.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// Sets `stand_in` as the kernel's handler of each signal of `ENDING` for which the program has
/// SIG_DFL. `stand_in` must end the process by the same signal. sigaction(2) still returns SIG_DFL
/// to the program. All signals are blocked while `stand_in` runs.
pub fn stand_for_default(
    posix: &'static Posix,
    stand_in: extern "C" fn(c_int),
    real: impl Fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
) {
    let address = stand_in as *const () as usize;
    let _blocked = SignalsBlocked::new();
    let _lock = lock(posix);
    posix.handlers.set_stand_in(address);
    let new = standing_in(address);
    for signal in ENDING {
        // SAFETY: a sigaction of zeros is valid: SIG_DFL, no flags.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        let asked = real(signal, std::ptr::null(), &raw mut before);
        if asked == 0 && before.sa_sigaction == libc::SIG_DFL {
            real(signal, &raw const new, std::ptr::null_mut());
        }
    }
}

/// Returns the sigaction that sets the handler at `address`, which replaces SIG_DFL in the kernel.
fn standing_in(address: usize) -> libc::sigaction {
    // SAFETY: a sigaction of zeros is valid, and sigfillset writes to a local mask.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = address;
        new.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&raw mut new.sa_mask);
        new
    }
}

/// Records that a signal handler begins to run, and returns the address of the program's handler.
/// Called by this library's handler, which the kernel calls for each signal.
pub fn begin(posix: &'static Posix, signal: c_int) -> usize {
    extern "C" fn nothing() {}
    let nothing = nothing as *const () as usize;
    // The kernel passes only valid signal numbers, so the table has an entry for the signal.
    let Some(handler) = posix.handlers.of(signal).map(HandlerPlace::load) else { return nothing };
    if signal == SIGCANCEL {
        // A cancellation point of this library is active. Do not run libc's handler: it may end the
        // thread at once, while the thread holds locks.
        if interrupt::cancellation_comes() {
            return nothing;
        }
    } else {
        interrupt::handler_runs(handler.restarts());
    }
    handler.address()
}

/// Replaces libc's handler of the cancellation signal by `entry`, if libc has set it.
pub fn hear_cancellation(posix: &'static Posix, entry: usize) {
    /// The kernel's `struct sigaction`, whose fields have a different order than those of libc's
    /// struct.
    #[repr(C)]
    struct KernelSigaction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    let mut action = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let change = |new: usize, old: usize| {
        let args = [SIGCANCEL as usize, new, old, 8, 0, 0];
        // SAFETY: `new` and `old` are 0 or addresses of structures that outlive the call. `args`
        // contains the length of the signal mask, 8 bytes.
        unsafe { syscall(libc::SYS_rt_sigaction as usize, args) }.is_ok()
    };
    let _blocked = SignalsBlocked::new();
    let _lock = lock(posix);
    let is_there = change(0, (&raw mut action).addr()) && action.handler > libc::SIG_IGN;
    let place = posix.handlers.of(SIGCANCEL).filter(|_| is_there && action.handler != entry);
    if let Some(place) = place {
        place.store(SignalHandler::at(action.handler));
        action.handler = entry;
        change((&raw const action).addr(), 0);
    }
}

/// Sends the signal with which libc cancels threads to a thread of this process.
pub fn send_cancellation(thread: u32) {
    let args = [std::process::id() as usize, thread as usize, SIGCANCEL as usize, 0, 0, 0];
    // SAFETY: tgkill takes integers only.
    let _ = unsafe { syscall(libc::SYS_tgkill as usize, args) };
}
