//! State of programs that this one starts.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use towpath_client::{HighFd, LockGuard, ProcessLock};

use crate::numbers::Numbers;

/// A stream of popen(3).
#[derive(Debug, Clone, Copy)]
pub struct Pipe {
    /// Its address.
    pub stream: usize,
    /// Its descriptor.
    pub fd: i32,
    /// The process of the command.
    pub command: i32,
}

/// State of programs that this one starts.
#[derive(Debug)]
pub(crate) struct Spawns {
    started: ProcessLock<Started>,
    /// Length of [`Started::pipes`], so that closing any other stream takes no lock.
    pipes: AtomicUsize,
    /// Each number that a file action of posix_spawn was ever told to duplicate. libc carries the
    /// actions out in the new process, and posix_spawn_file_actions_t is opaque, so the numbers in
    /// it cannot be looked up at the spawn. A descriptor that gets a name without need costs a
    /// token.
    pub in_actions: Numbers,
    /// Leaked; null: no engine is in this process.
    host: AtomicPtr<EngineHost>,
}

/// Needs of a program that is executed in the place of one with an engine.
#[derive(Debug)]
pub(crate) struct EngineHost {
    /// Under which the program is told of what to make an engine.
    pub socket: HighFd,
    /// Its library.
    pub library: Vec<u8>,
}

/// State under the lock of [`Spawns`].
#[derive(Debug)]
pub(crate) struct Started {
    /// The number at which a spawned program finds its control socket. `None` until the program
    /// uses posix_spawn_file_actions_addclosefrom_np(3): the actions made since then leave this
    /// number open, and any will do before. While nothing is being spawned the blank token is
    /// there.
    pub seat: Option<HighFd>,
    /// By the addresses of their streams.
    pipes: BTreeMap<usize, Pipe>,
}

impl Spawns {
    /// Nothing was started.
    pub const fn new() -> Self {
        let started = Started { seat: None, pipes: BTreeMap::new() };
        let (pipes, host) = (AtomicUsize::new(0), AtomicPtr::new(null_mut()));
        Self { started: ProcessLock::new(started), pipes, in_actions: Numbers::new(), host }
    }

    /// Needs of a program that is executed in the place of this one, if this one has an engine.
    pub fn host(&self) -> Option<&EngineHost> {
        // SAFETY: leaked by `set_host`, or null.
        unsafe { self.host.load(Acquire).as_ref() }
    }

    /// From now on there is one.
    pub fn set_host(&self, host: EngineHost) {
        self.host.store(Box::into_raw(Box::new(host)), Release);
    }

    /// Held while a channel is cloned, or while a control socket is open that a program to be
    /// started inherits.
    ///
    /// `None` in a signal handler that has interrupted such a call: it would wait for its own
    /// thread.
    pub fn lock(&self) -> Option<LockGuard<'_, Started>> {
        self.started.lock_unless_mine()
    }

    /// popen(3) has made a stream, whose command is a process.
    pub fn note_pipe(&self, pipe: Pipe) {
        if let Some(mut started) = self.lock() {
            started.pipes.insert(pipe.stream, pipe);
            self.pipes.store(started.pipes.len(), Relaxed);
        }
    }

    /// The descriptors that commands of popen(3) do not inherit: those of the streams before.
    pub fn pipe_descriptors(&self) -> Vec<i32> {
        let started = self.lock();
        started.map(|it| it.pipes.values().map(|pipe| pipe.fd).collect()).unwrap_or_default()
    }

    /// A stream is closed: its command, if popen(3) has made it.
    pub fn take_pipe(&self, stream: usize) -> Option<i32> {
        if self.pipes.load(Relaxed) == 0 {
            return None;
        }
        let mut started = self.lock()?;
        let pipe = started.pipes.remove(&stream)?;
        self.pipes.store(started.pipes.len(), Relaxed);
        Some(pipe.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_taken_once() {
        static SPAWNS: Spawns = Spawns::new();
        assert_eq!(SPAWNS.take_pipe(7), None);
        for (stream, fd, command) in [(7, 3, 70), (8, 4, 80)] {
            SPAWNS.note_pipe(Pipe { stream, fd, command });
        }
        assert_eq!(SPAWNS.pipe_descriptors(), [3, 4]);
        assert_eq!(
            (SPAWNS.take_pipe(9), SPAWNS.take_pipe(7), SPAWNS.take_pipe(7)),
            (None, Some(70), None)
        );
        assert_eq!(SPAWNS.pipe_descriptors(), [4]);
        assert_eq!((SPAWNS.take_pipe(8), SPAWNS.pipes.load(Relaxed)), (Some(80), 0));
    }
}
