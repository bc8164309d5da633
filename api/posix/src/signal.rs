//! Handlers of the program's signals. Each is announced ([`towpath_client::interrupt`]) before it
//! runs: a call that waits in user space would not notice it otherwise.
//!
//! In the kernel an entry of ours stands for each handler of the program; which one it stands for
//! is in a table here. The program sees the handlers that it set. Handlers set without libc go to
//! the kernel: they run, but a call that they interrupt between two sleeps goes on.

use libc::c_int;
use towpath_client::syscall::{SignalsBlocked, syscall};
use towpath_client::{LockGuard, interrupt};

use crate::Posix;
use crate::handlers::{ENDING, Handler, HandlerPlace};

/// The first real-time signal, by which libcs tell a thread that it is cancelled. sigaction(3)
/// refuses it.
const SIGCANCEL: c_int = 32;

/// With signals blocked. None in a child that was made without us (by a raw clone, say): the thread
/// that held the lock may not exist in it.
pub(crate) fn lock(posix: &'static Posix) -> Option<LockGuard<'static, ()>> {
    posix.client().ok().map(|_| posix.handlers.changes.lock())
}

/// sigaction(2). `entry` is what the kernel is to call, and `real` libc's.
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
    // SAFETY: zeroes are a valid structure.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let failed = real(std::ptr::null(), &raw mut before);
    if failed != 0 {
        return failed;
    }
    let known = handler.load();
    // SAFETY: the caller's promise. Read before the answer is written, which may be at the same
    // place.
    if let Some(mut new) = unsafe { new.as_ref() }.copied() {
        let is_handler = !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        if is_handler {
            handler.store(Handler::of(&new, known, entry));
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
        // SAFETY: as above; SIG_DFL is 0.
        before = unsafe { std::mem::zeroed() };
    }
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// Has `stand_in` called where the program has SIG_DFL, of signals that ask a process to end. Its
/// part is to end the process by the same signal. The program is told SIG_DFL. All signals are
/// blocked in it.
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
        // SAFETY: zeroes are a valid structure.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        let asked = real(signal, std::ptr::null(), &raw mut before);
        if asked == 0 && before.sa_sigaction == libc::SIG_DFL {
            real(signal, &raw const new, std::ptr::null_mut());
        }
    }
}

/// The stand-in as the kernel gets it.
fn standing_in(address: usize) -> libc::sigaction {
    // SAFETY: zeroes are a valid structure, and the mask is a local one's.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = address;
        new.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&raw mut new.sa_mask);
        new
    }
}

/// The entry's work: announces that a handler runs, and gives its address.
pub fn begin(posix: &'static Posix, signal: c_int) -> usize {
    extern "C" fn nothing() {}
    let nothing = nothing as *const () as usize;
    // The kernel gives only numbers of signals.
    let Some(handler) = posix.handlers.of(signal).map(HandlerPlace::load) else { return nothing };
    if signal == SIGCANCEL {
        // libc's handler may end the thread at once, with the locks that it has.
        if interrupt::cancellation_comes() {
            return nothing;
        }
    } else {
        interrupt::handler_runs(handler.restarts());
    }
    handler.address()
}

/// Puts the entry before libc's handler of cancellation, once there is one.
pub fn hear_cancellation(posix: &'static Posix, entry: usize) {
    /// The kernel's structure, whose fields stand otherwise than those of libc's.
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
        // SAFETY: structures that outlive the call, or null; the mask has 8 bytes.
        unsafe { syscall(libc::SYS_rt_sigaction as usize, args) }.is_ok()
    };
    let _blocked = SignalsBlocked::new();
    let _lock = lock(posix);
    let is_there = change(0, (&raw mut action).addr()) && action.handler > libc::SIG_IGN;
    let place = posix.handlers.of(SIGCANCEL).filter(|_| is_there && action.handler != entry);
    if let Some(place) = place {
        place.store(Handler::at(action.handler));
        action.handler = entry;
        change((&raw const action).addr(), 0);
    }
}

/// Sends a thread of this process the signal of cancellation, as libc does.
pub fn send_cancellation(thread: u32) {
    let args = [std::process::id() as usize, thread as usize, SIGCANCEL as usize, 0, 0, 0];
    // SAFETY: integers only.
    let _ = unsafe { syscall(libc::SYS_tgkill as usize, args) };
}
