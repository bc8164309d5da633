//! An engine (network stack) in the process that it serves. Threads that wait in socket calls run
//! its event loop; one iteration is a *turn*.
//!
//! The *driver* is the thread that holds the driver lock. Only this thread may run the engine. The
//! *stand-by thread* runs the engine when no other thread does. Threads that wait for the lock
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
//! [`Relay`] holds the number of the driver. Only a wait for a list of descriptors (poll, epoll)
//! lends the lock, because descriptors wake the thread whichever thread runs the engine. A thread
//! that waits for the futex words of sockets keeps the lock while it sleeps.
//!
//! A thread that is woken repeatedly without events for itself stops running the engine, see
//! [`Patience`].
//!
//! # No wake-up is lost
//!
//! - Either some thread is the driver, or the stand-by thread ticks: see [`Relay`].
//! - A driver sleeps on the engine's descriptor, at most until the engine's next timer. Before the
//!   sleep, it sets a flag in the engine's status page, then checks for commands. A thread that
//!   sends a command checks the flag afterwards ([`towpath_ring::EngineStatus::fall_asleep`]).
//! - A driver that leaves while the engine is awake wakes another thread to take the lock, or
//!   leaves it to the stand-by thread's ticks. While the stand-by thread sleeps as the driver, it
//!   does not tick. A thread that takes the lock from it must wake it.
//! - A thread that stops running the engine releases the lock first, then requests to be woken on
//!   its futex words, and checks its condition again.
//!
//! A request (bind, connect) is answered by the thread that makes it, if the lock is free or lent.
//! Bytes of a send(2) are sent when the thread waits next, or by the stand-by thread. The stand-by
//! thread then sleeps on the engine's descriptor, and is notified like an engine on its own thread.

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

/// An engine (network stack) in this process, and the lock that a thread holds while it runs the
/// engine's event loop.
pub struct Driver {
    process: &'static Process,
    relay: Relay,
    engine: UnsafeCell<DriverState>,
    /// Duplicate of the engine's descriptor. Threads may still sleep on it after the engine has
    /// ended.
    descriptor: HighFd,
    /// Number of times that a thread has begun to run the engine's event loop.
    turns: AtomicU32,
    /// Eventfd that wakes the stand-by thread when another thread has taken the driver lock from
    /// it.
    notifier: HighFd,
    /// Whether the stand-by thread exists, which runs the engine when no other thread does. If it
    /// does, other threads need not run the engine.
    is_stood_by: AtomicBool,
    has_ended: AtomicBool,
}

// SAFETY: only the thread that holds the relay's lock accesses `engine` (see `DriverLock`), and the
// engine is Send.
unsafe impl Sync for Driver {}

impl Driver {
    /// Creates a driver with a free lock. Call [`Self::stand_by`] on a separate thread. Other
    /// processes detect the end of the engine by the end of this thread ([`towpath_ring::Life`]).
    ///
    /// # Errors
    /// `Refused` if no descriptor is free, or if there is no memory for the engine's call stack.
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

    /// Returns whether a thread with the role `who` can take the driver lock (the right to run the
    /// engine) now.
    pub(crate) fn is_free_for(&self, who: Who) -> bool {
        self.relay.is_free_for(who)
    }

    /// Takes the driver lock, or returns `None` if another thread holds it. For `Who::Waits`,
    /// blocks the thread's signals; threads with other roles have already blocked them.
    pub fn take(&self, who: Who) -> Option<DriverLock<'_>> {
        if !self.relay.is_free_for(who) {
            return None;
        }
        // Block signals. A handler that needs the engine would wait for the thread that it has
        // interrupted.
        let signals = (who == Who::Waits).then(SignalsBlocked::new);
        let me = who.number(towpath_ring::thread_id());
        if self.relay.take(me, who)? == Taken::FromStandBy {
            notification::ring(self.notifier.borrow());
        }
        Some(DriverLock::new(self, me, signals))
    }

    /// Counts this thread as waiting for the driver lock. The thread is about to sleep on the
    /// hand-off futex word, and will take the lock when the word changes. Returns `None` if the
    /// lock can be taken now.
    pub(crate) fn follow(&self) -> Option<Following<'_>> {
        self.relay.follow().map(|handoff| Following { driver: self, handoff })
    }

    /// Counts this thread as waiting for the driver lock. The thread is about to sleep on a list of
    /// descriptors that includes an eventfd, and will take the lock when the eventfd wakes it.
    /// Returns `None` if the lock can be taken now. The holder of the lock must not call this.
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

    /// Releases the driver lock, if the thread with number `me` holds it.
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

    /// Wakes a thread that waits for the driver lock, which is free. If there is none, the stand-by
    /// thread will take the lock.
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

/// Counts a thread as waiting for the driver lock, on the hand-off futex word, until this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    driver: &'a Driver,
    handoff: u32,
}

impl Following<'_> {
    /// Returns the hand-off futex word, and its value when the thread was counted. The thread waits
    /// for it in addition to its own words.
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

/// Counts a thread that sleeps on a list of descriptors and would take the driver lock, until this
/// value is dropped.
#[derive(Debug)]
pub struct ListSleeper<'a>(&'a Driver);

impl Drop for ListSleeper<'_> {
    fn drop(&mut self) {
        self.0.relay.get_up();
    }
}
