//! State of a process that all its attachments share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags, open};
use towpath_shm::Fd;

use crate::Error;
use crate::deadline::now_ns;
use crate::descriptors::Descriptors;
use crate::hub::Reactor;

/// The tables and the reactor of a process, which outlive its attachment, since a forked child gets
/// an attachment of its own.
///
/// There is no static `Process` in this crate. The library that is loaded into a program has one; a
/// program that hosts several engines has one [mapped](crate::MappedProcess) for each.
///
/// ```
/// static PROCESS: towpath_client::Process = towpath_client::Process::new();
/// assert_eq!(PROCESS.forks(), 0);
/// ```
#[derive(Debug)]
pub struct Process {
    /// Descriptor numbers of the process that belong to sockets or to this library.
    pub descriptors: Descriptors,
    /// Epoll sets, sleeping threads and waiting tasks of the process.
    pub reactor: Reactor,
    /// Number of the process's channel (1 to CHANNELS_MAX), or 0 if it is not attached to an
    /// engine.
    channel: AtomicU32,
    forks: AtomicU32,
    /// True if the kernel lacks futex_waitv(2), or a seccomp filter may forbid the call.
    without_waitv: AtomicBool,
}

impl Process {
    /// Creates a `Process` without an attachment, for a static. Its tables are megabytes of zeros,
    /// which cost nothing in a static until they are used. Use
    /// [`MappedProcess`](crate::MappedProcess) elsewhere.
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

    /// Closes the descriptors of the reactor. Call this before dropping the `Process`, because
    /// closing a descriptor accesses the table of descriptors.
    pub fn close(&self) {
        self.reactor.close();
    }

    /// Reads the clock once, so that later reads need no system call (vDSO), and checks whether
    /// system calls are filtered. Later a seccomp filter of the program might forbid these calls.
    ///
    /// # Errors
    /// `Refused` with EDEADLK in a signal handler that interrupted a call with the reactor's lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        now_ns();
        if is_filtered() {
            self.calls_are_filtered();
        }
        self.reactor.prepare()
    }

    /// Resets the state in a child after fork, which cannot reach the parent's engine. Reads the
    /// thread id at once, because a seccomp filter of the child might forbid the call later.
    pub fn forked(&self) {
        self.forks.fetch_add(1, Relaxed);
        self.descriptors.leave_engine();
        towpath_ring::forget_thread_id();
        towpath_ring::thread_id();
    }

    /// Returns the number of forks that led to this process. A changed number reveals that a
    /// handler forked while a call waited, so that the call's counts in shared memory are the
    /// parent's.
    pub fn forks(&self) -> u32 {
        self.forks.load(Relaxed)
    }

    /// Notes that the program filters its system calls (seccomp(2)), or was executed with a filter.
    /// Then futex_waitv(2) is not used, because a filter may kill the process for an unknown call.
    pub fn calls_are_filtered(&self) {
        self.without_waitv.store(true, Relaxed);
    }

    /// Returns whether futex_waitv(2) must not be called.
    pub(crate) fn is_without_waitv(&self) -> bool {
        self.without_waitv.load(Relaxed)
    }

    /// Returns the number of the channel, from 1 to [`towpath_shm::layout::CHANNELS_MAX`], or 0 if
    /// the process is not attached. Locks in shared memory contain the number of their holder.
    pub(crate) fn channel(&self) -> u32 {
        self.channel.load(Relaxed)
    }

    pub(crate) fn set_channel(&self, number: u32) {
        self.channel.store(number, Relaxed);
    }
}

/// Returns whether /proc/self/status reports a seccomp filter, or cannot be read, which a filter
/// may cause.
fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let read = open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Fd::from)
        .and_then(|file| rustix::io::read(&*file, &mut status));
    let Ok(len) = read else { return true };
    let line = status[..len].split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Seccomp:"));
    line.is_none_or(|mode| mode.trim_ascii() != b"0")
}
