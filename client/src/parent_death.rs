//! Kills a process after both the `towpath` process that started it and its guardian process have
//! ended. Normally one of these ends the processes that use the stack.
//!
//! Both have the write end of a pipe, and never write to it. Each process that uses the stack has a
//! read end, with O_ASYNC, F_SETSIG and F_SETOWN (fcntl(2)). When the last writer has ended, the
//! kernel closes the pipe, and sends SIGKILL to all these processes.
//!
//! The receiver of the signal is a property of the open file description, which a forked child
//! shares. Therefore each process opens the pipe anew.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Mode, OFlags, open};
use towpath_shm::Fd;

use crate::syscall::fcntl;
use crate::{HighFd, Process};

// Constants from asm-generic/fcntl.h and signal.h.
const F_SETFL: i32 = 4;
const F_SETOWN: i32 = 8;
const F_SETSIG: i32 = 10;
const O_ASYNC: usize = 0o20000;
const SIGKILL: usize = 9;

/// Makes the kernel kill this process when the last writer of `pipe` ends, as long as the result is
/// not dropped.
///
/// Returns `None` if the pipe cannot be opened anew: without /proc (in a chroot), or without a free
/// descriptor. The process then survives the engine (the network stack), and its socket calls fail.
pub(crate) fn hold(pipe: impl AsFd, process: &'static Process) -> Option<HighFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let own = Fd::from(open(&*path, flags, Mode::empty()).ok()?);
    let own = HighFd::new(own, &process.descriptors);
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    fcntl(own.get(), F_SETSIG, SIGKILL).ok()?;
    fcntl(own.get(), F_SETOWN, pid as usize).ok()?;
    // Set O_ASYNC last, because it enables the signal for the owner set above.
    fcntl(own.get(), F_SETFL, O_ASYNC).ok()?;
    Some(own)
}
