//! State of the programs that this process starts.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use towpath_client::{HighFd, LockGuard, ProcessLock};

use crate::numbers::Numbers;

/// A stream that popen(3) created.
#[derive(Debug, Clone, Copy)]
pub struct Pipe {
    /// Address of the FILE.
    pub stream: usize,
    /// Descriptor of the stream.
    pub fd: i32,
    /// Process ID of the command.
    pub command: i32,
}

/// State of the programs that this process starts.
#[derive(Debug)]
pub(crate) struct Spawns {
    started: ProcessLock<Started>,
    /// Length of [`Started::pipes`], so that closing any other stream takes no lock.
    pipes: AtomicUsize,
    /// Numbers that any file action of posix_spawn duplicates. The numbers cannot be read at the
    /// spawn, because posix_spawn_file_actions_t is opaque and libc runs the actions in the new
    /// process. Giving a descriptor a name without need costs only a token.
    pub in_actions: Numbers,
    /// Set if the engine is in this process; leaked, and otherwise null.
    host: AtomicPtr<EngineHost>,
}

/// State for a program that is executed in place of a process with the engine: the program creates
/// a new engine from it.
#[derive(Debug)]
pub(crate) struct EngineHost {
    /// Socket over which the program receives the parameters of the engine.
    pub socket: HighFd,
    /// Path of the library that creates the engine.
    pub library: Vec<u8>,
}

/// State that the lock of [`Spawns`] protects.
#[derive(Debug)]
pub(crate) struct Started {
    /// Reserved number, at which a spawned program finds its control socket. `None` until the
    /// program uses posix_spawn_file_actions_addclosefrom_np(3): earlier actions do not close all
    /// numbers, so any number will do. While no program is being spawned, a blank token occupies
    /// the number.
    pub seat: Option<HighFd>,
    /// Open streams of popen(3), by address.
    pipes: BTreeMap<usize, Pipe>,
}

impl Spawns {
    /// Creates the state without started programs.
    pub const fn new() -> Self {
        let started = Started { seat: None, pipes: BTreeMap::new() };
        let (pipes, host) = (AtomicUsize::new(0), AtomicPtr::new(null_mut()));
        Self { started: ProcessLock::new(started), pipes, in_actions: Numbers::new(), host }
    }

    /// Returns the state for a program executed in place of this one, if this process contains the
    /// engine.
    pub fn host(&self) -> Option<&EngineHost> {
        // SAFETY: the pointer is null or was leaked by `set_host`.
        unsafe { self.host.load(Acquire).as_ref() }
    }

    /// Sets the state, in the process that contains the engine.
    pub fn set_host(&self, host: EngineHost) {
        self.host.store(Box::into_raw(Box::new(host)), Release);
    }

    /// Takes the lock, which is held while a channel is cloned, and while a control socket is open
    /// that a program to be started inherits.
    ///
    /// `None` in a signal handler that has interrupted a holder of the lock, because the handler
    /// would wait for its own thread.
    pub fn lock(&self) -> Option<LockGuard<'_, Started>> {
        self.started.lock_unless_mine()
    }

    /// Notes a stream that popen(3) has created.
    pub fn note_pipe(&self, pipe: Pipe) {
        if let Some(mut started) = self.lock() {
            started.pipes.insert(pipe.stream, pipe);
            self.pipes.store(started.pipes.len(), Relaxed);
        }
    }

    /// Returns the descriptors of open popen(3) streams, which later commands of popen(3) must not
    /// inherit.
    pub fn pipe_descriptors(&self) -> Vec<i32> {
        let started = self.lock();
        started.map(|it| it.pipes.values().map(|pipe| pipe.fd).collect()).unwrap_or_default()
    }

    /// Forgets a stream that is closed. Returns the process of its command, if popen(3) created the
    /// stream.
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
