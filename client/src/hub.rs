//! State of the [`crate::reactor`]: epoll sets, sleeping threads and waiting tasks of a process.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use std::task::Waker;

use rustix::io::Errno;
use towpath_ring::{LockGuard, ProcessLock, Spin};
use towpath_shm::layout::SLOTS_MAX;

use crate::descriptors::DESCRIPTORS_MAX;
use crate::watches::{LIST_WATCHES_MAX, Watches};
use crate::{Error, HighFd};

/// Epoll sets, sleeping threads and waiting tasks of a process. The reactor is kept when the
/// process attaches to the engine again, as after a fork.
#[derive(Debug)]
pub struct Reactor {
    /// The reactor's state; `None` until the lock is first taken. If the initial value were not all
    /// zeros, a static `Reactor` would take megabytes in the library's file instead of .bss.
    hub: ProcessLock<Option<Box<Hub>>>,
    /// Index plus one of the first watch (registered interest) in each socket slot; 0 if there is
    /// none. Changed only with the lock held.
    pub(crate) heads: [AtomicU32; SLOTS_MAX as usize],
    /// Pending changes of [`EpollSet::refs`] by number of the epoll set. A signal handler records a
    /// change here if the thread that it interrupted holds the lock.
    pub(crate) deferred_counts: [AtomicI32; DESCRIPTORS_MAX],
    /// Whether a signal handler has closed a descriptor while the thread that it interrupted held
    /// the lock. The next thread that takes the lock removes the watches (registered interests) of
    /// the descriptor.
    pub(crate) has_deferred: AtomicBool,
    /// Whether the process is a forked child without a connection to the engine. The child must not
    /// wait for the lock, which a thread of the parent may have held at the fork.
    is_disowned: AtomicBool,
}

/// State protected by the lock of a [`Reactor`].
#[derive(Debug, Default)]
pub struct Hub {
    pub(crate) watches: Watches,
    pub(crate) sets: Vec<Option<EpollSet>>,
    /// Number of threads that sleep or are about to sleep, plus the number of
    /// [`crate::reactor::Dispatcher`] values.
    pub(crate) sleepers: u32,
    /// Number of notifications requested from the engine since the notification descriptor was last
    /// read. The number is an upper bound for the value of that eventfd.
    pub(crate) rings: usize,
    /// Eventfds of threads that wait for a list of descriptors, as in poll(2).
    pub(crate) lists: Vec<ListWakeup>,
    /// Wakers of tasks, to be called after the lock is released, because a waker may run any code.
    pub(crate) due_wakers: Vec<Waker>,
    /// Number of tasks that were woken together last.
    pub(crate) woken_last: usize,
    /// Whether polling the rings before a task waits has usually found events.
    pub(crate) look: Spin,
    /// Whether a thread polls the rings before a task waits.
    pub(crate) is_looking: bool,
    /// Whether all threads and tasks were woken because the engine has ended.
    pub(crate) dead: bool,
    /// Number of epoll sets that the process has ever created.
    pub(crate) made: u64,
}

