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

/// The sets and sleeping threads of a process. There is one for all attachments that the process
/// has one after the other.
#[derive(Debug)]
pub struct Reactor {
    /// None until first locked. An empty vector is no zeroed memory, and would put the megabytes of
    /// a static into the file that is loaded.
    hub: ProcessLock<Option<Box<Hub>>>,
    /// Index of a slot's first watch, plus one; changed under the lock only.
    pub(crate) heads: [AtomicU32; SLOTS_MAX as usize],
    /// Changes of [`Set::refs`], by the number of the set, that signal handlers could not make
    /// because the thread that they interrupted has the lock. A process has more sets than
    /// descriptors only while calls are in closed ones.
    pub(crate) owed: [AtomicI32; DESCRIPTORS_MAX],
    /// A signal handler has closed a descriptor while its thread had the lock: the next call that
    /// locks it forgets the descriptor.
    pub(crate) overdue: AtomicBool,
    /// The process is a child without an attachment of its own. A thread of the parent may have had
    /// the lock when it forked, so the lock must not be awaited.
    is_disowned: AtomicBool,
}

/// State under the lock of a [`Reactor`].
#[derive(Debug, Default)]
pub struct Hub {
    pub(crate) watches: Watches,
    pub(crate) sets: Vec<Option<Set>>,
    /// Threads asleep, or about to be.
    pub(crate) sleepers: u32,
    /// Rings that may be in the notification descriptor, at most: so often the engine was asked for
    /// one since it was cleared here.
    pub(crate) rings: usize,
    /// Wake-ups of threads that wait for a list of descriptors.
    pub(crate) lists: Vec<ListWakeup>,
    /// Tasks to be woken when the lock is free, because a waker may run any code.
    pub(crate) due_wakers: Vec<Waker>,
    /// All sets have reported the engine's death.
    pub(crate) dead: bool,
    /// Sets that were made.
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

/// An epoll set as far as it is about our sockets. Kernel descriptors are in the kernel's set,
/// whose descriptor the program holds.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// Descriptors of the process for it.
    pub(crate) refs: u32,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) by_fd: HashMap<(i32, u32), u32>,
    /// Sets of ours inside this one.
    pub(crate) nested: Vec<Nested>,
    /// Kernel descriptors were added.
    pub(crate) kernel: u32,
    /// Calls since the kernel's set was looked at first.
    pub(crate) calls: u32,
    /// Calls in which the kernel's set is looked at, as it had something lately.
    pub(crate) eager: u32,
    /// Threads asleep in it.
    pub(crate) sleepers: u32,
    /// Sleepers that take the driver lock when they are woken ([`crate::driver`]).
    pub(crate) willing: u32,
    /// Calls that have slept in it and have not returned. The set and its number exist until they
    /// do, as in the kernel, even if its last descriptor is closed.
    pub(crate) guests: u32,
    /// Unique among all sets that this process ever made; numbers are reused.
    pub(crate) id: u64,
    /// A wake-up was written and not yet read.
    pub(crate) kicked: bool,
    /// Kernel epoll set on which its threads sleep.
    pub(crate) bed: Option<SleepPlace>,
}

/// An epoll set inside an epoll set.
#[derive(Debug, Clone, Copy)]
pub struct Nested {
    /// The number of the inner set.
    pub set: u32,
    /// The descriptor by which it is in the outer one.
    pub fd: i32,
    /// Events wanted: bits of epoll_ctl(2).
    pub events: u32,
    /// Data that the program gave with them.
    pub data: u64,
    /// Something became ready in it since it was reported.
    pub fresh: bool,
}

/// A kernel epoll set of our own that holds the program's one, the notification descriptor, the
/// control socket and a wake-up. The program's set itself is shared with forked children, and must
/// not hold our things.
#[derive(Debug)]
pub(crate) struct SleepPlace {
    pub(crate) epoll: HighFd,
    pub(crate) kick: HighFd,
    /// Forks of this process before it was made.
    pub(crate) forks: u32,
}

impl Hub {
    /// Returns a set by its number.
    pub(crate) fn set(&mut self, number: u32) -> Option<&mut Set> {
        self.sets.get_mut(number as usize)?.as_mut()
    }

    /// Returns the set of that number, unless the number has been reused.
    pub(crate) fn known(&mut self, number: u32, id: u64) -> Result<&mut Set, Error> {
        self.set(number).filter(|set| set.id == id).ok_or(Errno::BADF.into())
    }
}

impl Reactor {
    /// A reactor without sets. Its two tables, with a place for each slot and each descriptor, cost
    /// nothing in a static until they are used.
    pub(crate) const fn new() -> Self {
        Self {
            hub: ProcessLock::new(None),
            heads: [const { AtomicU32::new(0) }; SLOTS_MAX as usize],
            owed: [const { AtomicI32::new(0) }; DESCRIPTORS_MAX],
            overdue: AtomicBool::new(false),
            is_disowned: AtomicBool::new(false),
        }
    }

    /// Makes the state under the lock. Later the first to lock it may be a signal handler, or a
    /// fork for which malloc is locked.
    ///
    /// # Errors
    /// `Refused` with EDEADLK where this thread has the lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.lock().map(drop)
    }

    /// Drops all sets and wake-ups, whose descriptors are closed with them. The next lock begins
    /// anew.
    pub(crate) fn close(&self) {
        let hub = self.hub.lock_unless_mine().and_then(|mut hub| hub.take());
        // Outside the lock: closing is a system call for each descriptor.
        drop(hub);
    }

    /// Locks the state, and makes it on first use. Work that signal handlers put off is not done
    /// here: see [`Process::lock_reactor`](crate::Process::lock_reactor).
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

    /// Whether this thread has the lock.
    pub fn is_mine(&self) -> bool {
        self.hub.is_mine()
    }

    /// Makes the next call that takes the lock forget the descriptors that were closed.
    pub(crate) fn defer(&self) {
        self.overdue.store(true, Relaxed);
    }
}
