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

/// Epoll sets, sleeping threads and waiting tasks of a process. Kept when the process attaches
/// anew, as after a fork.
#[derive(Debug)]
pub struct Reactor {
    /// `None` until first locked. An empty vector is not zeroed memory, so a static `Reactor` with
    /// vectors would take megabytes in the library's file instead of .bss.
    hub: ProcessLock<Option<Box<Hub>>>,
    /// Index of the first watch of each slot, plus one. Changed only under the lock.
    pub(crate) heads: [AtomicU32; SLOTS_MAX as usize],
    /// Pending changes of [`EpollSet::refs`], by the number of the set. A signal handler records a
    /// change here if the interrupted thread has the lock.
    pub(crate) deferred_counts: [AtomicI32; DESCRIPTORS_MAX],
    /// A signal handler has closed a descriptor while the interrupted thread had the lock. The next
    /// call that takes the lock removes the watches of the descriptor.
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
    /// Number of threads that sleep or are about to sleep, plus the number of dispatchers.
    pub(crate) sleepers: u32,
    /// Notifications requested since the notification descriptor was cleared: an upper bound for
    /// the number that it contains.
    pub(crate) rings: usize,
    /// Eventfds of threads that wait for a list of descriptors, as poll(2) does.
    pub(crate) lists: Vec<ListWakeup>,
    /// Wakers to call after the lock is released, because a waker may run any code.
    pub(crate) due_wakers: Vec<Waker>,
    /// All threads and tasks were woken because the engine has ended.
    pub(crate) dead: bool,
    /// Number of sets that the process has ever created.
    pub(crate) made: u64,
}

/// Eventfd that wakes a thread which waits for a list of descriptors, as in poll(2).
#[derive(Debug)]
pub(crate) struct ListWakeup {
    pub(crate) fd: HighFd,
    /// A thread sleeps on this eventfd.
    pub(crate) is_taken: bool,
    /// The sleeping thread takes the driver lock when it is woken ([`crate::driver`]).
    pub(crate) is_willing: bool,
    /// An event of one of the thread's sockets has arrived.
    pub(crate) is_due: bool,
    /// Each event of the process wakes the thread, because some of its descriptors have no watch.
    pub(crate) is_for_all: bool,
    /// The eventfd was written, so its count must be cleared before it is used again.
    pub(crate) is_rung: bool,
    /// Watches of the sockets that the thread waits for.
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

/// Epoll set of the program, with its sockets of the stack. Kernel descriptors of the set are in a
/// set of the kernel, whose descriptor the program holds.
#[derive(Debug, Default)]
pub(crate) struct EpollSet {
    /// Number of descriptors of the process that refer to the set.
    pub(crate) refs: u32,
    /// Watches that may be ready, in the order of their events.
    pub(crate) ready: VecDeque<u32>,
    /// Watches by descriptor and slot.
    pub(crate) by_fd: HashMap<(i32, u32), u32>,
    /// Epoll sets inside this one.
    pub(crate) nested: Vec<NestedSet>,
    /// Number of kernel descriptors in the set.
    pub(crate) kernel: u32,
    /// Number of calls since a call last checked the kernel's set before our sockets.
    pub(crate) calls: u32,
    /// Number of further calls that check the kernel's set, because one of its descriptors was
    /// ready recently.
    pub(crate) eager: u32,
    /// Number of threads that sleep in a call on the set.
    pub(crate) sleepers: u32,
    /// Number of sleepers that take the driver lock when they are woken ([`crate::driver`]).
    pub(crate) willing: u32,
    /// Number of calls that have slept in the set and have not returned. Until they return, the set
    /// exists even if its last descriptor is closed, as in the kernel.
    pub(crate) calls_inside: u32,
    /// Unique id of the set in the process. Numbers of closed sets are reused, ids are not.
    pub(crate) id: u64,
    /// The set's eventfd was written and not read since.
    pub(crate) is_woken: bool,
    /// Kernel epoll set on which threads sleep that wait for this set.
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
    /// Data that the program gave to epoll_ctl(2).
    pub data: u64,
    /// A socket became ready in the inner set since the last report.
    pub fresh: bool,
}

/// Kernel epoll set of this library on which threads sleep. Contains the program's kernel set, the
/// notification descriptor, the control socket and an eventfd. The program's set cannot contain
/// them, because forked children share that set.
#[derive(Debug)]
pub(crate) struct SleepPlace {
    pub(crate) epoll: HighFd,
    pub(crate) wakeup: HighFd,
    /// Number of forks of this process when the set was created.
    pub(crate) forks: u32,
}

impl Hub {
    /// Returns a set by its number.
    pub(crate) fn set(&mut self, number: u32) -> Option<&mut EpollSet> {
        self.sets.get_mut(number as usize)?.as_mut()
    }

    /// Returns the set with this number and id. Fails with EBADF if the number has been reused.
    pub(crate) fn known(&mut self, number: u32, id: u64) -> Result<&mut EpollSet, Error> {
        self.set(number).filter(|set| set.id == id).ok_or(Errno::BADF.into())
    }
}

impl Reactor {
    /// Creates a reactor without sets. Its tables, with an entry for each slot and descriptor, take
    /// no memory in a static until they are used.
    pub(crate) const fn new() -> Self {
        Self {
            hub: ProcessLock::new(None),
            heads: [const { AtomicU32::new(0) }; SLOTS_MAX as usize],
            deferred_counts: [const { AtomicI32::new(0) }; DESCRIPTORS_MAX],
            has_deferred: AtomicBool::new(false),
            is_disowned: AtomicBool::new(false),
        }
    }

    /// Creates the state under the lock early, because a signal handler, or a fork during which
    /// malloc is locked, cannot allocate it.
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

    /// Marks the watches as the parent's. Called in a child process without an attachment.
    pub(crate) fn disown(&self) {
        self.is_disowned.store(true, Relaxed);
    }

    /// Returns whether the watches belong to the parent process.
    pub(crate) fn is_disowned(&self) -> bool {
        self.is_disowned.load(Relaxed)
    }

    /// Returns whether this thread has the lock.
    pub fn is_mine(&self) -> bool {
        self.hub.is_mine()
    }

    /// Makes the next call that takes the lock remove the watches of closed descriptors.
    pub(crate) fn defer(&self) {
        self.has_deferred.store(true, Relaxed);
    }
}
