//! What there is once in a process, whatever attachment it has.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags, open};
use towpath_shm::Fd;

use crate::Error;
use crate::deadline::now_ns;
use crate::descriptors::Descriptors;
use crate::hub::Reactor;

/// What a process has once: it outlives the attachment, of which a forked child has another one. This crate has no
/// statics: the library that is loaded into a program has one of these, and a test as many as it likes.
///
/// ```
/// static PROCESS: towpath_client::Process = towpath_client::Process::new();
/// assert_eq!(PROCESS.forks(), 0);
/// ```
#[derive(Debug)]
pub struct Process {
    /// Which of its descriptor numbers are ours.
    pub descriptors: Descriptors,
    /// What its threads wait with.
    pub reactor: Reactor,
    /// The number of the channel of its attachment, 0 before it has one.
    channel: AtomicU32,
    forks: AtomicU32,
    /// The kernel has no futex_waitv(2), or a filter may forbid it.
    without_waitv: AtomicBool,
}

impl Process {
    /// One without an attachment. Its tables are zeroed memory, which as a static costs nothing until it is touched;
    /// they have several megabytes: not for the stack.
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

    /// Makes the system calls that waiting needs once, for the clock (vDSO), and finds out whether calls are filtered. A
    /// program that forbids itself system calls later (seccomp) does not expect these.
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

    /// To be called in the child after fork, which has its parent's engine no more. Its thread has a new id, which is asked for at once, because a child that
    /// is about to forbid itself system calls (seccomp) does not expect that.
    pub fn forked(&self) {
        self.forks.fetch_add(1, Relaxed);
        self.descriptors.leave_engine();
        towpath_ring::forget_thread_id();
        towpath_ring::thread_id();
    }

    /// Changes with each fork that led to this process. What a call has counted in shared memory is its parent's,
    /// if a handler forked while it waited.
    pub fn forks(&self) -> u32 {
        self.forks.load(Relaxed)
    }

    /// The program begins to filter its system calls (seccomp(2)), or was executed so. It does not know of
    /// futex_waitv(2), and a filter may end the process for a call that it does not know; futex(2) is in every one.
    pub fn calls_are_filtered(&self) {
        self.without_waitv.store(true, Relaxed);
    }

    /// Whether futex_waitv(2) is not to be called.
    pub(crate) fn is_without_waitv(&self) -> bool {
        self.without_waitv.load(Relaxed)
    }

    /// The number of its channel, from 1 to [`towpath_shm::layout::CHANNELS_MAX`]: what its threads own is known by
    /// it. 0 before it has one.
    pub(crate) fn channel(&self) -> u32 {
        self.channel.load(Relaxed)
    }

    pub(crate) fn set_channel(&self, number: u32) {
        self.channel.store(number, Relaxed);
    }
}

/// What /proc/self/status says; true where it cannot be read, as where a filter forbids that.
fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let read = open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Fd::from)
        .and_then(|file| rustix::io::read(&*file, &mut status));
    let Ok(len) = read else { return true };
    let line = status[..len].split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Seccomp:"));
    line.is_none_or(|mode| mode.trim_ascii() != b"0")
}
