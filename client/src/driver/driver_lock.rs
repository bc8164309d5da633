//! The driver lock: the right to run the engine (network stack) in this process. Its holder runs
//! the engine's event loop, or sleeps until the engine has work.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release};

use towpath_ring::notification;

use super::state::{DriverState, Turned};
use super::{Driver, Patience};
use crate::interrupt::{self, Handled, SleepLimit};
use crate::syscall::{SignalsBlocked, nr, syscall};
use crate::{Deadline, Error};

/// Exclusive right of a thread to run the engine's event loop, until it is dropped. The thread's
/// signals are blocked: a handler that needs the engine would wait for the thread that it has
/// interrupted. A thread with the role `Who::Waits` unblocks them while it sleeps.
#[derive(Debug)]
pub struct DriverLock<'a> {
    driver: &'a Driver,
    /// Number that identifies this thread as holder of the lock.
    me: u32,
    /// Whether the thread has lost the lock, because another thread has taken it, or because this
    /// is a forked child.
    is_lost: bool,
    /// Number of forks of the process before this thread took the lock. A different number means
    /// that this is a forked child.
    forks: u32,
    /// Time at which the engine's next turn is due. `None`: the engine has no timer.
    until: Option<Deadline>,
    signals: Option<SignalsBlocked>,
    _of_this_thread: PhantomData<*const ()>,
}

/// An entry of poll(2): struct pollfd.
#[repr(C)]
struct Watched {
    fd: i32,
    events: i16,
    revents: i16,
}

const POLLIN: i16 = 1;
/// Null pointer, which a system call gets if there is no timeout or signal mask.
const NULL: usize = 0;

impl<'a> DriverLock<'a> {
    pub(super) fn new(driver: &'a Driver, me: u32, signals: Option<SignalsBlocked>) -> Self {
        let forks = driver.process.forks();
        let _of_this_thread = PhantomData;
        Self { driver, me, is_lost: false, forks, until: None, signals, _of_this_thread }
    }

    /// Runs turns of the engine's event loop until `is_done` returns true, or the engine has
    /// nothing to do. `is_done` is called after each turn. `own` is the deadline of the calling
    /// thread's own wait.
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

    /// Returns the maximum number of bytes of the engine's stack used so far, and the size of the
    /// stack in bytes.
    pub fn stack_used(&mut self) -> (usize, usize) {
        self.state().stack_used()
    }

    fn state(&mut self) -> &mut DriverState {
        // SAFETY: this thread holds the driver lock, as at most one thread can. Another thread can
        // take it only while it is lent, within `lend_to`. A thread has one `DriverLock`, which is
        // borrowed exclusively here.
        unsafe { &mut *self.driver.engine.get() }
    }

    /// Returns the deadline of a sleep: the engine's next timer or `own`, the deadline of the
    /// thread's own wait. `None` means no limit.
    pub fn until(&self, own: Option<Deadline>) -> Option<Deadline> {
        self.until.into_iter().chain(own).min()
    }

    /// Returns whether this thread should release the driver lock, because it has run the engine
    /// too often without an event for itself. Called after each iteration of the engine's event
    /// loop without such an event.
    pub fn has_ended(&self, patience: &mut Patience) -> bool {
        if self.driver.is_stood_by.load(Relaxed) {
            patience.has_turned(self.driver.relay.wanted());
        }
        patience.has_ended()
    }

    /// Returns the engine's descriptor, which the driver polls for input while it sleeps.
    pub fn descriptor(&self) -> i32 {
        self.driver.descriptor.get()
    }

    /// Returns the address of the signal mask during the thread's sleep, for ppoll(2). 0 means that
    /// the mask is not changed.
    pub fn mask(&self) -> usize {
        self.signals.as_ref().map_or(NULL, SignalsBlocked::before)
    }

    /// Calls `sleep`, which sleeps on [`Self::descriptor`] and the thread's own descriptors. During
    /// the sleep, other threads may take the driver lock (the right to run the engine). The second
    /// value is false if one has taken it.
    pub fn lend<T>(&mut self, sleep: impl FnOnce() -> T) -> (T, bool) {
        let driver = self.driver;
        // Count this thread as a sleeper before the lock is lent, so that a thread that takes the
        // lock sees the count.
        let _sleeper = driver.count_list_sleeper();
        self.lend_to(sleep)
    }

    /// Allows other threads to take the driver lock (the right to run the engine) during `sleep`,
    /// without counting this thread as a sleeper. The second value is false if one has taken it.
    fn lend_to<T>(&mut self, sleep: impl FnOnce() -> T) -> (T, bool) {
        let driver = self.driver;
        driver.relay.lend(self.me);
        let slept = interrupt::while_driving(driver, sleep);
        let is_ours = !self.has_forked() && driver.relay.take_back(self.me);
        self.is_lost = !is_ours;
        (slept, is_ours)
    }

    /// Returns whether this process is a forked child. The lock then belongs to its parent.
    fn has_forked(&self) -> bool {
        self.driver.process.forks() != self.forks
    }

    /// Runs the engine and sleeps until `has_changed` returns true, or until the thread's
    /// `patience` ends. Called by threads that wait for futex words in shared memory.
    ///
    /// # Errors
    /// `TimedOut` when the deadline passed; `Interrupted` when a signal handler ran.
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
                // A signal handler has run and has released the driver lock (the right to run the
                // engine). Return without the lock.
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

    /// Runs the engine and sleeps until `is_done` returns true, with signals blocked. The sleep
    /// also ends when descriptor `own` is readable.
    pub(crate) fn drive_blocked(mut self, own: Option<i32>, mut is_done: impl FnMut() -> bool) {
        while matches!(self.turn(None, &mut is_done), Turned::Idle | Turned::Busy) {
            let limit = self.until.map(Deadline::timespec);
            // Ignore the result, because `is_done` is called after the next iteration of the event
            // loop in any case.
            let _ = self.sleep(place(limit.as_ref()), own);
        }
    }

    /// Sleeps on the engine's descriptor and the descriptor `own`. Other threads cannot take the
    /// driver lock (the right to run the engine) during the sleep. `limit` is the address of a
    /// timespec, or 0 for no timeout.
    pub(super) fn sleep(&mut self, limit: usize, own: Option<i32>) -> Result<usize, i32> {
        let watched = |fd| Watched { fd, events: POLLIN, revents: 0 };
        // If there is no descriptor `own`, use -1, because poll(2) ignores negative numbers.
        let mut list = [watched(self.descriptor()), watched(own.unwrap_or(-1))];
        let at = list.as_mut_ptr().expose_provenance();
        let args = [at, list.len(), limit, self.mask(), 8, 0];
        // SAFETY: `list` has two entries. `limit` and the mask (eight bytes) are valid or null.
        let slept = interrupt::while_driving(self.driver, || unsafe { syscall(nr::PPOLL, args) });
        self.is_lost = self.has_forked() || !self.driver.relay.has(self.me);
        slept
    }

    /// Sleeps as the stand-by thread, until the engine has work or another thread has taken the
    /// driver lock (the right to run the engine). Returns false if another thread has taken it.
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
                // SAFETY: `list` has two entries, and `limit` is valid or null.
                let _ = unsafe { syscall(nr::PPOLL, [at, list.len(), limit, NULL, 8, 0]) };
            }
        });
        if list[1].revents != 0 {
            notification::clear(driver.notifier.borrow());
        }
        is_ours
    }
}

/// Returns the address of a timeout for a system call, or 0 if there is none.
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
