//! Receives signals through a signalfd, and forwards them to PROGRAM.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Resource, Rlimit};
use towpath_engine::caller::SignalState;

/// Signals that are forwarded to PROGRAM. All other signals have their default action in towpath.
const FORWARDED: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// The signals that are forwarded to PROGRAM. The signals are blocked in this thread and in threads
/// that it starts, and are read from a signalfd.
pub struct Signals {
    fd: SignalFd,
    original: SigSet,
    at_start: SignalState,
}

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// The received signal.
    pub signal: Signal,
    /// Whether the terminal has sent the signal to the whole foreground process group, so that
    /// PROGRAM has received it, too.
    pub from_terminal: bool,
}

impl Signals {
    /// Blocks the signals to forward. Must be called before any thread is started.
    pub fn block() -> Result<Self> {
        let set: SigSet = FORWARDED.into_iter().collect();
        let original = SigSet::thread_get_mask()?;
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, original, at_start: SignalState::at_start() })
    }

    /// Restores the original signal mask, so that the blocked signals have their default actions
    /// again.
    pub fn unblock(&self) {
        // Ignore errors: the mask is valid, because the kernel has returned it before.
        let _ = self.original.thread_set_mask();
    }

    /// Returns the signal mask and dispositions with which PROGRAM must start.
    pub fn at_start(&self) -> SignalState {
        self.at_start
    }

    /// Returns the descriptor that becomes readable when a signal arrives.
    pub fn fd(&self) -> &SignalFd {
        &self.fd
    }

    /// Returns the next signal; `None` if no signal has arrived.
    pub fn next(&self) -> Result<Option<Arrived>> {
        /// Value of `si_code` for signals that the kernel sends, such as those of a terminal.
        const SI_KERNEL: i32 = 0x80;
        let info = self.fd.read_signal().context("signalfd")?;
        Ok(info.and_then(|info| {
            let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
            Some(Arrived { signal, from_terminal: info.ssi_code == SI_KERNEL })
        }))
    }

    /// Returns whether the signal was ignored when towpath was started. nohup(1), for example,
    /// ignores SIGHUP.
    pub fn is_ignored(&self, signal: Signal) -> bool {
        self.at_start.ignores(signal as i32)
    }
}

/// Performs the default action of `signal`: a stop signal stops this process. The kernel does not
/// stop an orphaned process group, because no shell could continue it.
pub fn act(signal: Signal) -> Result<()> {
    let set = SigSet::from(signal);
    raise(signal)?;
    set.thread_unblock()?;
    // The process stops between these two calls, and waits here until it is continued.
    set.thread_block()?;
    Ok(())
}

/// Ends this process by the signal that killed PROGRAM, so that the parent sees the same status.
/// Disables core dumps, which would show the memory of towpath. Returns the exit code that a shell
/// uses if the signal is ignored (SIGPIPE) or unknown.
pub fn die(number: i32) -> u8 {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    if let (Ok(signal), Ok(())) =
        (Signal::try_from(number), rustix::process::setrlimit(Resource::Core, no_core))
    {
        // Raise the signal twice, because a handler of the Rust runtime catches the first SIGSEGV
        // and removes itself. If this process survives, the caller exits.
        for _ in 0..2 {
            let _ = SigSet::from(signal).thread_unblock();
            let _ = raise(signal);
        }
    }
    128u8.wrapping_add(number as u8)
}
