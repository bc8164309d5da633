//! State that a process has once, whatever attachment it has.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags, open};
use towpath_shm::Fd;

use crate::Error;
use crate::deadline::now_ns;
use crate::descriptors::Descriptors;
use crate::hub::Reactor;

/// The tables and the reactor of a process, which outlive its attachment: a forked child has
/// another one.
///
/// No static of this crate exists. The library that is loaded into a program has one `Process`; a
/// program that hosts several engines has one for each, [mapped](crate::MappedProcess).
///
/// ```
/// static PROCESS: towpath_client::Process = towpath_client::Process::new();
/// assert_eq!(PROCESS.forks(), 0);
/// ```
#[derive(Debug)]
pub struct Process {
    /// Descriptor numbers of the process that are ours.
    pub descriptors: Descriptors,
    /// Sets and sleepers of its threads that wait.
    pub reactor: Reactor,
    /// The number of the channel of its attachment, 0 before it has one.
    channel: AtomicU32,
    forks: AtomicU32,
    /// The kernel has no futex_waitv(2), or a filter may forbid it.
    without_waitv: AtomicBool,
}

impl Process {
    /// A `Process` without an attachment, for a static: its tables are megabytes of zeros, which
    /// cost nothing there until they are touched. For all other places there is
    /// [`MappedProcess`](crate::MappedProcess).
    #[expect(clippy::new_without_default, reason = "it would be built on the stack")]
    pub const fn new() -> Self {
        Self {
            descriptors: Descriptors::new(),
            reactor: Reactor::new(),
            channel: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            without_waitv: AtomicBool::new(false),
        }
    }

    /// Closes the descriptors of the reactor: of its sets, and of the threads that waited.
    /// Without it they would be closed while the table of descriptors, in which each of them is
    /// entered, is being dropped.
    pub fn close(&self) {
        self.reactor.close();
    }

    /// Makes the system calls that waiting needs once, for the clock (vDSO), and finds out whether
    /// calls are filtered. A program that forbids itself system calls later (seccomp) does not
    /// expect these.
    ///
    /// # Errors
    /// `Refused` with EDEADLK in a signal handler on top of a call that has the reactor's lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        now_ns();
        if is_filtered() {
            self.calls_are_filtered();
        }
        self.reactor.prepare()
    }

    /// To be called in the child after fork, where the parent's engine is out of reach. Asks for
    /// the thread's new id at once: a child about to forbid itself system calls (seccomp) does not
    /// expect that call later.
    pub fn forked(&self) {
        self.forks.fetch_add(1, Relaxed);
        self.descriptors.leave_engine();
        towpath_ring::forget_thread_id();
        towpath_ring::thread_id();
    }

    /// Number of forks that led to this process. If a handler forked during a call's wait, its
    /// counts in shared memory are the parent's; a changed number tells so.
    pub fn forks(&self) -> u32 {
        self.forks.load(Relaxed)
    }

    /// The program begins to filter its system calls (seccomp(2)), or was executed with a filter. A
    /// filter may end the process for a call that it does not know, as futex_waitv(2). All filters
    /// allow futex(2).
    pub fn calls_are_filtered(&self) {
        self.without_waitv.store(true, Relaxed);
    }

    /// Whether futex_waitv(2) is not to be called.
    pub(crate) fn is_without_waitv(&self) -> bool {
        self.without_waitv.load(Relaxed)
    }

    /// The number of its channel, from 1 to [`towpath_shm::layout::CHANNELS_MAX`]: locks of its
    /// threads are marked with it. 0 before it has one.
    pub(crate) fn channel(&self) -> u32 {
        self.channel.load(Relaxed)
    }

    pub(crate) fn set_channel(&self, number: u32) {
        self.channel.store(number, Relaxed);
    }
}

/// Whether /proc/self/status names a filter; true where it cannot be read, as where a filter
/// forbids that.
fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let read = open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Fd::from)
        .and_then(|file| rustix::io::read(&*file, &mut status));
    let Ok(len) = read else { return true };
    let line = status[..len].split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Seccomp:"));
    line.is_none_or(|mode| mode.trim_ascii() != b"0")
}
