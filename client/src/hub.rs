//! State of [`crate::reactor`]: the sets and sleeping threads of a process.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use std::task::Waker;

use rustix::io::Errno;
use towpath_ring::{LockGuard, ProcessLock};
use towpath_shm::layout::SLOTS_MAX;

use crate::descriptors::DESCRIPTORS_MAX;
use crate::watches::{LIST_WATCHES_MAX, Watches};
use crate::{Error, HighFd};

/// Epoll sets, sleeping threads and waiting tasks of a process. Attachments that the process has in
/// succession share one.
#[derive(Debug)]
pub struct Reactor {
    /// `None` until first locked. An empty vector is not zeroed memory, so it would put the
    /// megabytes of a static into the file of the library.
    hub: ProcessLock<Option<Box<Hub>>>,
    /// Index of the first watch of each slot, plus one. Changed only under the lock.
    pub(crate) heads: [AtomicU32; SLOTS_MAX as usize],
    /// Pending changes of [`EpollSet::refs`], by the number of the set. A signal handler adds to
    /// them if the thread that it interrupted has the lock. A process has more sets than
    /// descriptors only while calls are in closed ones.
    pub(crate) deferred_counts: [AtomicI32; DESCRIPTORS_MAX],
    /// A signal handler has closed a descriptor while its thread had the lock, so the next call
    /// that locks it forgets the descriptor.
    pub(crate) has_deferred: AtomicBool,
    /// The process is a child without an attachment of its own. A thread of the parent may have had
    /// the lock when it forked, so the lock must not be awaited.
    is_disowned: AtomicBool,
}

/// State under the lock of a [`Reactor`].
#[derive(Debug, Default)]
pub struct Hub {
    pub(crate) watches: Watches,
    pub(crate) sets: Vec<Option<EpollSet>>,
    /// Number of threads that sleep or are about to, and of dispatchers.
    pub(crate) sleepers: u32,
    /// Maximum number of rings in the notification descriptor: requests for one since it was
    /// cleared.
    pub(crate) rings: usize,
    /// Wake-ups of threads that wait for a list of descriptors.
    pub(crate) lists: Vec<ListWakeup>,
    /// Tasks to be woken when the lock is free, because a waker may run any code.
    pub(crate) due_wakers: Vec<Waker>,
    /// All threads and tasks were woken because the engine has ended.
    pub(crate) dead: bool,
    /// Number of sets that the process ever made.
    pub(crate) made: u64,
}

/// An eventfd for a thread that waits for a list of descriptors.
#[derive(Debug)]
pub(crate) struct ListWakeup {
    pub(crate) fd: HighFd,
    /// A thread sleeps on it.
    pub(crate) is_taken: bool,
    /// The sleeping thread takes the driver lock when it is woken ([`crate::driver`]).
    pub(crate) is_willing: bool,
    /// An event of one of its sockets has arrived.
    pub(crate) is_due: bool,
    /// Each event of the process wakes the thread, because some of its descriptors have no watch.
    pub(crate) is_for_all: bool,
    /// The count has to be cleared before the wake-up is used again.
    pub(crate) is_rung: bool,
    /// Watches of its sockets.
    pub(crate) watches: Vec<u32>,
}

impl ListWakeup {
    pub(crate) fn new(fd: HighFd) -> Self {
        let watches = Vec::with_capacity(LIST_WATCHES_MAX);
        let (is_taken, is_willing, is_due, is_for_all, is_rung) =
            (false, false, false, false, false);
        Self { fd, is_taken, is_willing, is_due, is_for_all, is_rung, watches }
    }
}

