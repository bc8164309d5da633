//! An engine in the process whose threads it serves: whoever waits turns it.
//!
//! ```text
//!   a thread that would sleep:   take ─► turn ─► its own event? ─ yes ─► leave, and go on
//!                                          ▲         │ no: nothing to do
//!                                          └── sleep on the engine's descriptor, and on its own
//!   another one:                 sleep as beside any engine, and on the baton
//!   the stand-by thread:         tick … nobody there, and no turn since the last tick? take ─► turn ─► sleep there
//! ```
//!
//! One word (`at`) says who is at the wheel, and so who may touch the engine. It is 0, or a thread's number; with
//! `LENT`, that thread sleeps in the kernel, and the engine has said on its status page that it sleeps (so commands ring
//! for it). Only to wait in a list of descriptors lends the wheel: such a thread is woken by what it waits for, whoever
//! turns the engine. A thread that waits for words of sockets would not be, so it keeps the wheel in its sleep.
//!
//! # No wake-up is lost
//! Either somebody is at the wheel, or the stand-by thread ticks. It follows from three pairs of steps, each with a fence
//! (SeqCst) between the two, so that of any two threads one sees what the other has done:
//! - *Followers.* Who finds somebody else at the wheel counts itself, then looks whether there still is somebody.
//!   Who leaves makes the wheel free, then looks whether anybody is counted, and passes the baton: it changes a word on
//!   which followers sleep beside their own, and wakes one. Who is not asleep yet finds the word changed. A follower that
//!   was woken by both, and goes off with its own event, passes the baton on.
//! - *The stand-by thread* sleeps without a limit only after it has said so and has then seen somebody at the wheel. Who
//!   leaves makes the wheel free, then looks whether it has said so, and wakes it. So nothing else depends on it that all
//!   followers who are counted are there still (a signal handler may leave a call by siglongjmp).
//! - *Commands and requests* are written, then the status page is looked at; the engine says on the page that it sleeps,
//!   then looks for commands and requests ([`towpath_ring::EngineStatus::fall_asleep`]).
//!
//! A request (bind, connect) is answered by the thread that makes it, if the wheel is free or lent. What is only written
//! (send) is sent when its thread waits next, or by the stand-by thread, which then sleeps on the engine's descriptor and
//! is rung like an engine on a thread of its own.

mod helm;
mod stand_by;

use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use towpath_ring::doorbell;

use crate::syscall::SignalsBlocked;
use crate::{Deadline, Error, HighFd, Process};

pub use helm::{Helm, Turned};

/// Nobody is at the wheel.
const FREE: u32 = 0;
/// With a thread's number: it sleeps in the kernel, and others may take the wheel.
const LENT: u32 = 1 << 31;
/// With a thread's number: it is the stand-by thread. Numbers of threads are below (PID_MAX_LIMIT).
const STAND_BY: u32 = 1 << 30;

/// An engine that threads of this process turn, one at a time.
pub trait Engine: Send {
    /// Does what there is to do now, some of it at least.
    fn turn(&mut self) -> Next;
    /// Before a sleep on [`Self::descriptor`]. False: do not sleep, there is something to do.
    fn begin_sleep(&mut self) -> bool;
    /// After it.
    fn end_sleep(&mut self);
    /// Readable when there is something to do, while it sleeps.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// After [`Next::End`].
    fn finish(self: Box<Self>);
}

/// What comes after a turn of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another one.
    Turn,
    /// A sleep, at most so long. None: nothing has a deadline.
    Sleep(Option<Duration>),
    /// It was stopped.
    End,
}

/// The engine that lives in this process, and who turns it.
pub struct Wheel {
    process: &'static Process,
    at: AtomicU32,
    engine: UnsafeCell<Seat>,
    /// The engine's: one of our own, for threads that sleep on it when the engine has gone.
    descriptor: HighFd,
    /// How often somebody has begun to turn it.
    turns: AtomicU32,
    /// Followers sleep on it.
    baton: AtomicU32,
    /// Followers that do.
    following: AtomicU32,
    /// Threads that sleep in lists of descriptors, on kicks of their own.
    abed: AtomicU32,
    /// Whether the stand-by thread sleeps until it is called: it sleeps on this.
    is_calm: AtomicU32,
    /// Wakes the stand-by thread when the wheel was taken from it.
    bell: HighFd,
    has_ended: AtomicBool,
}

/// What only the thread at the wheel touches.
struct Seat {
    /// None: it has ended.
    engine: Option<Box<dyn Engine>>,
    /// [`Engine::begin_sleep`] was the last that was done to it.
    is_asleep: bool,
    /// When it is to look at its descriptors, if it has not slept by then.
    look_at: Deadline,
}

// SAFETY: `engine` is reached only by the thread whose number is in `at` (see `Helm`), and is Send.
unsafe impl Sync for Wheel {}

/// Who wants the wheel, and so from whom it may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A thread that would sleep otherwise.
    Waits,
    /// A thread with a request, whose signals are blocked.
    Asks,
    /// The stand-by thread, whose signals are.
    StandsBy,
}

impl Who {
    fn may_take(self, at: u32) -> bool {
        let is_lent_by_stand_by = at & (LENT | STAND_BY) == LENT | STAND_BY;
        match self {
            Self::Waits => at == FREE || is_lent_by_stand_by,
            Self::Asks => at == FREE || at & LENT != 0,
            Self::StandsBy => at == FREE,
        }
    }
}

