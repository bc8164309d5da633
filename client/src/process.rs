//! State that a process has once, whatever attachment it has.

use std::mem::MaybeUninit;
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
/// program that hosts several engines has one for each, [on the heap](Self::on_heap).
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
    /// cost nothing there until they are touched. [`Self::on_heap`] is for all other places.
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

    /// A `Process` on the heap. The allocator maps zeroed pages, so that the stack of the calling
    /// thread needs no room for the tables.
    ///
    /// [`Client`](crate::Client) wants `&'static Process`. Before an owner frees the box, every
    /// value of this crate that was made with it is dropped, and then [`Self::close`] is called.
    ///
    /// ```
    /// let process = towpath_client::Process::on_heap();
    /// assert_eq!(process.forks(), 0);
    /// process.close();
    /// ```
    pub fn on_heap() -> Box<Self> {
        let zeros: Box<MaybeUninit<Self>> = Box::new_zeroed();
        // SAFETY: `new` makes zeros, too: atomics of 0 and false, and a free lock. In the lock is
        // None in place of a Box, a null pointer.
        unsafe { zeros.assume_init() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HighFd;
    use crate::descriptors::{DESCRIPTORS_MAX, Entry};
    use crate::hub::ListKick;

    #[test]
    fn a_process_on_the_heap_is_what_new_makes() {
        let process = Process::on_heap();
        for fd in [0, 3, 1023, DESCRIPTORS_MAX as i32 - 1] {
            assert_eq!(process.descriptors.lookup(fd), Entry::Kernel);
        }
        assert_eq!((process.forks(), process.channel()), (0, 0));
        assert!(!process.is_without_waitv() && !process.reactor.is_mine());
        assert!(process.reactor.heads.iter().all(|head| head.load(Relaxed) == 0));
        assert!(
            process.reactor.lock().is_ok_and(|hub| hub.as_ref().is_some_and(|hub| hub.made == 0))
        );
    }

    #[test]
    fn a_closed_reactor_has_no_descriptors() {
        let process = Process::on_heap();
        // SAFETY: the box lives as long as the descriptor in its reactor, which `close` drops.
        let descriptors = unsafe { &*std::ptr::from_ref(&process.descriptors) };
        let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
        let fd = HighFd::new(kick.into(), descriptors);
        let number = fd.get();
        let kick = ListKick { fd, is_taken: false, is_willing: false, is_rung: false };
        process.reactor.lock().expect("free").as_mut().expect("made").list_kicks.push(kick);
        assert_eq!(descriptors.lookup(number), Entry::Internal);
        process.close();
        assert_eq!(descriptors.lookup(number), Entry::Kernel);
    }
}
