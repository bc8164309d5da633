//! An engine in the process that it serves, turned by waiting threads.
//!
//! A thread is the *driver* while it alone may turn the engine. The *stand-by thread* turns the
//! engine when no other thread does. The *hand-off word* is a word on which threads sleep that wait
//! for the driver. *Lending* the driver lock lets another thread take it during a sleep.
//!
//! ```text
//!   a thread that would sleep:   take ─► turn ─► its own event? ─ yes ─► leave, and go on
//!                                          ▲         │ no: nothing to do
//!                                          └── sleep on the engine's descriptor, and on its own
//!   another one:                 sleep as beside any engine, and on the hand-off word
//!   the stand-by thread:         tick … no turn since the last tick? take ─► turn ─► sleep there
//! ```
//!
//! [`Relay`] names the driver, which alone may touch the engine. Only a wait for a
//! list of descriptors lends the driver lock, because those wake the thread whoever turns the
//! engine. The words of sockets would not, so a thread that waits for words keeps the driver lock
//! in its sleep.
//!
//! A thread that is woken again and again for others retires: [`Patience`].
//!
//! # No wake-up is lost
//!
//! - A thread is the driver, or the stand-by thread ticks: see [`Relay`].
//! - A thread that sleeps as the driver sleeps on the engine's descriptor, at most until the engine
//!   wants a turn. Before that, the engine's status page says that it sleeps. Writers of commands
//!   look at the page afterwards; the engine looks for commands after it wrote the page
//!   ([`towpath_ring::EngineStatus::fall_asleep`]).
//! - A thread that leaves while the engine is awake passes it to a thread that it wakes, or to the
//!   stand-by thread's ticks. The stand-by thread does not tick while it sleeps as the driver; a
//!   thread that becomes the driver from it there wakes it.
//! - A thread that retires leaves the driver lock first, then asks to be woken on its words, and
//!   looks at them once more.
//!
//! A request (bind, connect) is answered by the thread that makes it, if the driver lock is free or
//! lent. Bytes of a send leave when the thread waits next, or by the stand-by thread. The stand-by
//! thread then sleeps on the engine's descriptor, and is rung like an engine on a thread of its
//! own.

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
pub use engine::{Next, TurnedEngine};
pub use patience::Patience;
pub use state::Turned;
pub use towpath_ring::Who;

/// The engine that lives in this process, and the state of its turning.
pub struct Driver {
    process: &'static Process,
    relay: Relay,
    engine: UnsafeCell<DriverState>,
    /// The engine's: one of our own, for threads that sleep on it when the engine has gone.
    descriptor: HighFd,
    /// Number of times that a thread began to turn it.
    turns: AtomicU32,
    /// Wakes the stand-by thread when the driver lock was taken from it.
    bell: HighFd,
    /// A stand-by thread exists, so other threads need not wait for the driver lock.
    is_stood_by: AtomicBool,
    has_ended: AtomicBool,
}

// SAFETY: `engine` is reached only by the thread that has the relay (see `DriverLock`), and is
// Send.
unsafe impl Sync for Driver {}

impl Driver {
    /// A driver lock without a holder. [`Self::stand_by`] is to run on a thread of its own, whose
    /// end tells other processes of the engine's end ([`towpath_ring::Life`]).
    ///
    /// # Errors
    /// `Refused` when there are no descriptors left, or no memory for a stack.
    pub fn new(process: &'static Process, engine: Box<dyn TurnedEngine>) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let descriptor = high(rustix::io::fcntl_dupfd_cloexec(engine.descriptor(), 0)?.into());
        let bell = high(notification::create().map_err(|_| Errno::MFILE)?);
        Ok(Self {
            process,
            relay: Relay::new(),
            engine: UnsafeCell::new(DriverState::new(engine, process.descriptors.engines_from())?),
            descriptor,
            turns: AtomicU32::new(0),
            bell,
            is_stood_by: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Whether it can be taken.
    pub(crate) fn is_free_for(&self, who: Who) -> bool {
        self.relay.is_free_for(who)
    }

    /// Becomes the driver. None: another thread is at it. A thread that asks or stands by has its
    /// signals blocked already.
    pub fn take(&self, who: Who) -> Option<DriverLock<'_>> {
        if !self.relay.is_free_for(who) {
            return None;
        }
        // A handler on top of this thread would wait for it.
        let signals = (who == Who::Waits).then(SignalsBlocked::new);
        let me = who.number(towpath_ring::thread_id());
        if self.relay.take(me, who)? == Taken::FromStandBy {
            notification::ring(self.bell.borrow());
        }
        Some(DriverLock::new(self, me, signals))
    }

    /// Counts this thread among those that become the driver when the hand-off word is passed. The
    /// thread is about to sleep on that. None: the driver lock can be taken now.
    pub(crate) fn follow(&self) -> Option<Following<'_>> {
        self.relay.follow().map(|handoff| Following { driver: self, handoff })
    }

    /// Counts this thread among those that become the driver when kicked. The thread is about to
    /// sleep in a list of descriptors with a kick. None: the driver lock can be taken now. Not for
    /// the thread as the driver.
    pub fn lie_down(&self) -> Option<Abed<'_>> {
        let abed = self.count_abed();
        if self.relay.is_free_for(Who::Waits) {
            return None;
        }
        self.relay.want();
        Some(abed)
    }

    fn count_abed(&self) -> Abed<'_> {
        self.relay.lie_down();
        Abed(self)
    }

    /// A thread that does not wait has woken the engine, and thereby the thread that sleeps at the
    /// driver.
    pub(crate) fn was_rung(&self) {
        self.relay.want();
    }

    /// The thread `me` leaves, if it is the driver.
    fn leave(&self, me: u32) {
        if self.relay.leave(me) {
            self.pass_on();
        }
    }

    /// In a child after fork: the engine is its parent's.
    pub(crate) fn forget(&self) {
        self.descriptor.close();
        self.bell.close();
    }

    /// A signal handler begins on a thread that sleeps as the driver, and may not come back, or
    /// turn the engine itself.
    pub(crate) fn abandon(&self) {
        if self.relay.abandon(Who::Waits.number(towpath_ring::thread_id())) {
            self.pass_on();
        }
    }

    /// The driver lock is free: wakes another thread to take it, or leaves it to the stand-by
    /// thread.
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
        f.debug_struct("Wheel")
            .field("relay", &self.relay)
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

/// A thread that sleeps beside the driver lock.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    driver: &'a Driver,
    handoff: u32,
}

impl Following<'_> {
    /// The hand-off word, to sleep on beside the thread's own words, and its value until it is
    /// passed.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (self.driver.relay.handoff(), self.handoff)
    }

    /// After the sleep: a hand-off word passed meanwhile costs patience. Events of the thread's own
    /// end its wait in any case.
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

/// A thread that sleeps in a list of descriptors.
#[derive(Debug)]
pub struct Abed<'a>(&'a Driver);

impl Drop for Abed<'_> {
    fn drop(&mut self) {
        self.0.relay.get_up();
    }
}
