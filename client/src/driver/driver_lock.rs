//! The lock that a driver holds.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::notification;

use super::state::{DriverState, Turned};
use super::{Driver, Patience};
use crate::interrupt::{self, Handled, SleepLimit};
use crate::syscall::{SignalsBlocked, nr, syscall};
use crate::{Deadline, Error};

/// The right to turn the engine, of the thread that has taken it; its signals are blocked but while
/// it sleeps. Dropping it releases the lock.
#[derive(Debug)]
pub struct DriverLock<'a> {
    driver: &'a Driver,
    /// Number of this thread in the relay.
    me: u32,
    /// Another thread has become the driver, or this is a child that a handler has forked.
    is_lost: bool,
    /// How often the process had forked.
    forks: u32,
    /// Time at which the engine wants a turn at the latest.
    until: Option<Deadline>,
    signals: Option<SignalsBlocked>,
    _of_this_thread: PhantomData<*const ()>,
}

/// struct pollfd.
#[repr(C)]
struct Watched {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLIN: i16 = 1;
/// Null pointer for an absent time or mask of a system call.
const NULL: usize = 0;

impl<'a> DriverLock<'a> {
    pub(super) fn new(driver: &'a Driver, me: u32, signals: Option<SignalsBlocked>) -> Self {
        let forks = driver.process.forks();
        let _of_this_thread = PhantomData;
        Self { driver, me, is_lost: false, forks, until: None, signals, _of_this_thread }
    }

    /// Turns the engine until `is_done`, which is asked after each turn, or until there is nothing
    /// to do. `own`: a time limit of the thread.
    pub fn turn(&mut self, own: Option<Deadline>, mut is_done: impl FnMut() -> bool) -> Turned {
        debug_assert!(!self.is_lost);
        let driver = self.driver;
        driver.turns.store(driver.turns.load(Relaxed).wrapping_add(1), Relaxed);
        let (turned, until) = self.state().turn(own, &mut is_done);
        self.until = until;
        if turned == Turned::Ended {
            driver.has_ended.store(true, Release);
        }
        turned
    }

    /// Most bytes that turns have taken of the engine's stack, and how many there are.
    pub fn stack_used(&mut self) -> (usize, usize) {
        self.state().stack_used()
    }

    fn state(&mut self) -> &mut DriverState {
        // SAFETY: this thread has the relay, which one thread at a time has. The relay can be taken
        // from it only while lent, that is, within `lend_to`. A thread has one driver lock, which
        // is borrowed exclusively.
        unsafe { &mut *self.driver.engine.get() }
    }

    /// Until when to sleep after a turn, at the latest, where a thread has a time limit of its own.
    /// None: no limit.
    pub fn until(&self, own: Option<Deadline>) -> Option<Deadline> {
        self.until.into_iter().chain(own).min()
    }

    /// After a turn that has brought nothing for this thread: whether its `patience` has ended, and
    /// so it is to leave the driver lock.
    pub fn has_ended(&self, patience: &mut Patience) -> bool {
        if self.driver.is_stood_by.load(Relaxed) {
            patience.has_turned(self.driver.relay.wanted());
        }
        patience.has_ended()
    }

    /// The engine's descriptor, to be polled for input in the sleep.
    pub fn descriptor(&self) -> i32 {
        self.driver.descriptor.get()
    }

    /// Where the signal mask is that the thread sleeps with; 0: with the one that it has.
    pub fn mask(&self) -> usize {
        self.signals.as_ref().map_or(NULL, SignalsBlocked::before)
    }

    /// Sleeps in the kernel on [`Self::descriptor`] and on everything that the thread waits for:
    /// meanwhile others may become the driver. False comes with the result: another thread has.
    pub fn lend<T>(&mut self, sleep: impl FnOnce() -> T) -> (T, bool) {
        let driver = self.driver;
        // A thread that becomes the driver sees that this one is counted.
        let _sleeper = driver.count_list_sleeper();
        self.lend_to(sleep)
    }

