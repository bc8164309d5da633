//! Signals: received as data, passed on to PROGRAM, or died of.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Resource, Rlimit};
use towpath_engine::caller::SignalState;

/// Signals that are passed on to PROGRAM. All others do to towpath what they do by default.
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

/// The forwarded signals, blocked in this thread and all that it starts, and readable instead.
pub struct Signals {
    fd: SignalFd,
    original: SigSet,
    at_start: SignalState,
}

/// One that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// Which.
    pub signal: Signal,
    /// The terminal sent it, to the whole foreground process group: PROGRAM has it already.
    pub from_terminal: bool,
}

impl Signals {
    /// To be called before any thread is started.
    pub fn block() -> Result<Self> {
        let set: SigSet = FORWARDED.into_iter().collect();
        let original = SigSet::thread_get_mask()?;
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, original, at_start: SignalState::at_start() })
    }

    /// Ends the blocking: they do again what they did before.
    pub fn unblock(&self) {
        // Fails for a bad argument only, and this is a mask that the kernel gave.
        let _ = self.original.thread_set_mask();
    }

    /// What PROGRAM gets.
    pub fn at_start(&self) -> SignalState {
        self.at_start
    }

    /// Becomes readable when one arrives.
    pub fn fd(&self) -> &SignalFd {
        &self.fd
    }

    /// The next that arrived.
    pub fn next(&self) -> Result<Option<Arrived>> {
        /// `si_code` of what the kernel itself sends; a process's kill() has another.
        const SI_KERNEL: i32 = 0x80;
        let info = self.fd.read_signal().context("signalfd")?;
        Ok(info.and_then(|info| {
            let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
            Some(Arrived { signal, from_terminal: info.ssi_code == SI_KERNEL })
        }))
    }

    /// Whether it was set to be ignored when towpath started, as nohup does with SIGHUP.
    pub fn is_ignored(&self, signal: Signal) -> bool {
        self.at_start.ignores(signal as i32)
    }
}

/// Does what `signal` does by default, now: stops this process when it says so and nothing forbids it
/// (the kernel does not stop an orphaned process group, which nobody could continue).
pub fn act(signal: Signal) -> Result<()> {
    let set = SigSet::from(signal);
    raise(signal)?;
    set.thread_unblock()?;
    // Between the two calls the process is stopped, until somebody continues it.
    set.thread_block()?;
    Ok(())
}

/// Ends this process as PROGRAM ended, so that the process that waits for it sees the same; a core dump of towpath
/// would only mislead. Returns the shell's code for it where that is not possible: a signal that is
/// ignored here (SIGPIPE) or unknown.
pub fn die(number: i32) -> u8 {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    if let (Ok(signal), Ok(())) =
        (Signal::try_from(number), rustix::process::setrlimit(Resource::Core, no_core))
    {
        // Twice: the first SIGSEGV only takes the Rust runtime's handler off.
        // If neither ends the process, the caller exits.
        for _ in 0..2 {
            let _ = SigSet::from(signal).thread_unblock();
            let _ = raise(signal);
        }
    }
    128u8.wrapping_add(number as u8)
}
