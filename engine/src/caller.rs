//! State that this process inherited from its parent, and how a program is started that inherits
//! the same.
//!
//! Ignored signals and the signal mask pass through exec (signal(7)). Rust's runtime ignores
//! SIGPIPE before `main`, and std starts each program with SIGPIPE's default and an empty mask. So
//! a program would not find its user's choice (`nohup`, `trap '' PIPE`). The inherited state is
//! therefore noted before the runtime starts, and restored between fork and exec.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Signals as a process has them when it starts; bit n - 1 stands for signal n.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalState {
    /// Signals that are ignored, a bit each. All others have their default action.
    pub ignored: u64,
    /// Signals that are blocked, a bit each.
    pub blocked: u64,
}

static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// NSIG of the kernel on all architectures that this is built for.
const SIGNALS: libc::c_int = 64;

// The C library calls it before `main`, and so before Rust's runtime changes anything.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    let (mut ignored, mut blocked) = (0, 0);
    // SAFETY: plain structures that the calls fill in; nothing is changed. Signals that the C
    // library keeps for itself are refused, and count as not ignored.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        for signal in 1..=SIGNALS {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
            ignored |= u64::from(known && action.sa_sigaction == libc::SIG_IGN) << (signal - 1);
            blocked |= u64::from(libc::sigismember(&raw const mask, signal) == 1) << (signal - 1);
        }
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    BLOCKED.store(blocked, Ordering::Relaxed);
}

impl SignalState {
    /// The signals that this process was started with: noted before `main`, whatever was changed
    /// since.
    pub fn at_start() -> Self {
        let (ignored, blocked) = (&IGNORED, &BLOCKED);
        Self { ignored: ignored.load(Ordering::Relaxed), blocked: blocked.load(Ordering::Relaxed) }
    }

    /// Whether a signal was ignored. Numbers that are no signal's (1 to 64) are not.
    pub fn ignores(self, signal: i32) -> bool {
        (1..=SIGNALS).contains(&signal) && self.ignored >> (signal - 1) & 1 == 1
    }

    /// Makes this the state of the calling process, whose only thread calls. Async-signal-safe.
    fn apply(self) {
        // SAFETY: plain structures, and no handler is installed. SIGKILL, SIGSTOP and the C
        // library's own signals are refused, which leaves them as they are.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            for signal in 1..=SIGNALS {
                let mut action: libc::sigaction = std::mem::zeroed();
                let ignored = self.ignores(signal);
                action.sa_sigaction = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                if self.blocked >> (signal - 1) & 1 == 1 {
                    libc::sigaddset(&raw mut mask, signal);
                }
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        }
    }
}

/// Lets this process wait for its children. A process that was started with SIGCHLD ignored has
/// none to wait for: the kernel forgets them as they end (waitpid(2)).
pub fn expect_children() {
    // SAFETY: a plain structure, and no handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut());
    }
}

/// Lets `command` begin with `signals`, and with `control` under the number `number`, on which it
/// is not closed by exec(2). A descriptor that had the number before is closed in the new process.
/// `control` stays open here as long as `command` is there.
pub fn prepare(command: &mut Command, signals: SignalState, control: OwnedFd, number: RawFd) {
    let begin = move || {
        signals.apply();
        // SAFETY: `control` is open as long as the closure is there, and the number is the
        // program's own business, whose process this is by now.
        let given = unsafe {
            if control.as_raw_fd() == number {
                libc::fcntl(number, libc::F_SETFD, 0)
            } else {
                libc::dup2(control.as_raw_fd(), number)
            }
        };
        if given == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes system calls by async-signal-safe functions
    // only, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(begin) };
}

/// Lets `command` begin with `signals`, and die by SIGKILL with the thread that starts it
/// (PR_SET_PDEATHSIG of prctl(2)). Children of `command` do not.
pub fn prepare_bound(command: &mut Command, signals: SignalState) {
    let begin = move || {
        signals.apply();
        // SAFETY: the call takes no memory.
        let bound = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if bound == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes async-signal-safe calls only, and
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(begin) };
}
