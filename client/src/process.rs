//! State of a process that is independent of its connection to an engine (network stack).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags, open};
use towpath_shm::Fd;

use crate::Error;
use crate::deadline::now_ns;
use crate::descriptors::Descriptors;
use crate::hub::Reactor;

/// The tables and the reactor of a process. Both outlive its connection to the engine (the network
/// stack), because a forked child creates a new connection.
///
/// There is no static `Process` in this crate. The library that is loaded into a program has one. A
/// program with several engines has a [mapped](crate::MappedProcess) one for each.
///
/// ```
/// static PROCESS: towpath_client::Process = towpath_client::Process::new();
/// assert_eq!(PROCESS.forks(), 0);
/// ```
#[derive(Debug)]
pub struct Process {
    /// Table of the descriptor numbers that belong to sockets or to this library.
    pub descriptors: Descriptors,
    /// Epoll sets, sleeping threads and waiting tasks of the process.
    pub reactor: Reactor,
    /// Number of the process's channel to the engine (1 to CHANNELS_MAX). 0: the process is not
    /// attached.
    channel: AtomicU32,
    forks: AtomicU32,
    /// Whether futex_waitv(2) must not be used, because the kernel lacks it or a seccomp filter may
    /// forbid it.
    without_waitv: AtomicBool,
}

impl Process {
    /// Creates the state of a process without a connection, for a static variable. Its tables
    /// consist of megabytes of zeros, which take no memory in a static variable until they are
    /// used. Elsewhere, use [`MappedProcess`](crate::MappedProcess).
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

    /// Closes the descriptors of the reactor. Call this before the [`Process`] is dropped, because
    /// closing a descriptor accesses the descriptor table.
    pub fn close(&self) {
        self.reactor.close();
    }

    /// Reads the clock once, so that later reads need no system call (vDSO), and checks whether
    /// system calls are filtered. Both are done at the start, because a seccomp filter that the
    /// program installs later may forbid them.
    ///
    /// # Errors
    /// `Refused` with EDEADLK in a signal handler that interrupted a holder of the reactor's lock.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        now_ns();
        if is_filtered() {
            self.calls_are_filtered();
        }
        self.reactor.prepare()
    }

    /// Resets the state in a forked child, which cannot use the parent's engine. Reads the thread
    /// ID now, because a seccomp filter of the child may forbid this system call later.
    pub fn forked(&self) {
        self.forks.fetch_add(1, Relaxed);
        self.descriptors.leave_engine();
        towpath_ring::forget_thread_id();
        towpath_ring::thread_id();
    }

    /// Returns the number of forks that led to this process. If it changes during a call, a signal
    /// handler has forked, and this is the child. Counts in shared memory that the call has changed
    /// then belong to the parent.
    pub fn forks(&self) -> u32 {
        self.forks.load(Relaxed)
    }

    /// Records that the system calls of this program are filtered (seccomp(2)). futex_waitv(2) is
    /// then not used, because a filter may kill the process for a system call that it does not
    /// know.
    pub fn calls_are_filtered(&self) {
        self.without_waitv.store(true, Relaxed);
    }

    /// Returns whether futex_waitv(2) must not be used.
    pub(crate) fn is_without_waitv(&self) -> bool {
        self.without_waitv.load(Relaxed)
    }

    /// Returns the number of the process's channel to the engine, from 1 to
    /// [`towpath_shm::layout::CHANNELS_MAX`]. 0: the process is not attached. Locks in shared
    /// memory contain the channel number of their holder.
    pub(crate) fn channel(&self) -> u32 {
        self.channel.load(Relaxed)
    }

    pub(crate) fn set_channel(&self, number: u32) {
        self.channel.store(number, Relaxed);
    }
}

/// Returns whether a seccomp filter is active, according to /proc/self/status. Also true if that
/// file cannot be read, because a filter may be the cause.
fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let read = open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Fd::from)
        .and_then(|file| rustix::io::read(&*file, &mut status));
    let Ok(len) = read else { return true };
    let line = status[..len].split(|byte| *byte == b'\n').find_map(|l| l.strip_prefix(b"Seccomp:"));
    line.is_none_or(|mode| mode.trim_ascii() != b"0")
}