    /// Lends the driver lock for a thread without another way to be woken.
    fn lend_to<T>(&mut self, sleep: impl FnOnce() -> T) -> (T, bool) {
        let driver = self.driver;
        driver.relay.lend(self.me);
        let slept = interrupt::while_driving(driver, sleep);
        let is_ours = !self.has_forked() && driver.relay.take_back(self.me);
        self.is_lost = !is_ours;
        (slept, is_ours)
    }

    /// Whether this is a forked child, whose driver lock is the parent's.
    fn has_forked(&self) -> bool {
        self.driver.process.forks() != self.forks
    }

    /// For a thread that waits for words: turns and sleeps until one of them `has_changed`, or as
    /// long as its `patience` lasts.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; `Interrupted` by a signal handler.
    pub(crate) fn drive(
        mut self,
        patience: &mut Patience,
        deadline: Option<Deadline>,
        since: Handled,
        mut has_changed: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        const EINTR: i32 = 4;
        let limited = deadline.is_some();
        loop {
            if matches!(self.turn(deadline, &mut has_changed), Turned::Done | Turned::Ended) {
                return Ok(());
            }
            if self.has_ended(patience) {
                return Ok(());
            }
            let limit = SleepLimit::within(self.until(deadline));
            let slept = since.sleep(limited, limit, |limit| self.sleep(limit, None));
            match slept {
                // The handler left the driver lock to others.
                Some(Err(EINTR)) if since.is_restarted(limited) => return Ok(()),
                None | Some(Err(EINTR)) => return Err(Error::Interrupted),
                Some(_) if self.is_lost => return Ok(()),
                Some(_) => {}
            }
            if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
                return if has_changed() { Ok(()) } else { Err(Error::TimedOut) };
            }
        }
    }

    /// The same with signals blocked, and until a descriptor is readable if one is given.
    pub(crate) fn drive_blocked(mut self, own: Option<i32>, mut is_done: impl FnMut() -> bool) {
        while matches!(self.turn(None, &mut is_done), Turned::Idle | Turned::Busy) {
            let limit = self.until.map(Deadline::timespec);
            // However the sleep ends, the next turn looks.
            let _ = self.sleep(place(limit.as_ref()), own);
        }
    }

    /// Sleeps on the engine's descriptor, and one of the thread's own, with the driver lock in
    /// hand. `limit`: where a timespec is.
    pub(super) fn sleep(&mut self, limit: usize, own: Option<i32>) -> Result<usize, i32> {
        let watched = |fd| Watched { fd, events: POLLIN, revents: 0 };
        // The kernel passes negative numbers over.
        let mut list = [watched(self.descriptor()), watched(own.unwrap_or(-1))];
        let at = list.as_mut_ptr().expose_provenance();
        let args = [at, list.len(), limit, self.mask(), 8, 0];
        // SAFETY: two entries, a time limit and a mask of eight bytes, or none.
        let slept = interrupt::while_driving(self.driver, || unsafe { syscall(nr::PPOLL, args) });
        self.is_lost = self.has_forked() || !self.driver.relay.has(self.me);
        slept
    }

    /// The stand-by thread's sleep: until the driver lock is taken from it, too. False: it was.
    pub(super) fn stand_by(&mut self) -> bool {
        let limit = self.until.map(Deadline::timespec);
        let limit = place(limit.as_ref());
        let notifier = self.driver.notifier.get();
        let watched = |fd| Watched { fd, events: POLLIN, revents: 0 };
        let mut list = [watched(self.descriptor()), watched(notifier)];
        let at = list.as_mut_ptr().expose_provenance();
        let driver = self.driver;
        let (_, is_ours) = self.lend_to(|| {
            if !driver.relay.has_followers() {
                // SAFETY: two entries and a time limit, or none.
                let _ = unsafe { syscall(nr::PPOLL, [at, list.len(), limit, NULL, 8, 0]) };
            }
        });
        if list[1].revents != 0 {
            notification::clear(driver.notifier.borrow());
        }
        is_ours
    }
}

/// Where a time limit is; no limit: 0.
pub(super) fn place(limit: Option<&[i64; 2]>) -> usize {
    limit.map_or(NULL, |limit| limit.as_ptr().addr())
}

impl Drop for DriverLock<'_> {
    fn drop(&mut self) {
        if !self.is_lost && !self.has_forked() {
            self.driver.leave(self.me);
        }
    }
}