impl Wheel {
    /// Nobody is at it. [`Self::stand_by`] is to run on a thread of its own.
    ///
    /// # Errors
    /// `Refused` when there are no descriptors left.
    pub fn new(process: &'static Process, engine: Box<dyn Engine>) -> Result<Self, Error> {
        let high = |fd: std::os::fd::OwnedFd| HighFd::new(fd.into(), &process.descriptors);
        let descriptor = high(rustix::io::fcntl_dupfd_cloexec(engine.descriptor(), 0)?);
        let bell = high(doorbell::create().map_err(|_| Errno::MFILE)?);
        Ok(Self {
            process,
            at: AtomicU32::new(FREE),
            engine: UnsafeCell::new(Seat {
                engine: Some(engine),
                is_asleep: false,
                look_at: Deadline::after(Duration::ZERO),
            }),
            descriptor,
            turns: AtomicU32::new(0),
            baton: AtomicU32::new(0),
            following: AtomicU32::new(0),
            abed: AtomicU32::new(0),
            is_calm: AtomicU32::new(0),
            bell,
            has_ended: AtomicBool::new(false),
        })
    }

    /// Takes the wheel. None: somebody else is at it.
    pub fn take(&self, who: Who) -> Option<Helm<'_>> {
        let at = self.at.load(Relaxed);
        if !who.may_take(at) {
            return None;
        }
        // A handler on top of this thread would wait for it.
        let signals = (who == Who::Waits).then(SignalsBlocked::new);
        let me = towpath_ring::thread_id() | if who == Who::StandsBy { STAND_BY } else { 0 };
        self.at.compare_exchange(at, me, Acquire, Relaxed).ok()?;
        if at & STAND_BY != 0 {
            // It sleeps where it would not notice when nobody is at the wheel.
            doorbell::ring(self.bell.borrow());
        }
        Some(Helm::new(self, me, signals))
    }

    /// Counts this thread among those who take the wheel when they are passed the baton, and are about to sleep on that.
    /// None: it can be taken now.
    pub(crate) fn follow(&self) -> Option<Following<'_>> {
        let baton = self.baton.load(Acquire);
        self.following.fetch_add(1, Relaxed);
        let following = Following { wheel: self, baton };
        fence(SeqCst);
        (!Who::Waits.may_take(self.at.load(Relaxed))).then_some(following)
    }

    /// Counts this thread among those who take the wheel when they are kicked, and are about to sleep in a list of
    /// descriptors with a kick in it. None: it can be taken now. Not for the thread that has it.
    pub fn lie_down(&self) -> Option<Abed<'_>> {
        let abed = self.count_abed();
        fence(SeqCst);
        (!Who::Waits.may_take(self.at.load(Relaxed))).then_some(abed)
    }

    fn count_abed(&self) -> Abed<'_> {
        self.abed.fetch_add(1, Relaxed);
        Abed(self)
    }

    /// Whether somebody waits who would take the wheel.
    fn has_followers(&self) -> bool {
        self.following.load(Relaxed) > 0 || self.abed.load(Relaxed) > 0
    }

    /// The thread leaves whose number is given, if it is at the wheel.
    fn leave(&self, me: u32) {
        if self.at.compare_exchange(me, FREE, Release, Relaxed).is_ok() {
            self.pass_on();
        }
    }

    /// A signal handler begins on a thread that sleeps at the wheel, and may not come back, or turn the engine itself.
    pub(crate) fn abandon(&self) {
        let me = towpath_ring::thread_id();
        self.leave(me);
        self.leave(me | LENT);
    }

    /// The wheel is free: somebody else is to take it, and the stand-by thread to see to that.
    fn pass_on(&self) {
        fence(SeqCst);
        if self.following.load(Relaxed) > 0 {
            self.baton.fetch_add(1, Release);
            // It fails only where there is no memory at the address.
            let _ = futex::wake(&self.baton, Flags::empty(), 1);
        } else if self.abed.load(Relaxed) > 0
            && let Ok(mut hub) = self.process.lock_reactor()
        {
            hub.kick_one();
        }
        self.call_stand_by();
    }

    fn call_stand_by(&self) {
        if self.is_calm.load(Relaxed) != 0 && self.is_calm.swap(0, Relaxed) != 0 {
            let _ = futex::wake(&self.is_calm, Flags::PRIVATE, 1);
        }
    }
}

impl std::fmt::Debug for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wheel")
            .field("at", &self.at)
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
    /// What it sleeps on beside its own words, and what that is until the baton is passed.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (&self.wheel.baton, self.baton)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.wheel.following.fetch_sub(1, Relaxed);
        // It may have been woken by the baton and by its own event.
        if self.wheel.at.load(Relaxed) == FREE && self.wheel.has_followers() {
            self.wheel.pass_on();
        }
    }
}

/// A thread that sleeps in a list of descriptors.
#[derive(Debug)]
pub struct Abed<'a>(&'a Wheel);

impl Drop for Abed<'_> {
    fn drop(&mut self) {
        self.0.abed.fetch_sub(1, Relaxed);
    }
}
