//! An engine in the process that it serves. Threads that wait in socket calls run its event loop;
//! one iteration is a *turn*.
//!
//! The *driver* is the thread that holds the driver lock, so that it alone may turn the engine. The
//! *stand-by thread* turns the engine when no other thread does. Threads that wait for the lock
//! sleep on the *hand-off word*. *Lending* lets another thread take the lock during a sleep.
//!
//! ```text
//!   a thread that would sleep:   take ─► turn ─► its own event? ─ yes ─► leave, and go on
//!                                          ▲         │ no: nothing to do
//!                                          └── sleep on the engine's descriptor, and on its own
//!   another such thread:         sleep as beside any engine, and on the hand-off word
//!   the stand-by thread:         tick … no turn since the last tick? take ─► turn ─► sleep there
//! ```
//!
//! [`Relay`] holds the number of the driver. Only a wait for a list of descriptors lends the lock,
//! because descriptors wake the thread whichever thread turns the engine. The words of sockets do
//! not, so a thread that waits for words keeps the lock while it sleeps.
//!
//! A thread that is woken repeatedly without events for itself stops running the engine:
//! [`Patience`].
//!
//! # No wake-up is lost
//!
//! - Either some thread is the driver, or the stand-by thread ticks: see [`Relay`].
//! - A driver sleeps on the engine's descriptor, at most until the engine wants a turn. Before
//!   that, the engine's status page says that it sleeps. Writers of commands look at the page
//!   afterwards; the engine looks for commands after it wrote the page
//!   ([`towpath_ring::EngineStatus::fall_asleep`]).
//! - A driver that leaves while the engine is awake wakes another thread to take the lock, or
//!   leaves it to the stand-by thread's ticks. The stand-by thread does not tick while it sleeps as
//!   the driver, so a thread that takes the lock from it wakes it.
//! - A thread that retires releases the lock first, then asks to be woken on its words, and looks
//!   at them once more.
//!
//! A request (bind, connect) is answered by the thread that makes it, if the lock is free or lent.
//! Bytes of a send leave when the thread waits next, or by the stand-by thread. The stand-by thread
//! then sleeps on the engine's descriptor, and is rung like an engine on a thread of its own.

mod driver_lock;
mod engine;
mod last;
mod patience;
mod stack;
mod stand_by;
mod state;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::io::Errno;
use towpath_ring::{Relay, Taken, notification};

use crate::syscall::SignalsBlocked;
use crate::{Error, HighFd, Process};

use state::DriverState;

pub use driver_lock::DriverLock;
pub use engine::{EngineStep, TurnedEngine};
pub use patience::Patience;
pub use state::Turned;
pub use towpath_ring::Who;

/// An engine in this process, and the lock that the thread holds which runs the engine's event
/// loop.
pub struct Driver {
    process: &'static Process,
    relay: Relay,
    engine: UnsafeCell<DriverState>,
    /// Duplicate of the engine's descriptor. Threads can sleep on it even after the engine has
    /// ended.
    descriptor: HighFd,
    /// Number of times that any thread has begun to run the engine's event loop.
    turns: AtomicU32,
    /// Eventfd that wakes the stand-by thread after another thread has taken the driver lock from
    /// it.
    notifier: HighFd,
    /// Whether the stand-by thread exists, which runs the engine when no other thread does. Other
    /// threads then need not wait for the driver lock.
    is_stood_by: AtomicBool,
    has_ended: AtomicBool,
}

// SAFETY: only the thread that holds the relay's lock accesses `engine` (see `DriverLock`), and the
// engine is Send.
unsafe impl Sync for Driver {}