/// The sockets of an epoll set. Kernel descriptors are in the kernel's set, whose descriptor the
/// program holds.
#[derive(Debug, Default)]
pub(crate) struct EpollSet {
    /// Number of descriptors of the process for the set.
    pub(crate) refs: u32,
    /// Watches that may be ready, in the order of their events.
    pub(crate) ready: VecDeque<u32>,
    /// Watches by descriptor and slot.
    pub(crate) by_fd: HashMap<(i32, u32), u32>,
    /// Epoll sets inside this one.
    pub(crate) nested: Vec<NestedSet>,
    /// Number of kernel descriptors in the set.
    pub(crate) kernel: u32,
    /// Number of calls since one looked at the kernel's set first.
    pub(crate) calls: u32,
    /// Number of calls that still look at the kernel's set, because it had a ready descriptor
    /// recently.
    pub(crate) eager: u32,
    /// Number of threads asleep in the set.
    pub(crate) sleepers: u32,
    /// Number of sleepers that take the driver lock when they are woken ([`crate::driver`]).
    pub(crate) willing: u32,
    /// Number of calls that have slept in the set and have not returned. Until they do, the set and
    /// its number exist even if its last descriptor is closed, as in the kernel.
    pub(crate) calls_inside: u32,
    /// Unique number among all sets that the process ever made, because `number`s are reused.
    pub(crate) id: u64,
    /// A wake-up was written and not read yet.
    pub(crate) is_woken: bool,
    /// Kernel epoll set on which threads of the set sleep.
    pub(crate) place: Option<SleepPlace>,
}

/// An epoll set inside an epoll set.
#[derive(Debug, Clone, Copy)]
pub struct NestedSet {
    /// Number of the inner set.
    pub set: u32,
    /// Descriptor of the inner set in the outer one.
    pub fd: i32,
    /// Events wanted: bits of epoll_ctl(2).
    pub events: u32,
    /// Data that the program gave with the interest.
    pub data: u64,
    /// A socket became ready in the inner set since the last report.
    pub fresh: bool,
}

/// Kernel epoll set of our own, with the program's set, the notification descriptor, the control
/// socket and a wake-up. The program's set is shared with forked children, so that it must not
/// contain our descriptors.
#[derive(Debug)]
pub(crate) struct SleepPlace {
    pub(crate) epoll: HighFd,
    pub(crate) wakeup: HighFd,
    /// Forks of this process before the place was created.
    pub(crate) forks: u32,
}

impl Hub {
    /// Returns a set by its number.
    pub(crate) fn set(&mut self, number: u32) -> Option<&mut EpollSet> {
        self.sets.get_mut(number as usize)?.as_mut()
    }

    /// Returns the set of that number, unless the number has been reused.
    pub(crate) fn known(&mut self, number: u32, id: u64) -> Result<&mut EpollSet, Error> {
        self.set(number).filter(|set| set.id == id).ok_or(Errno::BADF.into())
    }
}

impl Reactor {
    /// Creates a reactor without sets. Its two tables have an entry for each slot and descriptor,
    /// and cost nothing in a static until they are used.
    pub(crate) const fn new() -> Self {
        Self {
            hub: ProcessLock::new(None),
            heads: [const { AtomicU32::new(0) }; SLOTS_MAX as usize],
            deferred_counts: [const { AtomicI32::new(0) }; DESCRIPTORS_MAX],
            has_deferred: AtomicBool::new(false),
            is_disowned: AtomicBool::new(false),
        }
    }

    /// Creates the state under the lock. A signal handler, or a fork for which malloc is locked,
    /// could not allocate it later.
    ///
    /// # Errors
    /// `Refused` with EDEADLK if this thread has the lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.lock().map(drop)
    }

    /// Drops all sets and wake-ups, and closes their descriptors. The next lock creates new state.
    pub(crate) fn close(&self) {
        let hub = self.hub.lock_unless_mine().and_then(|mut hub| hub.take());
        // Drop the state without the lock, because each descriptor is closed by a system call.
        drop(hub);
    }

    /// Locks the state, and creates it on first use. Does not do the work that signal handlers
    /// deferred, as [`Process::lock_reactor`](crate::Process::lock_reactor) does.
    pub(crate) fn lock(&self) -> Result<LockGuard<'_, Option<Box<Hub>>>, Error> {
        let mut hub = self.hub.lock_unless_mine().ok_or(Errno::DEADLK)?;
        hub.get_or_insert_with(Box::default);
        Ok(hub)
    }

    /// Gives up the watches of the parent, in a child of it.
    pub(crate) fn disown(&self) {
        self.is_disowned.store(true, Relaxed);
    }

    /// Returns whether the watches are the parent's.
    pub(crate) fn is_disowned(&self) -> bool {
        self.is_disowned.load(Relaxed)
    }

    /// Returns whether this thread has the lock.
    pub fn is_mine(&self) -> bool {
        self.hub.is_mine()
    }

    /// Has the next call that takes the lock forget the descriptors that were closed.
    pub(crate) fn defer(&self) {
        self.has_deferred.store(true, Relaxed);
    }
}
