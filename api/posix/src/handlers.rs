//! The table of the program's signal handlers.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use libc::c_int;
use towpath_client::ProcessLock;

/// Signals are 1 to 64.
const SIGNALS: usize = 65;

/// Signals whose default action ends a process that has made no mistake. Faults and abort(3) are
/// others: what is wrong in the process may be wrong with its sockets.
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

/// The program's handler of each signal. A handler stays here when the program goes back to
/// SIG_DFL: the kernel may have begun to deliver a signal to another thread.
#[derive(Debug)]
pub(crate) struct Handlers {
    places: [HandlerPlace; SIGNALS],
    /// The kernel has it where the program has SIG_DFL, of signals that ask a process to end; 0:
    /// nothing stands there.
    stand_in: AtomicUsize,
    /// The table and the kernel change together.
    pub changes: ProcessLock<()>,
}

/// Where the handler of one signal stands.
#[derive(Debug)]
pub(crate) struct HandlerPlace(AtomicU64);

/// A handler: its address, and what its sigaction(2) said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handler(u64);

/// SA_RESTART.
const RESTART: u64 = 1 << 63;
/// SA_SIGINFO. The kernel is always given this flag: a handler that wants the information finds it
/// even if another thread replaces the handler meanwhile. Handlers without the flag ignore the
/// information.
const INFORMED: u64 = 1 << 62;
const ADDRESS: u64 = INFORMED - 1;

impl Handlers {
    /// No handler was set.
    pub const fn new() -> Self {
        Self {
            places: [const { HandlerPlace(AtomicU64::new(0)) }; SIGNALS],
            stand_in: AtomicUsize::new(0),
            changes: ProcessLock::new(()),
        }
    }

    /// From now on `address` stands for the default action where that ends the process.
    pub fn set_stand_in(&self, address: usize) {
        self.stand_in.store(address, Relaxed);
    }

    /// The kernel's handler for the program's SIG_DFL.
    pub fn stand_in(&self, signal: c_int) -> Option<usize> {
        let address = self.stand_in.load(Relaxed);
        (address != 0 && ENDING.contains(&signal)).then_some(address)
    }

    /// None: there is no such signal.
    pub fn of(&self, signal: c_int) -> Option<&HandlerPlace> {
        self.places.get(usize::try_from(signal).ok()?)
    }
}

impl HandlerPlace {
    pub fn load(&self) -> Handler {
        Handler(self.0.load(Acquire))
    }

    /// Under the lock.
    pub fn store(&self, handler: Handler) {
        self.0.store(handler.0, Release);
    }
}

impl Handler {
    /// The handler that `new` sets. `entry`, which the kernel has for every handler, stands for the
    /// handler known so far: a program that asked the kernel itself gives `entry` back.
    pub fn of(new: &libc::sigaction, known: Self, entry: usize) -> Self {
        let address = match new.sa_sigaction {
            at if at == entry => known.0 & ADDRESS,
            at => at as u64 & ADDRESS,
        };
        let bit = |flag, bit| if new.sa_flags & flag != 0 { bit } else { 0 };
        Self(address | bit(libc::SA_RESTART, RESTART) | bit(libc::SA_SIGINFO, INFORMED))
    }

    /// A handler at an address, whose flags the kernel alone knows.
    pub fn at(address: usize) -> Self {
        Self(address as u64)
    }

    pub fn address(self) -> usize {
        (self.0 & ADDRESS) as usize
    }

    /// Whether SA_RESTART is set.
    pub fn restarts(self) -> bool {
        self.0 & RESTART != 0
    }

    /// Whether SA_SIGINFO is set.
    pub fn is_informed(self) -> bool {
        self.0 & INFORMED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(address: usize, flags: c_int) -> libc::sigaction {
        // SAFETY: zeroes are a valid structure.
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
        place.store(Handler::of(&action(0x2000, libc::SA_RESTART), none, entry));
        let set = place.load();
        assert_eq!((set.address(), set.restarts(), set.is_informed()), (0x2000, true, false));
        let again = Handler::of(&action(entry, libc::SA_SIGINFO), set, entry);
        assert_eq!((again.address(), again.restarts(), again.is_informed()), (0x2000, false, true));
        assert_eq!(handlers.of(libc::SIGUSR2).map(HandlerPlace::load), Some(none));
        assert!([-1, 65, c_int::MIN].iter().all(|&signal| handlers.of(signal).is_none()));
    }
}