/// Eventfd that wakes a thread which waits for a list of descriptors, as in poll(2).
#[derive(Debug)]
pub(crate) struct ListWakeup {
    pub(crate) fd: HighFd,
    /// Whether a thread sleeps, or is about to, with this eventfd.
    pub(crate) is_taken: bool,
    /// Whether the sleeping thread runs the engine when it is woken ([`crate::driver`]).
    pub(crate) is_willing: bool,
    /// Whether an event of one of the thread's sockets has arrived.
    pub(crate) is_due: bool,
    /// Whether every event of the process wakes the thread, because not all of its sockets have a
    /// watch (registered interest).
    pub(crate) is_for_all: bool,
    /// Whether the eventfd was written, so that it must be read before its next use.
    pub(crate) is_rung: bool,
    /// Indices of the watches of the sockets for which the thread waits.
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

/// An epoll set of the program: the stack's sockets in it. Its kernel descriptors are in a kernel
/// epoll set, to which the program's descriptor refers.
#[derive(Debug, Default)]
pub(crate) struct EpollSet {
    /// Number of this process's descriptors that refer to the epoll set.
    pub(crate) refs: u32,
    /// Indices of the watches (registered sockets) that may be ready, in the order of their events.
    pub(crate) ready: VecDeque<u32>,
    /// Indices of the watches (registered sockets) in the epoll set, by descriptor and slot of the
    /// socket.
    pub(crate) by_fd: HashMap<(i32, u32), u32>,
    /// Epoll sets that are members of this one.
    pub(crate) nested: Vec<NestedSet>,
    /// Number of kernel descriptors in this epoll set.
    pub(crate) kernel: u32,
    /// Number of epoll_wait calls since the last one that checked the kernel's epoll set before the
    /// stack's sockets.
    pub(crate) calls: u32,
    /// Number of further epoll_wait calls that check the kernel's epoll set first, because one of
    /// its descriptors was ready recently.
    pub(crate) eager: u32,
    /// Number of threads that sleep in epoll_wait on this epoll set.
    pub(crate) sleepers: u32,
    /// Number of threads sleeping in this epoll set that run the engine when they are woken
    /// ([`crate::driver`]).
    pub(crate) willing: u32,
    /// Number of epoll_wait calls that have slept in this epoll set and have not returned. As in
    /// the kernel, they keep the set even if its last descriptor is closed.
    pub(crate) calls_inside: u32,
    /// ID of the set, unique in the process. The number of a closed set is reused, its ID is not.
    pub(crate) id: u64,
    /// Whether the epoll set's eventfd was written and not read since.
    pub(crate) is_woken: bool,
    /// Kernel epoll set of the threads that wait for this epoll set. `None` until the first one
    /// sleeps.
    pub(crate) place: Option<SleepPlace>,
}

/// An epoll set that is a member of another one.
#[derive(Debug, Clone, Copy)]
pub struct NestedSet {
    /// Number of the inner set in the reactor.
    pub set: u32,
    /// Descriptor with which the inner set was added to the outer one.
    pub fd: i32,
    /// Events for which the outer set watches the inner set: bits of epoll_ctl(2).
    pub events: u32,
    /// User data that the program passed to epoll_ctl(2).
    pub data: u64,
    /// Whether a socket has become ready in the inner set since the last report.
    pub fresh: bool,
}

/// Internal kernel epoll set on which threads sleep. The set contains the program's kernel epoll
/// set, the notification descriptor, the control socket and an eventfd. The program's set cannot
/// contain these descriptors, because forked children share it.
#[derive(Debug)]
pub(crate) struct SleepPlace {
    pub(crate) epoll: HighFd,
    pub(crate) wakeup: HighFd,
    /// Number of forks of this process before this kernel epoll set was created. A different number
    /// means that it belongs to the parent.
    pub(crate) forks: u32,
}

impl Hub {
    /// Returns the epoll set with this number.
    pub(crate) fn set(&mut self, number: u32) -> Option<&mut EpollSet> {
        self.sets.get_mut(number as usize)?.as_mut()
    }

    /// Returns the epoll set with this number and ID. Fails with EBADF if the number was reused for
    /// another set.
    pub(crate) fn known(&mut self, number: u32, id: u64) -> Result<&mut EpollSet, Error> {
        self.set(number).filter(|set| set.id == id).ok_or(Errno::BADF.into())
    }
}

impl Reactor {
    /// Creates a reactor without epoll sets. Its tables have an entry per slot and descriptor. In a
    /// static variable, they take no memory until they are used.
    pub(crate) const fn new() -> Self {
        Self {
            hub: ProcessLock::new(None),
            heads: [const { AtomicU32::new(0) }; SLOTS_MAX as usize],
            deferred_counts: [const { AtomicI32::new(0) }; DESCRIPTORS_MAX],
            has_deferred: AtomicBool::new(false),
            is_disowned: AtomicBool::new(false),
        }
    }

    /// Allocates the reactor's state now. Later it may be needed in a signal handler, or during a
    /// fork while malloc is locked, where it cannot be allocated.
    ///
    /// # Errors
    /// `Refused` with EDEADLK if this thread holds the lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.lock().map(drop)
    }

    /// Drops all epoll sets and wake-ups, and closes their descriptors. The next thread that takes
    /// the lock creates new state.
    pub(crate) fn close(&self) {
        let hub = self.hub.lock_unless_mine().and_then(|mut hub| hub.take());
        // Drop the state after the lock was released, because each descriptor is closed by a system
        // call.
        drop(hub);
    }

    /// Takes the lock, and creates the state on first use. Unlike
    /// [`Process::lock_reactor`](crate::Process::lock_reactor), does not do the work that signal
    /// handlers have deferred.
    pub(crate) fn lock(&self) -> Result<LockGuard<'_, Option<Box<Hub>>>, Error> {
        let mut hub = self.hub.lock_unless_mine().ok_or(Errno::DEADLK)?;
        hub.get_or_insert_with(Box::default);
        Ok(hub)
    }

    /// Declares that the reactor's state belongs to the parent. Called in a forked child without a
    /// connection to the engine.
    pub(crate) fn disown(&self) {
        self.is_disowned.store(true, Relaxed);
    }

    /// Returns whether the watches belong to the parent process.
    pub(crate) fn is_disowned(&self) -> bool {
        self.is_disowned.load(Relaxed)
    }

    /// Returns whether this thread holds the reactor's lock.
    pub fn is_mine(&self) -> bool {
        self.hub.is_mine()
    }

    /// Requests that the next thread that takes the lock remove the watches (registered interests)
    /// of closed descriptors.
    pub(crate) fn defer(&self) {
        self.has_deferred.store(true, Relaxed);
    }
}
