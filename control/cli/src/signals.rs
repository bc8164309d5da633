//! Signals: received through a signalfd, and passed on to PROGRAM.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Resource, Rlimit};
use towpath_engine::caller::SignalState;

/// Signals passed on to PROGRAM. All other signals have their default action in towpath.
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

/// The forwarded signals, blocked in this thread and its descendants, and read from a descriptor.
pub struct Signals {
    fd: SignalFd,
    original: SigSet,
    at_start: SignalState,
}

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// The signal.
    pub signal: Signal,
    /// Whether the terminal sent the signal to the foreground process group, so that PROGRAM has
    /// received it, too.
    pub from_terminal: bool,
}

impl Signals {
    /// Blocks the signals. Must be called before any thread is started.
    pub fn block() -> Result<Self> {
        let set: SigSet = FORWARDED.into_iter().collect();
        let original = SigSet::thread_get_mask()?;
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, original, at_start: SignalState::at_start() })
    }

    /// Restores the original mask, so that signals have their default actions again.
    pub fn unblock(&self) {
        // Cannot fail, because the kernel has returned the mask before.
        let _ = self.original.thread_set_mask();
    }

    /// Returns the signal state for PROGRAM.
    pub fn at_start(&self) -> SignalState {
        self.at_start
    }

    /// Returns the descriptor that becomes readable when a signal arrives.
    pub fn fd(&self) -> &SignalFd {
        &self.fd
    }

    /// Returns the next signal, if one has arrived.
    pub fn next(&self) -> Result<Option<Arrived>> {
        /// `si_code` of signals sent by the kernel, unlike those of kill(2).
        const SI_KERNEL: i32 = 0x80;
        let info = self.fd.read_signal().context("signalfd")?;
        Ok(info.and_then(|info| {
            let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
            Some(Arrived { signal, from_terminal: info.ssi_code == SI_KERNEL })
        }))
    }

    /// Returns whether the signal was ignored when towpath started, as SIGHUP is by nohup.
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
    // While stopped, the process waits between these calls until it is continued.
    set.thread_block()?;
    Ok(())
}

/// Ends this process by the signal that killed PROGRAM, so that its parent sees the same status.
/// Disables core dumps, which would be of towpath. Returns the shell's exit code if the signal does
/// not end this process, because it is ignored (SIGPIPE) or unknown.
pub fn die(number: i32) -> u8 {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    if let (Ok(signal), Ok(())) =
        (Signal::try_from(number), rustix::process::setrlimit(Resource::Core, no_core))
    {
        // Raise the signal twice, because the first SIGSEGV only removes the Rust runtime's
        // handler. If this process survives, the caller exits.
        for _ in 0..2 {
            let _ = SigSet::from(signal).thread_unblock();
            let _ = raise(signal);
        }
    }
    128u8.wrapping_add(number as u8)
}
