//! State of the programs that this process starts.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use towpath_client::{HighFd, LockGuard, ProcessLock};

use crate::numbers::Numbers;

/// A stream that popen(3) has created.
#[derive(Debug, Clone, Copy)]
pub struct Pipe {
    /// Address of the stream's `FILE`.
    pub stream: usize,
    /// Descriptor of the stream's file.
    pub fd: i32,
    /// Process ID of the command that popen(3) has started.
    pub command: i32,
}

/// State of the programs that this process starts.
#[derive(Debug)]
pub(crate) struct Spawns {
    started: ProcessLock<Started>,
    /// Number of open popen(3) streams. If it is 0, closing a stream need not take the lock.
    pipes: AtomicUsize,
    /// Descriptor numbers that file actions of posix_spawn(3) duplicate. The numbers are recorded
    /// here, because posix_spawn_file_actions_t is opaque. If a recorded number is not used, the
    /// only cost is that its kernel descriptor gets the socket's name.
    pub in_actions: Numbers,
    /// State needed at exec if the engine is in this process. A leaked box, or null if the engine
    /// is elsewhere.
    host: AtomicPtr<EngineHost>,
}

/// State that a process with the engine needs for exec. The executed program starts a new engine
/// with it.
#[derive(Debug)]
pub(crate) struct EngineHost {
    /// Socket from which the executed program receives the engine's configuration.
    pub socket: HighFd,
    /// Path of the library that starts the engine.
    pub library: Vec<u8>,
}

/// State protected by the lock of [`Spawns`].
#[derive(Debug)]
pub(crate) struct Started {
    /// Reserved descriptor number at which a spawned program finds its control socket. `None` until
    /// the program calls posix_spawn_file_actions_addclosefrom_np(3), because only that action
    /// closes all numbers. While no program is being spawned, an unused kernel socket occupies the
    /// number.
    pub seat: Option<HighFd>,
    /// Open popen(3) streams, by the address of their `FILE`.
    pipes: BTreeMap<usize, Pipe>,
}

impl Spawns {
    /// Creates the state of a process that has not started any program.
    pub const fn new() -> Self {
        let started = Started { seat: None, pipes: BTreeMap::new() };
        let (pipes, host) = (AtomicUsize::new(0), AtomicPtr::new(null_mut()));
        Self { started: ProcessLock::new(started), pipes, in_actions: Numbers::new(), host }
    }

    /// Returns the state with which an executed program starts a new engine. None: this process
    /// does not contain the engine.
    pub fn host(&self) -> Option<&EngineHost> {
        // SAFETY: the pointer is null or was leaked by `set_host`.
        unsafe { self.host.load(Acquire).as_ref() }
    }

    /// Sets the state with which an executed program starts a new engine. Called in a process that
    /// contains the engine.
    pub fn set_host(&self, host: EngineHost) {
        self.host.store(Box::into_raw(Box::new(host)), Release);
    }

    /// Locks the state. Held while a channel (connection to the engine) is opened for a new
    /// process. Also held while a control socket is inheritable, so that other programs do not
    /// inherit it.
    ///
    /// Returns `None` in a signal handler that interrupted a holder of the lock, because waiting
    /// would deadlock.
    pub fn lock(&self) -> Option<LockGuard<'_, Started>> {
        self.started.lock_unless_mine()
    }

    /// Records a stream created by popen(3).
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

    /// Removes the record of a stream that is being closed. Returns the process ID of its command,
    /// if popen(3) created the stream.
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
