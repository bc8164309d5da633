//! Kills a process of a run after both the `towpath` process and its guardian have ended. Normally
//! these two end the processes of the run.
//!
//! Both keep the write end of a pipe, and never write to it. Each process of the run has a read
//! end. By O_ASYNC with F_SETSIG and F_SETOWN (fcntl(2)) the kernel sends the process SIGKILL when
//! the pipe changes. When the last writer has ended, the kernel closes the pipe, which kills all
//! processes of the run.
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

/// Makes the kernel kill this process when the last writer of `pipe` ends, until the result is
/// dropped.
///
/// Returns `None` if the pipe cannot be opened anew: without /proc (in a chroot), or without a free
/// descriptor. The process then survives the engine, and its socket calls fail.
pub(crate) fn hold(pipe: impl AsFd, process: &'static Process) -> Option<HighFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let own = Fd::from(open(&*path, flags, Mode::empty()).ok()?);
    let own = HighFd::new(own, &process.descriptors);
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    fcntl(own.get(), F_SETSIG, SIGKILL).ok()?;
    fcntl(own.get(), F_SETOWN, pid as usize).ok()?;
    // Set O_ASYNC last, because it activates the owner and signal set above.
    fcntl(own.get(), F_SETFL, O_ASYNC).ok()?;
    Some(own)
}
