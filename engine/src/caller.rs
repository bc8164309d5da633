//! Preserves the signal state and descriptors that this process inherited, for programs that it
//! starts.
//!
//! Ignored signals and the signal mask are inherited through exec (signal(7)). Rust's runtime
//! ignores SIGPIPE before `main`, and std starts programs with the default for SIGPIPE and an empty
//! mask. A program would thus lose the signal state that its user has chosen (`nohup`, `trap ''
//! PIPE`). Therefore this module saves the inherited state before the runtime starts, and restores
//! it between fork and exec.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Signal state at the start of a process. Signal n has bit n - 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalState {
    /// Bit set of the ignored signals. All others have their default action.
    pub ignored: u64,
    /// Set of the blocked signals.
    pub blocked: u64,
}

static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// Number of signals on all supported architectures (NSIG of the kernel).
const SIGNALS: libc::c_int = 64;

// The C library calls this function before `main`, and so before Rust's runtime changes the signal
// state.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    let (mut ignored, mut blocked) = (0, 0);
    // SAFETY: the calls only write to local structures. `sigaction` fails for signals that the C
    // library reserves; the result then says that they are not ignored.
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
    /// Returns the signal state with which this process was started, even if it has changed since.
    pub fn at_start() -> Self {
        let (ignored, blocked) = (&IGNORED, &BLOCKED);
        Self { ignored: ignored.load(Ordering::Relaxed), blocked: blocked.load(Ordering::Relaxed) }
    }

    /// Returns whether a signal was ignored. Returns false for numbers outside of 1 to 64.
    pub fn ignores(self, signal: i32) -> bool {
        (1..=SIGNALS).contains(&signal) && self.ignored >> (signal - 1) & 1 == 1
    }

    /// Sets the signal state of the calling process, which must have one thread. Async-signal-safe.
    fn apply(self) {
        // SAFETY: the structures are valid, and no handler is set. The calls reject SIGKILL,
        // SIGSTOP and the C library's reserved signals, which stay unchanged.
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

/// Sets SIGCHLD to its default action, so that this process can wait for its children. If it were
/// ignored, as inherited from the parent, waitpid(2) would not return their status.
pub fn expect_children() {
    // SAFETY: `action` is a valid structure, and no handler is installed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut());
    }
}

/// Makes `command` start with the signal state `signals`, and with `control` as its descriptor
/// `number`, without FD_CLOEXEC. A descriptor that is already open at `number` is replaced in the
/// new process. In this process, `control` stays open until `command` is dropped.
pub fn prepare(command: &mut Command, signals: SignalState, control: OwnedFd, number: RawFd) {
    let begin = move || {
        signals.apply();
        // SAFETY: `control` is open as long as the closure exists. The new process may replace any
        // descriptor `number`, because it is about to execute the program.
        let given = unsafe {
            if control.as_raw_fd() == number {
                libc::fcntl(number, libc::F_SETFD, 0)
            } else {
                libc::dup2(control.as_raw_fd(), number)
            }
        };
        if given == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec, the closure calls only async-signal-safe functions, and
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(begin) };
}

/// Changes environment variables of `command`; `None` removes a variable. The variable `process_id`
/// is set to the process ID of the new program. Do not use `Command::env` too, which would undo the
/// changes.
pub fn set_environment(
    command: &mut Command,
    changes: Vec<(CString, Option<CString>)>,
    process_id: Option<CString>,
) {
    let begin = move || {
        let mut done = true;
        // SAFETY: names and values are NUL-terminated strings, which setenv(3) copies. The child
        // has one thread, in which glibc's allocator works after fork(2).
        unsafe {
            for (name, value) in &changes {
                done &= match value {
                    Some(value) => libc::setenv(name.as_ptr(), value.as_ptr(), 1),
                    None => libc::unsetenv(name.as_ptr()),
                } == 0;
            }
            if let Some(name) = &process_id {
                let own = CString::new(std::process::id().to_string())?;
                done &= libc::setenv(name.as_ptr(), own.as_ptr(), 1) == 0;
            }
        }
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure allocates, which glibc supports after fork(2) in a child with one thread,
    // and takes no other lock.
    unsafe { command.pre_exec(begin) };
}

/// Returns a duplicate of descriptor `number`, which this process inherited. Programs that this
/// process executes will not inherit `number`. All descriptors opened by this process have
/// FD_CLOEXEC, so an inherited descriptor is recognized by the missing flag.
///
/// # Errors
/// Returns EBADF if the number is not open or not inherited, or EMFILE.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the calls change only FD_CLOEXEC of `number`. No code in this process owns a
    // descriptor without that flag. F_DUPFD_CLOEXEC returns a new descriptor.
    unsafe {
        let flags = libc::fcntl(number, libc::F_GETFD);
        if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let own = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, ABOVE_INHERITED);
        if own == -1 || libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(own))
    }
}

/// Moves inherited descriptors to the numbers from `first` on, in the order of `kept`, which must
/// be ascending. Programs that this process executes do not inherit other descriptors below `end`.
///
/// # Errors
/// Returns EBADF if a descriptor in `kept` is not open or not inherited.
pub fn renumber_inherited(kept: &[RawFd], first: RawFd, end: RawFd) -> io::Result<()> {
    for (to, from) in (first..).zip(kept) {
        // SAFETY: no code in this process owns a descriptor without FD_CLOEXEC (`take_inherited`).
        let moved = unsafe {
            let flags = libc::fcntl(*from, libc::F_GETFD);
            if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
            to == *from || libc::dup2(*from, to) != -1
        };
        if !moved {
            return Err(io::Error::last_os_error());
        }
    }
    for number in first + kept.len() as RawFd..end {
        // SAFETY: F_SETFD accesses no memory, and no code in this process owns the number. For a
        // number that is not open, the call fails without effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Lowest number for duplicates of inherited descriptors. The number is above those that parents
/// usually choose for inherited sockets.
const ABOVE_INHERITED: RawFd = 64;

/// Makes `command` start with the signal state `signals`. The kernel kills the program, but not its
/// children, when the thread that starts it ends (PR_SET_PDEATHSIG of prctl(2)).
pub fn prepare_bound(command: &mut Command, signals: SignalState) {
    let begin = move || {
        signals.apply();
        // SAFETY: PR_SET_PDEATHSIG takes an integer, so the call accesses no memory.
        let bound = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if bound == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes async-signal-safe calls only, and
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(begin) };
}