impl Driver {
    /// Creates a driver whose lock no thread holds. Call [`Self::stand_by`] on a separate thread.
    /// When that thread ends, other processes notice that the engine has ended
    /// ([`towpath_ring::Life`]).
    ///
    /// # Errors
    /// `Refused` if no descriptor is free, or there is no memory for the engine's stack.
    pub fn new(process: &'static Process, engine: Box<dyn TurnedEngine>) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let descriptor = high(rustix::io::fcntl_dupfd_cloexec(engine.descriptor(), 0)?.into());
        let notifier = high(notification::create().map_err(|_| Errno::MFILE)?);
        Ok(Self {
            process,
            relay: Relay::new(),
            engine: UnsafeCell::new(DriverState::new(engine, process.descriptors.engines_from())?),
            descriptor,
            turns: AtomicU32::new(0),
            notifier,
            is_stood_by: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Returns whether a thread with the role `who` can take the driver lock now.
    pub(crate) fn is_free_for(&self, who: Who) -> bool {
        self.relay.is_free_for(who)
    }

    /// Takes the driver lock, or returns `None` if another thread holds it. For `Who::Waits`,
    /// blocks the thread's signals; threads with other roles have already blocked theirs.
    pub fn take(&self, who: Who) -> Option<DriverLock<'_>> {
        if !self.relay.is_free_for(who) {
            return None;
        }
        // Block signals: a handler that needs the engine would wait for this thread, which it
        // interrupts.
        let signals = (who == Who::Waits).then(SignalsBlocked::new);
        let me = who.number(towpath_ring::thread_id());
        if self.relay.take(me, who)? == Taken::FromStandBy {
            notification::ring(self.notifier.borrow());
        }
        Some(DriverLock::new(self, me, signals))
    }

    /// Counts this thread as a waiter on the hand-off word. The thread is about to sleep on that
    /// word, and takes the driver lock when the word changes. Returns `None` if the lock can be
    /// taken now.
    pub(crate) fn follow(&self) -> Option<Following<'_>> {
        self.relay.follow().map(|handoff| Following { driver: self, handoff })
    }

    /// Counts this thread among those that take the driver lock when they are woken. The thread is
    /// about to sleep on a list of descriptors that includes an eventfd for wake-ups. Returns
    /// `None` if the lock can be taken now. The thread that holds the lock must not call this.
    pub fn sleep_in_list(&self) -> Option<ListSleeper<'_>> {
        let sleeper = self.count_list_sleeper();
        if self.relay.is_free_for(Who::Waits) {
            return None;
        }
        self.relay.want();
        Some(sleeper)
    }

    fn count_list_sleeper(&self) -> ListSleeper<'_> {
        self.relay.lie_down();
        ListSleeper(self)
    }

    /// Records that a thread which does not wait itself has woken the sleeping driver.
    pub(crate) fn was_rung(&self) {
        self.relay.want();
    }

    /// Releases the driver lock if the thread with number `me` holds it.
    fn leave(&self, me: u32) {
        if self.relay.leave(me) {
            self.pass_on();
        }
    }

    /// Closes the driver's descriptors. Called in a forked child, because the engine stays in the
    /// parent.
    pub(crate) fn forget(&self) {
        self.descriptor.close();
        self.notifier.close();
    }

    /// Releases the driver lock. Called when a signal handler interrupts a thread that sleeps with
    /// the lock. The handler may call siglongjmp, or need the lock itself.
    pub(crate) fn abandon(&self) {
        if self.relay.abandon(Who::Waits.number(towpath_ring::thread_id())) {
            self.pass_on();
        }
    }

    /// Wakes another thread, which then takes the free driver lock. If no thread waits, leaves the
    /// lock to the stand-by thread.
    fn pass_on(&self) {
        self.relay.pass_on(|| {
            if let Ok(mut hub) = self.process.lock_reactor() {
                hub.wake_one();
            }
        });
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("relay", &self.relay)
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

/// Counts a thread as a waiter on the hand-off word. Dropping it removes the thread from the count.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    driver: &'a Driver,
    handoff: u32,
}

impl Following<'_> {
    /// Returns the hand-off word, on which the thread sleeps in addition to its own words. Also
    /// returns the value that the word had when the thread was counted.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (self.driver.relay.handoff(), self.handoff)
    }

    /// Reduces `patience` if the hand-off word changed during the sleep, because the thread was
    /// then woken without an event for itself. Called after each sleep.
    pub fn has_slept(&self, patience: &mut Patience) {
        let has_passed = self.driver.relay.handoff().load(Relaxed) != self.handoff;
        if has_passed && self.driver.is_stood_by.load(Relaxed) {
            patience.wears();
        }
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        if self.driver.relay.unfollow() {
            self.driver.pass_on();
        }
    }
}

/// Counts a thread that sleeps on a list of descriptors. Dropping it removes the thread from the
/// count.
#[derive(Debug)]
pub struct ListSleeper<'a>(&'a Driver);

impl Drop for ListSleeper<'_> {
    fn drop(&mut self) {
        self.0.relay.get_up();
    }
}
