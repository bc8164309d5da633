//! The signal handlers of the program, by signal.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use libc::c_int;
use towpath_client::ProcessLock;

/// Number of entries in the table of signal handlers, which is indexed by signal number (1 to 64).
const SIGNALS: usize = 65;

/// Signals whose default action ends the process. Excludes signals for faults (such as SIGSEGV) and
/// of abort(3), because the state of the sockets in memory may be corrupt then.
pub(crate) const ENDING: [c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// The program's handler of each signal. If the program sets SIG_DFL, the previous handler stays in
/// the table, because another thread may still be calling it.
#[derive(Debug)]
pub(crate) struct Handlers {
    places: [HandlerPlace; SIGNALS],
    /// Address of this library's handler, which the kernel calls for the signals in [`ENDING`] if
    /// the program has set SIG_DFL; 0 if not set.
    stand_in: AtomicUsize,
    /// Lock held while a signal's table entry and the kernel's handler are changed, so that they
    /// stay consistent.
    pub changes: ProcessLock<()>,
}

/// Table entry with the program's handler of one signal.
#[derive(Debug)]
pub(crate) struct HandlerPlace(AtomicU64);

/// A signal handler: its address, and whether SA_RESTART and SA_SIGINFO are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalHandler(u64);

/// Bit that records whether the program set SA_RESTART.
const RESTART: u64 = 1 << 63;
/// Bit that records whether the program set SA_SIGINFO. For the kernel, SA_SIGINFO is always set,
/// because another thread may set a handler that needs `siginfo_t` at any time. Handlers without
/// SA_SIGINFO ignore this argument.
const INFORMED: u64 = 1 << 62;
const ADDRESS: u64 = INFORMED - 1;

impl Handlers {
    /// Creates a table in which no signal has a handler.
    pub const fn new() -> Self {
        Self {
            places: [const { HandlerPlace(AtomicU64::new(0)) }; SIGNALS],
            stand_in: AtomicUsize::new(0),
            changes: ProcessLock::new(()),
        }
    }

    /// Sets the address of this library's handler, which the kernel gets instead of SIG_DFL for the
    /// signals in [`ENDING`].
    pub fn set_stand_in(&self, address: usize) {
        self.stand_in.store(address, Relaxed);
    }

    /// Returns the handler that the kernel must get if the program sets SIG_DFL for `signal`. None:
    /// the kernel gets SIG_DFL.
    pub fn stand_in(&self, signal: c_int) -> Option<usize> {
        let address = self.stand_in.load(Relaxed);
        (address != 0 && ENDING.contains(&signal)).then_some(address)
    }

    /// Returns the table entry of a signal; `None` if there is no signal with this number.
    pub fn of(&self, signal: c_int) -> Option<&HandlerPlace> {
        self.places.get(usize::try_from(signal).ok()?)
    }
}

impl HandlerPlace {
    pub fn load(&self) -> SignalHandler {
        SignalHandler(self.0.load(Acquire))
    }

    /// Stores the handler. The caller must hold the lock [`Handlers::changes`].
    pub fn store(&self, handler: SignalHandler) {
        self.0.store(handler.0, Release);
    }
}

impl SignalHandler {
    /// Returns the handler that the program sets with `new`. `entry` is this library's handler,
    /// which the kernel calls for every signal. If `new` contains `entry`, the program has read it
    /// from the kernel. The result is then `known`, the program's current handler.
    pub fn of(new: &libc::sigaction, known: Self, entry: usize) -> Self {
        let address = match new.sa_sigaction {
            at if at == entry => known.0 & ADDRESS,
            at => at as u64 & ADDRESS,
        };
        let bit = |flag, bit| if new.sa_flags & flag != 0 { bit } else { 0 };
        Self(address | bit(libc::SA_RESTART, RESTART) | bit(libc::SA_SIGINFO, INFORMED))
    }

    /// Creates a handler from an address that the kernel has returned, without SA_RESTART and
    /// SA_SIGINFO.
    pub fn at(address: usize) -> Self {
        Self(address as u64)
    }

    pub fn address(self) -> usize {
        (self.0 & ADDRESS) as usize
    }

    /// Returns whether SA_RESTART is set for the handler.
    pub fn restarts(self) -> bool {
        self.0 & RESTART != 0
    }

    /// Returns whether SA_SIGINFO is set for the handler.
    pub fn is_informed(self) -> bool {
        self.0 & INFORMED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(address: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: a sigaction of zeros is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (address, flags);
        action
    }

    #[test]
    fn the_default_action_has_a_stand_in_where_it_ends_the_process() {
        let handlers = Handlers::new();
        assert_eq!(handlers.stand_in(libc::SIGTERM), None);
        handlers.set_stand_in(0x3000);
        assert_eq!(handlers.stand_in(libc::SIGTERM), Some(0x3000));
        assert_eq!(handlers.stand_in(libc::SIGCHLD), None);
        assert_eq!(handlers.stand_in(libc::SIGSEGV), None);
    }

    #[test]
    fn the_entry_stands_for_the_handler_before() {
        let handlers = Handlers::new();
        let place = handlers.of(libc::SIGUSR1).unwrap();
        let (entry, none) = (0x1000, place.load());
        place.store(SignalHandler::of(&action(0x2000, libc::SA_RESTART), none, entry));
        let set = place.load();
        assert_eq!((set.address(), set.restarts(), set.is_informed()), (0x2000, true, false));
        let again = SignalHandler::of(&action(entry, libc::SA_SIGINFO), set, entry);
        assert_eq!((again.address(), again.restarts(), again.is_informed()), (0x2000, false, true));
        assert_eq!(handlers.of(libc::SIGUSR2).map(HandlerPlace::load), Some(none));
        assert!([-1, 65, c_int::MIN].iter().all(|&signal| handlers.of(signal).is_none()));
    }
}
