//! An engine in the process that it serves, turned by waiting threads.
//!
//! A thread is *at the wheel* while it alone may turn the engine. The *stand-by thread* turns the
//! engine when no other thread does. The *baton* is a word on which threads sleep that wait for the
//! wheel. *Lending* the wheel lets another thread take it during a sleep.
//!
//! ```text
//!   a thread that would sleep:   take ─► turn ─► its own event? ─ yes ─► leave, and go on
//!                                          ▲         │ no: nothing to do
//!                                          └── sleep on the engine's descriptor, and on its own
//!   another one:                 sleep as beside any engine, and on the baton
//!   the stand-by thread:         tick … no turn since the last tick? take ─► turn ─► sleep there
//! ```
//!
//! [`Relay`] names the thread at the wheel, which alone may touch the engine. Only a wait for a
//! list of descriptors lends the wheel, because those wake the thread whoever turns the engine. The
//! words of sockets would not, so a thread that waits for words keeps the wheel in its sleep.
//!
//! A thread that is woken again and again for others retires: [`Patience`].
//!
//! # No wake-up is lost
//!
//! - A thread is at the wheel, or the stand-by thread ticks: see [`Relay`].
//! - A thread that sleeps at the wheel sleeps on the engine's descriptor, at most until the engine
//!   wants a turn. Before that, the engine's status page says that it sleeps. Writers of commands
//!   look at the page afterwards; the engine looks for commands after it wrote the page
//!   ([`towpath_ring::EngineStatus::fall_asleep`]).
//! - A thread that leaves while the engine is awake passes it to a thread that it wakes, or to the
//!   stand-by thread's ticks. The stand-by thread does not tick while it sleeps at the wheel; a
//!   thread that takes the wheel from it there wakes it.
//! - A thread that retires leaves the wheel first, then asks to be woken on its words, and looks at
//!   them once more.
//!
//! A request (bind, connect) is answered by the thread that makes it, if the wheel is free or lent.
//! Bytes of a send leave when the thread waits next, or by the stand-by thread. The stand-by thread
//! then sleeps on the engine's descriptor, and is rung like an engine on a thread of its own.

mod engine;
mod helm;
mod last;
mod patience;
mod seat;
mod stack;
mod stand_by;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::io::Errno;
use towpath_ring::{Relay, Taken, doorbell};

use crate::syscall::SignalsBlocked;
use crate::{Error, HighFd, Process};

use seat::Seat;

pub use engine::{Next, TurnedEngine};
pub use helm::Helm;
pub use patience::Patience;
pub use seat::Turned;
pub use towpath_ring::Who;

/// The engine that lives in this process, and the state of its turning.
pub struct Wheel {
    process: &'static Process,
    relay: Relay,
    engine: UnsafeCell<Seat>,
    /// The engine's: one of our own, for threads that sleep on it when the engine has gone.
    descriptor: HighFd,
    /// Number of times that a thread began to turn it.
    turns: AtomicU32,
    /// Wakes the stand-by thread when the wheel was taken from it.
    bell: HighFd,
    /// A stand-by thread exists, so other threads need not wait for the wheel.
    is_stood_by: AtomicBool,
    has_ended: AtomicBool,
}

// SAFETY: `engine` is reached only by the thread that has the relay (see `Helm`), and is Send.
unsafe impl Sync for Wheel {}

impl Wheel {
    /// A wheel without a thread at it. [`Self::stand_by`] is to run on a thread of its own, whose
    /// end tells other processes of the engine's end ([`towpath_ring::Life`]).
    ///
    /// # Errors
    /// `Refused` when there are no descriptors left, or no memory for a stack.
    pub fn new(process: &'static Process, engine: Box<dyn TurnedEngine>) -> Result<Self, Error> {
        let high = |fd| HighFd::new(fd, &process.descriptors);
        let descriptor = high(rustix::io::fcntl_dupfd_cloexec(engine.descriptor(), 0)?.into());
        let bell = high(doorbell::create().map_err(|_| Errno::MFILE)?);
        Ok(Self {
            process,
            relay: Relay::new(),
            engine: UnsafeCell::new(Seat::new(engine, process.descriptors.engines_from())?),
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

    /// Takes the wheel. None: another thread is at it. A thread that asks or stands by has its
    /// signals blocked already.
    pub fn take(&self, who: Who) -> Option<Helm<'_>> {
        if !self.relay.is_free_for(who) {
            return None;
        }
        // A handler on top of this thread would wait for it.
        let signals = (who == Who::Waits).then(SignalsBlocked::new);
        let me = who.number(towpath_ring::thread_id());
        if self.relay.take(me, who)? == Taken::FromStandBy {
            doorbell::ring(self.bell.borrow());
        }
        Some(Helm::new(self, me, signals))
    }

    /// Counts this thread among those that take the wheel when the baton is passed. The thread is
    /// about to sleep on that. None: the wheel can be taken now.
    pub(crate) fn follow(&self) -> Option<Following<'_>> {
        self.relay.follow().map(|baton| Following { wheel: self, baton })
    }

    /// Counts this thread among those that take the wheel when kicked. The thread is about to sleep
    /// in a list of descriptors with a kick. None: the wheel can be taken now. Not for the thread
    /// at the wheel.
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
    /// wheel.
    pub(crate) fn was_rung(&self) {
        self.relay.want();
    }

    /// The thread `me` leaves, if it is at the wheel.
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

    /// A signal handler begins on a thread that sleeps at the wheel, and may not come back, or turn
    /// the engine itself.
    pub(crate) fn abandon(&self) {
        if self.relay.abandon(Who::Waits.number(towpath_ring::thread_id())) {
            self.pass_on();
        }
    }

    /// The wheel is free: wakes another thread to take it, or leaves it to the stand-by thread.
    fn pass_on(&self) {
        self.relay.pass_on(|| {
            if let Ok(mut hub) = self.process.lock_reactor() {
                hub.kick_one();
            }
        });
    }
}

impl std::fmt::Debug for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wheel")
            .field("relay", &self.relay)
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

/// A thread that sleeps beside the wheel.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    wheel: &'a Wheel,
    baton: u32,
}

impl Following<'_> {
    /// The baton, to sleep on beside the thread's own words, and its value until it is passed.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (self.wheel.relay.baton(), self.baton)
    }

    /// After the sleep: a baton passed meanwhile costs patience. Events of the thread's own end its
    /// wait in any case.
    pub fn has_slept(&self, patience: &mut Patience) {
        let has_passed = self.wheel.relay.baton().load(Relaxed) != self.baton;
        if has_passed && self.wheel.is_stood_by.load(Relaxed) {
            patience.wears();
        }
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        if self.wheel.relay.unfollow() {
            self.wheel.pass_on();
        }
    }
}

/// A thread that sleeps in a list of descriptors.
#[derive(Debug)]
pub struct Abed<'a>(&'a Wheel);

impl Drop for Abed<'_> {
    fn drop(&mut self) {
        self.0.relay.get_up();
    }
}
